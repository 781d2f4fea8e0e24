"""Codes and scales of the 8-bit KV cache: near enough for any vector, and no NaN by accident."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.pages import FORMATS, quantize

# largest relative distance of a code from what it stands for: half a step of the largest for int8,
# half a unit in the last of four digits (one is implied) for fp8
HALF_STEP = 0.5 / 127
HALF_DIGIT = 2.0**-4

magnitudes = st.floats(-35, 35).map(lambda power: 10.0**power)


def read(codes: Tensor, scales: Tensor, name: str) -> Tensor:
    return FORMATS[name].decode(codes, torch.float32) * scales.float().unsqueeze(-1)


@given(
    name=st.sampled_from(sorted(FORMATS)),
    width=st.sampled_from((1, 3, 64, 80, 128)),
    magnitude=magnitudes,
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 2**31),
)
def test_a_vector_comes_back_nearly_as_it_was(
    name: str, width: int, magnitude: float, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = (torch.randn(7, 2, width, generator=generator) * magnitude).to(dtype)
    codes, scales = quantize(vectors, FORMATS[name])
    assert codes.dtype is torch.int8 and scales.dtype is torch.bfloat16
    assert codes.shape == vectors.shape and scales.shape == vectors.shape[:-1]
    wanted, found = vectors.double(), read(codes, scales, name).double()
    largest = wanted.abs().amax(-1, keepdim=True)
    error = (found - wanted).abs()
    slack = 1 + 2.0**-7  # of the scale's own rounding
    if largest.min() < 1e-30:  # beside nothing at all
        assert error.max() <= 1e-30
    elif name == "int8":
        assert (error <= largest * HALF_STEP * slack).all()
    else:
        least = largest * 2.0**-10 / 448  # half a step among the smallest codes
        assert (error <= wanted.abs() * HALF_DIGIT + least * slack).all()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_vector_of_zeros_comes_back_so(name: str) -> None:
    codes, scales = quantize(torch.zeros(3, 2, 64), FORMATS[name])
    assert scales.isfinite().all() and (scales > 0).all()
    assert torch.equal(read(codes, scales, name), torch.zeros(3, 2, 64))


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_own_vector_alone(name: str, bad: float) -> None:
    vectors = torch.randn(4, 2, 64)
    vectors[2, 1, 5] = bad
    found = read(*quantize(vectors, FORMATS[name]), name)
    assert not found[2, 1].isfinite().any()
    found[2, 1] = 0
    assert found.isfinite().all()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_largest_float32_is_no_infinity(name: str) -> None:
    vectors = torch.full((1, 1, 64), torch.finfo(torch.float32).max)
    vectors[..., 1::2] = -1.0
    found = read(*quantize(vectors, FORMATS[name]), name)
    assert found.isfinite().all() and (found[..., ::2] > 3e38).all()


@given(magnitude=magnitudes, seed=st.integers(0, 2**31))
def test_fp8_writes_no_nan(magnitude: float, seed: int) -> None:
    vectors = torch.randn(64, 16, generator=torch.Generator().manual_seed(seed)) * magnitude
    codes, _ = quantize(vectors, FORMATS["fp8"])
    assert not codes.view(torch.float8_e4m3fn).float().isnan().any()


def test_int8_uses_all_of_its_range() -> None:
    codes, _ = quantize(torch.randn(1000, 64), FORMATS["int8"])
    assert set(codes.abs().amax(-1).tolist()) <= {126, 127}
    assert -127 <= int(codes.min()) < int(codes.max()) <= 127
