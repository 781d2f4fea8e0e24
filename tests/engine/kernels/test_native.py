"""Products compiled here: those of the codes, whatever the rows, threads and processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels import dense
from engine.kernels.cpu import build
from engine.kernels.cpu.check import difference, library
from engine.kernels.cpu.dequantized import MANY_ROWS, DequantizedWeights
from engine.kernels.cpu.dequantized import fits as dequantized_fits
from engine.kernels.cpu.integer import IntegerWeights, fits
from engine.kernels.cpu.library import FORMATS, Library
from engine.kernels.quantized import make_weights
from engine.kernels.tiled import GroupedWeights
from engine.numerics.codes import FloatCodes, IntCodes
from engine.numerics.rounding import round_fp8, round_int8
from tests.engine.kernels.compiled import PROCESSORS, needs_compiler, quantize_groups, quantize_rows
from tests.engine.kernels.products import CODED, random_codes

EPSILON = {torch.float32: 1e-4, torch.bfloat16: 5e-3, torch.float16: 1e-3}


def activations(rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows * 31 + inputs)
    return torch.randn(rows, inputs, generator=generator).to(dtype)


def held(codes: IntCodes, dtype: torch.dtype, by: Library | None = None) -> IntegerWeights:
    by = by or library()
    assert by is not None
    return IntegerWeights.of(codes, dtype, by)


@pytest.mark.slow
@needs_compiler
@settings(deadline=None)
@given(
    bits=st.sampled_from([4, 8]),
    outputs=st.integers(1, 150),
    group=st.sampled_from([8, 32, 40, 128, 256]),
    groups=st.integers(1, 4),
    rows=st.sampled_from([*range(1, 12), 16, 33, 70]),
    has_zeros=st.booleans(),
    outliers=st.integers(0, 30),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_groups_are_multiplied_as_they_are(
    bits: int, outputs: int, group: int, groups: int, rows: int, has_zeros: bool, outliers: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    if bits == 8 and groups == 1 and not has_zeros:
        groups = 2  # one alone is int8 per output
    codes = random_codes(bits, outputs, group * groups, group, has_zeros)
    x = activations(rows, group * groups, dtype)
    x.view(-1)[: outliers * 37 : 37] *= 100
    weights, plain = held(codes, dtype), codes.dequantize()
    assert fits(codes, dtype)
    assert torch.equal(weights.dense(), codes.dequantize(dtype))
    found, seen = weights.product(x, None), quantize_groups(x, group)
    off = (found.float() - F.linear(seen, plain)).abs()
    assert bool((off <= EPSILON[dtype] * F.linear(seen.abs(), plain.abs())).all())
    # to the last bit, in any company
    for first in range(rows):
        assert torch.equal(weights.product(x[first:], None), found[first:])


@pytest.mark.slow
@needs_compiler
@given(outputs=st.integers(1, 150), inputs=st.sampled_from([4, 60, 64, 700]),
       rows=st.integers(1, 70), dtype=st.sampled_from(list(EPSILON)))  # fmt: skip
def test_int8_per_output_is_the_same_integers_as_torch_s(
    outputs: int, inputs: int, rows: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(outputs)
    codes = round_int8(torch.randn(outputs, inputs, generator=generator))
    x = activations(rows, inputs, dtype)
    weights = held(codes, dtype)
    steps, scales = quantize_rows(x)
    exact = steps.double() @ (codes.codes.double() - 128).t()
    expected = (exact.float() * codes.scales.float().view(-1)) * scales
    assert torch.equal(weights.product(x, None), expected.to(dtype))
    assert torch.equal(weights.dense(), codes.dequantize(dtype))


@needs_compiler
@pytest.mark.slow
@settings(deadline=None)
@given(kind=st.sampled_from(sorted(CODED)), outputs=st.integers(1, 150),
       groups=st.integers(1, 4), rows=st.integers(1, 11),
       dtype=st.sampled_from(list(EPSILON)))  # fmt: skip
def test_codes_of_numbers_are_multiplied_as_they_are(
    kind: str, outputs: int, groups: int, rows: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(outputs)
    codes = CODED[kind](torch.randn(outputs, 64 * groups, generator=generator))
    assert dequantized_fits(codes, dtype)
    by = library()
    assert by is not None
    weights, plain = DequantizedWeights(codes, dtype, by), codes.dequantize()
    assert torch.equal(weights.dense(), codes.dequantize(dtype))
    x = activations(rows, 64 * groups, dtype)
    found = weights.product(x, None)
    size = float(F.linear(x.float().abs(), plain.abs()).max())
    assert float((found.float() - F.linear(x.float(), plain)).abs().max()) <= EPSILON[dtype] * size
    for first in range(rows):
        assert torch.equal(weights.product(x[first:], None), found[first:])


@needs_compiler
@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(sorted(CODED)), outputs=st.integers(1, 90),
       width=st.sampled_from([64, 192, 320]), rows=st.integers(9, MANY_ROWS - 1),
       dtype=st.sampled_from(list(EPSILON)))  # fmt: skip
def test_many_rows_are_the_same_rows(
    kind: str, outputs: int, width: int, rows: int, dtype: torch.dtype
) -> None:
    """Codes become numbers once for all of them, some inputs at a time."""
    generator = torch.Generator().manual_seed(outputs)
    codes = CODED[kind](torch.randn(outputs, width, generator=generator))
    by, x, plain = library(), activations(rows, width, dtype), codes.dequantize()
    assert by is not None
    weights = DequantizedWeights(codes, dtype, by)
    found = weights.product(x, None)
    assert found.shape == (rows, outputs) and found.is_contiguous()
    size = float(F.linear(x.float().abs(), plain.abs()).max())
    assert float((found.float() - F.linear(x.float(), plain)).abs().max()) <= EPSILON[dtype] * size
    for first in (0, 1, 6, rows - 8, rows - 1):
        few = weights.product(x[first : first + 8], None)  # those that read codes
        assert torch.equal(few, found[first : first + 8])
        assert torch.equal(weights.product(x[first:], None), found[first:])


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("outputs", [40, 96, 300])
def test_groups_in_a_float32_model_take_no_more_memory_than_in_tiles(
    bits: int, outputs: int
) -> None:
    codes, by = random_codes(bits, outputs, 256, 64, True), library()
    assert by is not None
    tiled = GroupedWeights(codes, torch.float32)
    weights = make_weights([codes], torch.float32)
    assert isinstance(weights, DequantizedWeights)
    panels = -(-outputs // 16) * 16 / outputs  # the last one is filled
    assert weights.nbytes <= tiled.nbytes * panels
    assert weights.title == tiled.title


@needs_compiler
def test_nothing_cancels_where_zero_points_lie_far_from_the_codes() -> None:
    """Activations of one sign, and codes beside their zero points: sums of the codes alone would be
    a hundred times as large as what is left of them."""
    inputs, by = 4096, library()
    assert by is not None
    zeros = torch.full((16, 1), 255, dtype=torch.uint8)
    part = torch.randint(253, 256, (16, inputs), generator=torch.Generator().manual_seed(0))
    codes = IntCodes(8, part.to(torch.uint8), torch.ones(16, 1), zeros, inputs)
    x = 1 + activations(3, inputs, torch.float32).abs()
    exact = x.double() @ codes.dequantize().double().t()
    found = DequantizedWeights(codes, x.dtype, by).product(x, None)
    assert float(((found.double() - exact) / exact).abs().max()) < 1e-5


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_in_a_float32_model(value: float) -> None:
    by, x = library(), activations(11, 128, torch.float32)
    assert by is not None
    weights = DequantizedWeights(random_codes(4, 40, 128, 64, True), x.dtype, by)
    finite = weights.product(x, None)
    x[1, 5] = value
    found = weights.product(x, None)
    assert not found[1].isfinite().all()
    others = torch.arange(11) != 1
    assert torch.equal(found[others], finite[others]) and finite.isfinite().all()


@pytest.mark.parametrize(
    "codes",
    [
        random_codes(4, 8, 63, 21, True),  # groups end within a byte
        IntCodes(4, torch.zeros(8, 60, dtype=torch.uint8), torch.ones(8, 2), None, 40),
        replace(random_codes(4, 8, 64, 32, True), groups=torch.arange(64, dtype=torch.int32) % 2),
        random_codes(2, 8, 64, 32, True),
    ],
)
def test_integers_that_it_does_not_read_are_left_to_torch(codes: IntCodes) -> None:
    assert not dequantized_fits(codes, torch.float32)
    if codes.bits != 2:
        x = activations(3, codes.shape[1], torch.float32)
        expected = F.linear(x, codes.dequantize())
        torch.testing.assert_close(make_weights([codes], x.dtype).product(x, None), expected)


@needs_compiler
def test_every_code_of_float8_is_read_as_its_number() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    values = values[(values & 127) != 127].view(1, -1)  # but for NaN
    codes = FloatCodes(values.view(torch.float8_e4m3fn), torch.ones(1, 1), (1, values.shape[1]))
    by = library()
    assert by is not None
    weights, few = DequantizedWeights(codes, torch.float32, by), 8
    plain, unit = codes.dequantize().t(), torch.eye(254)
    assert torch.equal(weights.product(unit, None), plain)
    for start in range(0, 254, few):
        rows = slice(start, start + few)
        assert torch.equal(weights.product(unit[rows], None), plain[rows])
    damaged = FloatCodes(torch.full((4, 64), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn),
                         torch.ones(4, 1), (1, 64))  # fmt: skip
    assert not dequantized_fits(damaged, torch.bfloat16)


@needs_compiler
def test_a_prompt_is_multiplied_as_its_tokens_one_by_one_on_any_number_of_threads() -> None:
    by = library()
    assert by is not None
    x = activations(530, 256, torch.bfloat16)  # more rows than go through at once
    floats = DequantizedWeights(round_fp8(random_codes(4, 200, 256, 64, True).dequantize()),
                            torch.float16, by)  # fmt: skip
    threads = torch.get_num_threads()
    integers = DequantizedWeights(random_codes(4, 200, 256, 64, True), torch.float32, by)
    for weights in (held(random_codes(4, 200, 256, 64, True), torch.float16), floats, integers):
        x = x.to(weights.dtype)
        found = weights.product(x, None)
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                assert torch.equal(weights.product(x, None), found)
                alone = [weights.product(row[None], None) for row in x[::7]]
                assert torch.equal(torch.cat(alone), found[::7])
        finally:
            torch.set_num_threads(threads)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_processor_computes_the_same(processor: str) -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    if PROCESSORS[processor] not in flags:
        pytest.skip(f"this CPU has no {PROCESSORS[processor]}")
    path, compiler = build.compiled(processor)
    made = Library(path, compiler.origin)
    is_wide = made.instructions.startswith("AVX-512")
    assert processor == "native" or is_wide == processor.startswith("x86-64-v4")
    ours = library()
    assert ours is not None and difference(made) == ""
    for bits, group, width in ((4, 32, 256), (8, 64, 256), (8, 256, 256), (8, 700, 700)):
        codes = random_codes(bits, 147, width, group, group != width)
        x = activations(41, width, torch.bfloat16)
        expected = held(codes, x.dtype).product(x, None)
        weights = held(codes, x.dtype, made)
        assert torch.equal(weights.product(x, None), expected)
        alone = [weights.product(x[row : row + 1], None) for row in range(len(x))]
        assert torch.equal(torch.cat(alone), expected)
    x = activations(41, 256, torch.bfloat16)
    for kind in sorted(CODED):
        numbers = CODED[kind](activations(147, 256, torch.float32))
        expected = DequantizedWeights(numbers, x.dtype, ours).product(x, None)
        assert torch.equal(DequantizedWeights(numbers, x.dtype, made).product(x, None), expected)
    for dtype in FORMATS:
        x, weight = activations(41, 1111, dtype), activations(83, 1111, dtype)
        assert torch.equal(made.plain(x, weight, None), dense.native(x, weight, None))


@needs_compiler
def test_no_rows_give_no_rows_in_a_thread_that_has_multiplied_nothing() -> None:
    weights, found = held(random_codes(4, 40, 128, 64, True), torch.bfloat16), []
    thread = Thread(target=lambda: found.append(weights.product(activations(0, 128, torch.half),
                                                                None)))  # fmt: skip
    thread.start()
    thread.join()
    assert [one.shape for one in found] == [(0, 40)]


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_not_finite_stays_so_in_its_own_row(bits: int, value: float) -> None:
    weights = held(random_codes(bits, 40, 128, 64, True), torch.bfloat16)
    x = activations(3, 128, torch.bfloat16)
    x[1, 5] = value
    found = weights.product(x, None)
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all() and found[2].isfinite().all()
    x[1] = 0
    assert (weights.product(x, None)[1] == 0).all()


@needs_compiler
def test_the_largest_sums_fit_their_integers() -> None:
    for bits, group in ((4, 4096), (8, 256)):
        full = torch.full((16, group * 2), (1 << bits) - 1, dtype=torch.uint8)
        zeros = torch.zeros(16, 2, dtype=torch.uint8)
        codes = IntCodes(bits, full, torch.ones(16, 2), zeros, group)
        x = torch.full((5, group * 2), -3.0, dtype=torch.bfloat16)
        expected = -3.0 * ((1 << bits) - 1) * group * 2
        assert held(codes, x.dtype).product(x, None)[4, 15].item() == pytest.approx(expected, 0.01)


@pytest.mark.parametrize(
    ("codes", "dtype"),
    [
        (random_codes(4, 8, 64, 32, True), torch.float32),
        (random_codes(4, 8, 60, 20, True), torch.bfloat16),  # no whole number of steps
        (random_codes(8, 8, 1024, 512, True), torch.bfloat16),  # sums beyond an int32
        (random_codes(2, 8, 64, 32, True), torch.bfloat16),
        (IntCodes(8, torch.zeros(8, 30, dtype=torch.uint8), torch.ones(8, 1), None, 30),
         torch.bfloat16),
    ],
)  # fmt: skip
def test_what_it_does_not_multiply_is_left_to_torch(codes: IntCodes, dtype: torch.dtype) -> None:
    assert not fits(codes, dtype)
