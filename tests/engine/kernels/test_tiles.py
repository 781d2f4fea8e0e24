"""Products of many rows in tiles: of plain and of quantized weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.check import library
from engine.kernels.cpu.dequantized import MANY_ROWS, DequantizedWeights
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.dense import tiles, tiles_fit
from engine.numerics.codes import IntCodes
from tests.engine.kernels.compiled import needs_compiler, quantize_groups
from tests.engine.kernels.products import CODED, is_exact_but_for_rounding, made, random_codes
from tests.tiers import examples


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@needs_compiler
@settings(deadline=None, max_examples=examples(40))
@given(
    rows=st.integers(1, 600),
    steps=st.integers(1, 20),
    outputs=st.integers(1, 120) | st.sampled_from([16, 112, 144, 272, 528]),
    has_bias=st.booleans(),
    offset=st.integers(0, 3),
)
def test_tiles_give_the_exact_product_rounded_once(
    rows: int, steps: int, outputs: int, has_bias: bool, offset: int
) -> None:
    """Of parts of wider weights too. Tiles take what is smaller than normal numbers for nothing."""
    x, weight, bias = made(rows, 32 * steps, outputs + offset, torch.bfloat16)
    wide = torch.full((len(weight), 32 * steps + 8), float("nan"), dtype=torch.bfloat16)
    wide[:, offset : offset + 32 * steps] = weight
    weight, bias = wide[offset:, offset : offset + 32 * steps], bias[offset:]
    found = tiles(x, weight, bias if has_bias else None)
    assert found.is_contiguous()
    assert is_exact_but_for_rounding(found, x, weight, bias if has_bias else None)
    compiled = library()
    assert compiled is not None and tiles_fit(x, weight, None) == compiled.has_tiles
    if compiled.has_tiles:  # to the last bit, in any company, on any number of threads
        for first, count in ((1, 1), (2, 2), (15, 3), (rows // 2, 6), (rows - 1, 2)):
            with threads(count):
                again = tiles(x[first:], weight, bias if has_bias else None)
            assert torch.equal(again, found[first:])


@pytest.mark.parametrize("shape", [(16, 33), (16, 48), (0, 64)])
def test_other_shapes_than_whole_tiles_are_left_to_torch(shape: tuple[int, int]) -> None:
    x, weight, bias = made(3, shape[1], shape[0], torch.bfloat16)
    assert not tiles_fit(x, weight, bias)
    assert torch.equal(tiles(x, weight, bias), F.linear(x, weight, bias))


@needs_compiler
@settings(deadline=None, max_examples=examples(60))
@given(
    bits=st.sampled_from([4, 8]),
    rows=st.integers(1, 300),
    outputs=st.integers(1, 120),
    group=st.sampled_from([8, 32, 40, 128, 1536]),
    groups=st.sampled_from([2, 3, 4, 20]),
    has_zeros=st.booleans(),
    scale=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    outliers=st.integers(0, 3),
)
def test_integers_in_groups_are_the_same_in_any_company(
    bits: int, rows: int, outputs: int, group: int, groups: int, has_zeros: bool,
    scale: torch.dtype, outliers: int,
) -> None:  # fmt: skip
    """Of many rows, and of groups of which only some rows have outliers."""
    by, groups = library(), groups if group < 1536 else 2
    assert by is not None
    group = group if group < 1536 or bits == 4 else 256
    codes = random_codes(bits, outputs, group * groups, group, has_zeros)
    codes = IntCodes(bits, codes.codes, codes.scales.to(scale), codes.zeros, group)
    weights = IntegerWeights.of(codes, torch.bfloat16, by)
    x, _, bias = made(rows, group * groups, outputs, torch.bfloat16)
    x.view(-1)[: 977 * outliers : 977] *= 100
    found, plain = weights.product(x, bias), codes.dequantize()
    seen, around = quantize_groups(x, group), bias.float().abs()
    size = F.linear(seen.abs(), plain.abs(), around)  # the result is rounded with its bias
    expected = F.linear(seen, plain, bias.float())
    assert bool(((found.float() - expected).abs() <= 2**-7 * size).all())
    for first, count in ((0, 1), (rows // 2, 2), (rows - 1, 3)):
        with threads(count):
            again = weights.product(x[first:], bias)
        assert torch.equal(again, found[first:])


@needs_compiler
@settings(deadline=None, max_examples=examples(30))
@given(
    kind=st.sampled_from(sorted(CODED)),
    rows=st.integers(MANY_ROWS, 300),
    outputs=st.integers(1, 120),
    width=st.sampled_from([64, 192, 320]),
)
def test_many_rows_are_multiplied_with_any_weights_rounded_to_bfloat16(
    kind: str, rows: int, outputs: int, width: int
) -> None:
    by = library()
    assert by is not None
    generator = torch.Generator().manual_seed(outputs)
    codes = CODED[kind](torch.randn(outputs, width, generator=generator))
    weights = DequantizedWeights(codes, torch.bfloat16, by)
    x, _, bias = made(rows, width, outputs, torch.bfloat16)
    found = weights.product(x, bias)
    plain = codes.dequantize()
    size = F.linear(x.float().abs(), plain.abs(), bias.float().abs()).max()
    expected = F.linear(x.float(), plain, bias.float())
    assert (found.float() - expected).abs().max() <= 5e-3 * size
    if by.has_tiles and kind != "8 bits, a group an input":
        for first, count in ((0, 1), (rows - MANY_ROWS, 2)):
            with threads(count):
                again = weights.product(x[first:], bias)
            assert torch.equal(again, found[first:])
            assert torch.equal(again, weights.dequantizing(x[first:]).add_(bias))
