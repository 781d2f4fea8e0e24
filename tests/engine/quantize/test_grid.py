"""Rounding to integers whose scales are numbers of a file's format."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.quantize.grid import Grid

shapes = st.tuples(st.integers(1, 20), st.integers(1, 6), st.sampled_from([32, 64]))


@given(
    shape=shapes,
    bits=st.sampled_from([4, 8]),
    is_symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    size=st.floats(1e-6, 1e3),
    shift=st.floats(-2, 2),
    seed=st.integers(0, 99),
)
def test_rounding_is_off_by_half_a_step_at_most(
    shape: tuple[int, int, int],
    bits: int,
    is_symmetric: bool,
    dtype: torch.dtype,
    size: float,
    shift: float,
    seed: int,
) -> None:
    rows, groups, group_size = shape
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(rows, groups * group_size, generator=generator) + shift) * size
    grid = Grid(bits, group_size, is_symmetric, dtype)
    codes = grid.round(weight)
    assert codes.scales.dtype is dtype
    assert codes.is_symmetric is is_symmetric
    rounded = codes.dequantize()
    assert torch.equal(rounded, grid.rounded(weight))
    step = codes.scales.float().repeat_interleave(group_size, 1)
    # the top of a range may lie half a step outside: of a symmetric one, and by a zero's rounding;
    # a scale rounded down takes a little more off it
    slack = 1.01 + 2**bits * (2**-8 if dtype is torch.bfloat16 else 2**-11)
    assert bool(((weight - rounded).abs() <= step * slack + 1e-12).all())
    inside = (weight - rounded).abs() <= step * 0.5001
    assert float(inside.float().mean()) > 0.9


def test_a_range_that_is_given_clips() -> None:
    weight = torch.linspace(-1, 1, 32).view(1, 32)
    ranges = torch.full((1, 1), -0.5), torch.full((1, 1), 0.5)
    rounded = Grid(4, 32, False).round(weight, ranges).dequantize()
    assert float(rounded.abs().max()) == pytest.approx(0.5, abs=0.04)


def test_zeros_stay_zeros() -> None:
    for is_symmetric in (False, True):
        assert not Grid(4, 32, is_symmetric).rounded(torch.zeros(3, 64)).any()


def test_tiles_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(40, 64)
    whole = Grid(4, 32, False).round(weight)
    monkeypatch.setattr("engine.numerics.codes._TILE", 64 * 3)
    tiled = Grid(4, 32, False).round(weight)
    assert torch.equal(whole.codes, tiled.codes)
    assert torch.equal(whole.dequantize(), Grid(4, 32, False).rounded(weight))
