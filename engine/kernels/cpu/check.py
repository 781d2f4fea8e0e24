"""The compiled library, once its results have been checked: a compiler may be wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine.kernels.cpu import elementwise
from engine.kernels.cpu.attention import NativeCache, NativeStep
from engine.kernels.cpu.build import UnavailableError, machine_problem
from engine.kernels.cpu.dequantized import DequantizedWeights
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.cpu.library import FORMATS, Library, load
from engine.kernels.paged_kv import PageTensors
from engine.kernels.weights import Weights
from engine.numerics.codes import Codes, IntCodes
from engine.numerics.rounding import round_fp8, round_nf4

_ROWS = (1, 2, 7, 35)  # through every tile of integer.c, dequantized.c and plain.c
_OUTPUTS, _INPUTS = 83, 128  # no whole number of panels
_WIDTH = 139  # nor of steps
_CLOSE = 1e-2  # of the largest result, as bfloat16 and 8 bits are; what is wrong is off by far more

_CLOSE_IN_8_BITS = 5e-2  # of keys and values that are rounded so
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
        exact = torch.randn(max(_ROWS), _INPUTS, generator=generator)
        for title, codes, held in _cases(library, generator):
            x = exact.to(held.dtype)
            expected = x.float() @ codes.dequantize().t()
            limit = _CLOSE * float(expected.abs().max())
            whole = held.product(x, None)
            if not float((whole.float() - expected).abs().max()) <= limit:
                return f"{library.compiler}: wrong product with {title}"
            for rows in _ROWS:
                if not torch.equal(held.product(x[:rows], None), whole[:rows]):
                    return f"{library.compiler}: results depend on the number of rows"
        return (
            _plain_difference(library, generator)
            or _elementwise_difference(library, generator)
            or _attention_difference(library, generator)
        )


def _plain_difference(library: Library, generator: torch.Generator) -> str:
    """The same of plain weights."""
    for dtype in FORMATS:
        x, weight, bias = (
            torch.randn(shape, generator=generator).to(dtype)
            for shape in ((max(_ROWS), _WIDTH), (_OUTPUTS, _WIDTH), (_OUTPUTS,))
        )
        expected = x.float() @ weight.float().t() + bias.float()
        whole = library.plain(x, weight, bias)
        limit = _CLOSE * float(expected.abs().max())
        if not float((whole.float() - expected).abs().max()) <= limit:
            return f"{library.compiler}: wrong product with plain weights"
        for rows in _ROWS:
            if not torch.equal(library.plain(x[:rows], weight, bias), whole[:rows]):
                return f"{library.compiler}: results depend on the number of rows"
    return ""


def _elementwise_difference(library: Library, generator: torch.Generator) -> str:
    """The same of what is computed between products."""
    for dtype in FORMATS:
        x = torch.randn(5, 3, 96, generator=generator).to(dtype)
        weight, other = (torch.rand(96, generator=generator).to(dtype) for _ in range(2))
        cos, sin = torch.randn(2, 5, 64, generator=generator).to(dtype)
        cos[:, 32:], sin[:, 32:] = cos[:, :32], sin[:, :32]
        normed = elementwise.normed(x, 1e-6)
        gate, up = x.float().chunk(2, dim=-1)
        wide = torch.cat((normed[:, :2] * weight.float(), normed[:, 2:] * other.float()), dim=1)
        turned = elementwise.rotate(wide, cos.float().unsqueeze(1), sin.float().unsqueeze(1))
        pairs = (
            (elementwise.rms_norm(library, x, weight, 1e-6, 1.0), normed * (1 + weight.float())),
            (elementwise.silu_and_mul(library, x), F.silu(gate) * up),
            (elementwise.rotate_heads(library, x, cos, sin, (weight, other), 2, 1e-6), turned),
        )
        for found, expected in pairs:
            limit = _CLOSE * float(expected.abs().max())
            if not float((found.float() - expected).abs().max()) <= limit:
                return f"{library.compiler}: wrong norm, rotary embedding or activation"
    return ""


def _attention_difference(library: Library, generator: torch.Generator) -> str:
    """The same of attention, in a sequence of several parts, and of what is written for it."""
    length, tokens, size, heads, width = 530, 3, 16, 2, 32
    table = list(range(-(-length // size)))[::-1]
    places = [table[n // size] * size + n % size for n in range(length)]
    shape = (len(table), heads, size, width)
    step = NativeStep([0], [tokens], [length], [table])
    for form in ("plain", "int8", "fp8"):
        dtype = torch.bfloat16 if form == "plain" else torch.int8
        keys, values = (PageTensors(torch.zeros(shape, dtype=dtype), form) for _ in "kv")
        if form != "plain":
            keys, values = (
                pages._replace(scales=torch.zeros(shape[:3], dtype=torch.bfloat16))
                for pages in (keys, values)
            )
        cache = NativeCache(library, keys, values)
        k, v = torch.randn(2, length, heads, width, generator=generator).bfloat16()
        q = torch.randn(tokens, 2 * heads, width, generator=generator).bfloat16()
        cache.write(torch.tensor(places), k, v)
        found = torch.empty_like(q)
        cache.attend(step, q, found, 0.2)
        seen = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
        q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        expected = F.scaled_dot_product_attention(q, k, v, seen, scale=0.2).transpose(0, 1)
        limit = _CLOSE_IN_8_BITS * float(expected.abs().max())
        if not float((found.float() - expected).abs().max()) <= limit:
            return f"{library.compiler}: wrong attention"
    return ""


def _cases(library: Library, generator: torch.Generator) -> Iterator[tuple[str, Codes, Weights]]:
    """Of every kind: what it is called, and how it is held."""
    for bits, group in ((4, 32), (8, 64), (8, _INPUTS)):
        codes = _random(bits, group, generator)
        yield f"{bits} bits", codes, IntegerWeights.of(codes, torch.bfloat16, library)
    for bits, group in ((4, 32), (8, 64), (4, _INPUTS), (8, _INPUTS)):
        codes = _random(bits, group, generator)
        yield f"{bits} bits in float32", codes, DequantizedWeights(codes, torch.float32, library)
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=generator)
    others: dict[str, Codes] = {"float8": round_fp8(weight), "NF4": round_nf4(weight)}
    for title, numbers in others.items():
        yield title, numbers, DequantizedWeights(numbers, torch.bfloat16, library)


def _random(bits: int, group: int, generator: torch.Generator) -> IntCodes:
    """Symmetric where all inputs are one group."""
    codes = torch.randint(
        0, 1 << bits, (_OUTPUTS, _INPUTS), generator=generator, dtype=torch.uint8
    )
    shape = (_OUTPUTS, _INPUTS // group)
    scales = torch.rand(shape, generator=generator) + 0.5
    if group == _INPUTS:
        return IntCodes(bits, codes, scales, None, group)
    zeros = torch.randint(0, 1 << bits, shape, generator=generator, dtype=torch.uint8)
    return IntCodes(bits, codes, scales, zeros, group)
