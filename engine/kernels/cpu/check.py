"""The compiled library, after its results were compared with torch's: a compiler may be wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu import elementwise
from engine.kernels.cpu.attention import NativeCache, NativeStep
from engine.kernels.cpu.build import machine_problem
from engine.kernels.cpu.compressed import PANEL, CompressedWeights
from engine.kernels.cpu.dequantized import DequantizedWeights
from engine.kernels.cpu.elementwise import HeadNorms
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.cpu.library import FORMATS, TYPES, Library, listen, load
from engine.kernels.cpu.library_cache import UnavailableError
from engine.kernels.cpu.replay import CompiledCall, Counts, as_one
from engine.kernels.cpu.workspace import Workspace, use, workspace
from engine.kernels.paged_kv import PLAIN, PageTensors
from engine.kernels.weights import Weights
from engine.numerics.codes import Codes, IntCodes
from engine.numerics.rounding import round_fp8, round_nf4

_ROWS = (1, 2, 4, 7, 70)  # through every tile of integer.c, dequantized.c, plain.c and tiled.c
_OUTPUTS, _INPUTS = 147, 128  # four panels and more for two threads, no whole number
_WIDTH = 1163  # nor of steps, and more than plain.c uses at a time
_TILED_WIDTH = 608  # more than are near at a time: tiled.c
_CLOSE = 1e-2  # of the largest result; wrong results of bfloat16 and 8 bits are off by far more

_CLOSE_IN_8_BITS = 0.1  # of keys and values that are rounded so, to 4 bits of significand in fp8
_lock = threading.Lock()


class Found(NamedTuple):
    library: Library | None
    problem: str
    """Why there is none; "" where there is."""


def find() -> Found:
    """Compiles and checks at the first call."""
    with _lock:
        return _find()


@cache
def _find() -> Found:
    try:
        made = load()
    except UnavailableError as error:
        return Found(None, str(error))
    wrong = difference(made)
    return Found(None, wrong) if wrong else Found(made, "")


def library() -> Library | None:
    """None where torch computes instead; `problem` says why."""
    return find().library


def problem() -> str:
    return find().problem


def remedy() -> str:
    """`problem`, where this machine could have the library; else ""."""
    return problem() if machine_problem() == "" else ""


def difference(library: Library) -> str:
    """What `library` computes wrongly; "" where all is right."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for title, multiply, x, expected in _products(library, generator):
            whole = multiply(x)
            if _is_off(whole, expected):
                return f"{library.origin}: incorrect matmul result with {title}"
            for rows in _ROWS:
                if not torch.equal(multiply(x[:rows]), whole[:rows]):
                    return f"{library.origin}: results depend on the number of rows"
        for found, expected in _small_operations(library, generator):
            if _is_off(found, expected):
                return f"{library.origin}: incorrect norm, rotary embedding or activation result"
        if not _is_replayed(library, generator):
            return f"{library.origin}: replayed calls give another result"
        for found, expected in _attention(library, generator):
            if _is_off(found, expected, _CLOSE_IN_8_BITS):
                return f"{library.origin}: incorrect attention result"
    return ""


def _is_off(found: Tensor, expected: Tensor, close: float = _CLOSE) -> bool:
    limit = close * float(expected.abs().max())
    return not float((found.float() - expected).abs().max()) <= limit  # also where it is NaN


def _products(
    library: Library, generator: torch.Generator
) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor, Tensor]]:
    """For weights of every kind: title, matmul, x and the expected result."""
    exact = torch.randn(max(_ROWS), _INPUTS, generator=generator)
    for title, codes, held in _weights(library, generator):
        x = exact.to(held.dtype)
        yield title, partial(held.product, bias=None), x, x.float() @ codes.dequantize().t()
    for dtype in FORMATS:
        x, weight, bias = (
            torch.randn(shape, generator=generator).to(dtype)
            for shape in ((max(_ROWS), _WIDTH), (_OUTPUTS, _WIDTH), (_OUTPUTS,))
        )
        expected = x.float() @ weight.float().t() + bias.float()
        yield "unquantized weights", partial(library.plain, weight=weight, bias=bias), x, expected
    if library.has_tiles:
        x, weight = (
            torch.randn(rows, _TILED_WIDTH, generator=generator).bfloat16()
            for rows in (max(_ROWS), _OUTPUTS)
        )
        bias = torch.randn(_OUTPUTS, generator=generator).bfloat16()
        expected = x.float() @ weight.float().t() + bias.float()
        yield "tiles", partial(library.tiled, weight=weight, bias=bias), x, expected
        whole = _OUTPUTS // PANEL * PANEL
        small = CompressedWeights.of(weight[:whole], library) if library.has_amx else None
        if small is not None:
            multiply = partial(small.multiply, bias=bias[:whole])
            many = x.repeat(4, 1), expected[:, :whole].repeat(4, 1)  # more than pass at once
            yield "weights in 12 bits", multiply, *many
        x = exact.bfloat16()
        for title, numbers, wide in _weights(library, generator):
            if isinstance(wide, DequantizedWeights) and wide.dtype is torch.bfloat16:
                expected = x.float() @ numbers.dequantize().t()
                yield f"{title} in tiles", wide.dequantizing, x, expected


