"""Matrices of codes are cut where their plain forms would be, whatever their groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UnsupportedModelError
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes, stack
from engine.parallel.shape import Cut
from engine.parallel.share import cut_rows, cut_tensor, narrowed


def ints(rows: int, width: int, group: int, symmetric: bool) -> IntCodes:
    count = -(-width // group)
    zeros = None if symmetric else torch.randint(0, 16, (rows, count), dtype=torch.uint8)
    codes = torch.randint(0, 16, (rows, width), dtype=torch.uint8)
    return IntCodes(4, codes, torch.rand(rows, count) + 0.1, zeros, group)


def floats(rows: int, width: int, block: tuple[int, int]) -> FloatCodes:
    scales = torch.rand(-(-rows // block[0]), -(-width // block[1])) + 0.1
    return FloatCodes(torch.randn(rows, width).to(torch.float8_e4m3fn), scales, block)


def table(rows: int, width: int, block: int) -> TableCodes:
    codes = torch.randint(0, 16, (rows, width), dtype=torch.uint8)
    return TableCodes(codes, torch.rand(rows * width // block) + 0.1, block, torch.randn(16))


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Codes, int, int, int]:
    """A matrix in codes; a dimension, and where it is cut."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    rows, width = draw(st.integers(1, 40)), 4 * draw(st.integers(1, 24))
    match draw(st.sampled_from(("ints", "floats", "table"))):
        case "ints":
            group = draw(st.sampled_from((4, 8, 16, 32, 128)))
            made: Codes = ints(rows, width, group, draw(st.booleans()))
        case "floats":
            blocks = draw(st.sampled_from(((1, 1024), (1024, 1024), (8, 8), (16, 4), (1, 32))))
            made = floats(rows, width, blocks)
        case _:
            divisors = [size for size in (4, 8, 16, 32) if width % size == 0]
            made = table(rows, width, draw(st.sampled_from(divisors)))
    dim = draw(st.integers(0, 1))
    start = draw(st.integers(0, made.shape[dim] - 1))
    return made, dim, start, draw(st.integers(start + 1, made.shape[dim]))


@given(matrices())
def test_codes_are_cut_where_the_numbers_are(case: tuple[Codes, int, int, int]) -> None:
    matrix, dim, start, end = case
    found = narrowed(matrix, dim, start, end)
    assert not isinstance(found, torch.Tensor)
    expected = matrix.dequantize().narrow(dim, start, end - start)
    assert found.shape == tuple(expected.shape)
    assert torch.equal(found.dequantize(), expected)


@given(st.integers(1, 8), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_ranks_have_everything_once(size: int, segments: list[int]) -> None:
    part = sum(-(-segment // size) for segment in segments)
    cut = Cut(0, sum(segments), part, tuple(segments))
    places = [p for rank in range(size) for first, last in cut.ranges(rank, size)
              for p in range(first, last)]  # fmt: skip
    assert sorted(places) == list(range(cut.whole))
    for rank in range(size):
        assert sum(last - first for first, last in cut.ranges(rank, size)) <= part


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_rows_that_come_in_parts_are_those_of_the_whole(heights: list[int], size: int) -> None:
    parts = [ints(height, 8, 4, True) for height in heights]
    cut = Cut(0, sum(heights), -(-sum(heights) // size), (sum(heights),))
    whole = torch.cat([part.dequantize() for part in parts])
    for rank in range(size):
        ranges = cut.ranges(rank, size)
        found = [p for p in cut_rows(parts, ranges) if not isinstance(p, torch.Tensor)]
        expected = cut_tensor(whole, 0, ranges)
        joined = stack(found) if found else None
        numbers = expected[:0] if joined is None else joined.dequantize()
        assert torch.equal(numbers, expected)


def test_what_is_cut_has_memory_of_its_own() -> None:
    whole = torch.randn(4, 8)
    part = narrowed(whole, 1, 0, 4)
    assert isinstance(part, torch.Tensor)
    assert part.untyped_storage().nbytes() == part.nbytes
    assert cut_tensor(whole, 0, ((0, 2),)).untyped_storage().nbytes() == 2 * 8 * 4


def test_groups_by_activation_order_are_refused() -> None:
    matrix = ints(4, 8, 4, True)
    ordered = IntCodes(4, matrix.codes, matrix.scales, None, 4, torch.tensor([0, 1] * 4).int())
    assert narrowed(ordered, 0, 1, 3).shape == (2, 8)
    with pytest.raises(UnsupportedModelError, match="desc_act"):
        narrowed(ordered, 1, 0, 4)