def _small_operations(
    library: Library, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    for dtype in FORMATS:
        x = torch.randn(5, 3, 96, generator=generator).to(dtype)
        weight, other = (torch.rand(96, generator=generator).to(dtype) for _ in range(2))
        cos, sin = torch.randn(2, 5, 64, generator=generator).to(dtype)
        cos[:, 32:], sin[:, 32:] = cos[:, :32], sin[:, :32]
        normed = F.rms_norm(x.float(), (96,), eps=1e-6)
        yield elementwise.rms_norm(library, x, weight, 1e-6, 1.0), normed * (1 + weight.float())
        gate, up = x.float().chunk(2, dim=-1)
        yield elementwise.silu_and_mul(library, x), F.silu(gate) * up
        norms = HeadNorms(weight, other, 2, 1e-6, 0.0)
        wide = torch.cat((normed[:, :2] * weight.float(), normed[:, 2:] * other.float()), dim=1)
        angles = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
        first, second, rest = wide.split((32, 32, 32), dim=-1)
        half_turned = torch.cat((-second, first), dim=-1)
        turned = torch.cat((wide[..., :64] * angles[0] + half_turned * angles[1], rest), dim=-1)
        yield elementwise.rotate_heads(library, x, cos, sin, norms), turned


def _is_replayed(library: Library, generator: torch.Generator) -> bool:
    """Whether the call with the most arguments is the same in a replay, beside another one, and for
    fewer tokens."""
    calls: list[CompiledCall] = []
    space = Workspace()
    x = torch.randn(5, 3, 96, generator=generator).bfloat16()
    cos, sin = torch.randn(2, 5, 96, generator=generator).bfloat16()
    norms = HeadNorms(x[0, 0], x[1, 1], 2, 1e-6, 0.5)
    total = torch.empty_like(x)
    with use(space), listen(lambda *call: calls.append(CompiledCall(*call))):
        turned = elementwise.rotate_heads(library, x, cos, sin, norms)
        threads = workspace().threads
        library.add(
            x.data_ptr(), turned.data_ptr(), total.data_ptr(), x.numel(), TYPES[x.dtype], threads
        )
    before = turned.clone()
    turned.zero_(), total.zero_()
    counts = Counts(len(x), 1)
    function, arguments = as_one(library, calls, space, counts)
    function(*arguments)
    is_whole = torch.equal(turned, before) and torch.equal(total, x + before)
    counts.tokens.value = some = 2
    turned.zero_(), total.zero_()
    function(*arguments)
    before[some:] = 0
    all_of = torch.equal(turned, before) and torch.equal(total[:some], (x + before)[:some])
    return is_whole and all_of and not total[some:].any()


def _attention(library: Library, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """A sequence of several parts, with its keys and values written first."""
    length, tokens, size, heads, width = 530, 3, 16, 2, 32
    table = list(range(-(-length // size)))[::-1]
    places = [table[n // size] * size + n % size for n in range(length)]
    shape = (len(table), heads, size, width)
    step = NativeStep([0], [tokens], [length], [table])
    seen = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
    for form in (PLAIN, "int8", "fp8"):
        dtype = torch.bfloat16 if form == PLAIN else torch.int8
        keys, values = (
            PageTensors(torch.zeros(shape, dtype=dtype), form, None if form == PLAIN else scales)
            for scales in torch.zeros(2, *shape[:3], dtype=torch.bfloat16)
        )
        cache = NativeCache(library, keys, values)
        k, v = torch.randn(2, length, heads, width, generator=generator).bfloat16()
        q = torch.randn(tokens, 2 * heads, width, generator=generator).bfloat16()
        cache.write(torch.tensor(places), k, v)
        found = torch.empty_like(q)
        cache.attend(step, q, found, 0.2)
        in_tiles = torch.empty_like(q)
        if library.has_tiles:
            cache.attend(step, q, in_tiles, 0.2, in_tiles=True)
        q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        expected = F.scaled_dot_product_attention(q, k, v, seen, scale=0.2).transpose(0, 1)
        yield found, expected
        if library.has_tiles:
            yield in_tiles, expected


def _weights(library: Library, generator: torch.Generator) -> Iterator[tuple[str, Codes, Weights]]:
    for bits, group in ((4, 32), (8, 64), (8, _INPUTS)):
        codes = _random(bits, group, generator)
        yield f"{bits}-bit weights", codes, IntegerWeights.of(codes, torch.bfloat16, library)
    for bits, group in ((4, 32), (8, 64), (4, _INPUTS), (8, _INPUTS)):
        codes = _random(bits, group, generator)
        yield f"{bits}-bit, float32", codes, DequantizedWeights(codes, torch.float32, library)
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=generator)
    others: dict[str, Codes] = {"float8": round_fp8(weight), "NF4": round_nf4(weight)}
    for title, numbers in others.items():
        yield title, numbers, DequantizedWeights(numbers, torch.bfloat16, library)


def _random(bits: int, group: int, generator: torch.Generator) -> IntCodes:
    """Symmetric where all inputs are one group."""
    shape, in_groups = (_OUTPUTS, _INPUTS), (_OUTPUTS, _INPUTS // group)
    codes, zeros = (
        torch.randint(0, 1 << bits, size, generator=generator, dtype=torch.uint8)
        for size in (shape, in_groups)
    )
    scales = torch.rand(in_groups, generator=generator) + 0.5
    return IntCodes(bits, codes, scales, None if group == _INPUTS else zeros, group)
