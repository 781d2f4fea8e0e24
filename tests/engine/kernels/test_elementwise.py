"""Norms, rotary embedding and the activation of 16-bit models, by code that is compiled here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels import ops
from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import FORMATS, TYPES
from tests.engine.kernels.compiled import leave_to_torch, needs_compiler

EPS = 1e-6
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # once, of a number's size
DTYPE = st.sampled_from(FORMATS)


def numbers(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def assert_rounded_once(found: Tensor, exact: Tensor, sizes: Tensor) -> None:
    """Within one rounding of what float64 gives; sizes: of the numbers that were added up."""
    smallest = float(torch.finfo(found.dtype).tiny)
    allowed = ROUNDING[found.dtype] * exact.abs() + 1e-6 * sizes + smallest
    assert bool(((found.double() - exact).abs() <= allowed).all())


def normed(x: Tensor, weight: Tensor, offset: float = 0.0) -> Tensor:
    wide = x.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return wide * scale * (offset + weight.double())


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin, width = cos.double().unsqueeze(1), sin.double().unsqueeze(1), cos.shape[-1]
    first, second = x[..., : width // 2], x[..., width // 2 : width]
    halves = torch.cat((-second, first), dim=-1)
    return torch.cat((x[..., :width] * cos + halves * sin, x[..., width:]), dim=-1)


def angles(tokens: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    half = numbers(tokens, width // 2, dtype=dtype).float()
    both = torch.cat((half, half), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


@needs_compiler
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 700), st.sampled_from([0.0, 1.0]), DTYPE)
def test_a_norm_is_exact_but_for_rounding_in_any_company(
    rows: int, width: int, offset: float, dtype: torch.dtype
) -> None:
    x, weight = numbers(rows, width, dtype=dtype, scale=3), numbers(width, dtype=dtype)
    assert ops._fits(x, weight)
    found, exact = ops.rms_norm(x, weight, EPS, offset), normed(x, weight, offset)
    assert_rounded_once(found, exact, exact.abs())
    assert torch.equal(ops.rms_norm(x[rows // 2], weight, EPS, offset), found[rows // 2])
    apart = torch.cat((x, x), dim=-1)[:, width:]  # rows that do not follow each other
    assert torch.equal(ops.rms_norm(apart, weight, EPS, offset), found)
    residual = numbers(rows, width, dtype=dtype)
    summed, total = ops.add_rms_norm(apart, residual, weight, EPS, offset)
    assert torch.equal(total, residual + x)
    assert torch.equal(summed, ops.rms_norm(total, weight, EPS, offset))


@needs_compiler
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_sum_of_two_tensors_is_that_of_torch_bit_by_bit(
    dtype: torch.dtype, threads: int
) -> None:
    """For all pairs of 256 numbers of either sign: infinite, too small to be normal, zero."""
    native = library()
    assert native is not None
    some = torch.arange(-(2**15), 2**15, 257, dtype=torch.int32).to(torch.int16).view(dtype)
    a, b = (x.reshape(-1).contiguous() for x in torch.meshgrid(some, some, indexing="ij"))
    found = torch.empty_like(a)
    addresses = (x.data_ptr() for x in (a, b, found))
    native.add(*addresses, len(a), TYPES[dtype], threads)
    assert torch.equal(found.isnan(), (a + b).isnan())
    numbers = ~found.isnan()
    assert len(a) > 32_768, "threads share it"
    assert torch.equal(found[numbers].view(torch.int16), (a + b)[numbers].view(torch.int16))


@needs_compiler
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 400), DTYPE)
def test_the_activation_is_exact_but_for_rounding(rows: int, size: int, dtype: torch.dtype) -> None:
    x = numbers(2, rows, 2 * size, dtype=dtype, scale=9)
    kept = x.clone()
    found = ops.silu_and_mul(x)
    gate, up = x.double().chunk(2, dim=-1)
    exact = gate * torch.sigmoid(gate) * up
    assert_rounded_once(found, exact, exact.abs())
    assert torch.equal(ops.silu_and_mul(x[1, rows // 2]), found[1, rows // 2])
    assert torch.equal(x, kept)


@needs_compiler
@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 6), queries=st.integers(1, 5) | st.just(66), keys=st.integers(1, 3),
    half=st.integers(1, 40) | st.just(300), more=st.sampled_from([0, 8]), has_norms=st.booleans(),
    dtype=DTYPE,
)  # fmt: skip
def test_heads_are_normed_and_turned(
    tokens: int, queries: int, keys: int, half: int, more: int, has_norms: bool, dtype: torch.dtype
) -> None:
    width, count = 2 * half + more, queries + keys
    packed = numbers(tokens, (count + keys) * width, dtype=dtype)  # values behind, as in a model
    heads = packed[:, : count * width].view(tokens, count, width)
    cos, sin = angles(tokens, 2 * half, dtype)
    first, second = numbers(width, dtype=dtype), numbers(width, dtype=dtype, scale=2)
    norms = ops.HeadNorms(first, second, queries, EPS, 0.0) if has_norms else None
    found = ops.rotate_heads(heads, cos, sin, norms)
    wide = heads.double()
    if has_norms:
        wide = torch.cat((normed(wide[:, :queries], first), normed(wide[:, queries:], second)), 1)
    sizes = turned(wide.abs(), cos.abs(), -sin.abs()).abs() + wide.abs()
    assert_rounded_once(found, turned(wide, cos, sin), sizes)
    last = slice(tokens - 1, None)
    assert torch.equal(ops.rotate_heads(heads[last], cos[last], sin[last], norms), found[last])


@needs_compiler
@pytest.mark.parametrize("dtype", FORMATS)
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    x, weight = numbers(64, 2048, dtype=dtype), numbers(2048, dtype=dtype)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((ops.rms_norm(x, weight, EPS), ops.silu_and_mul(x)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))


@needs_compiler
def test_what_is_not_finite_reaches_the_result() -> None:
    x = torch.zeros(3, 64, dtype=torch.bfloat16)
    x[0, 3], x[1, 5] = float("nan"), float("inf")
    weight = torch.ones(64, dtype=torch.bfloat16)
    assert bool(ops.rms_norm(x, weight, EPS)[0].isnan().all())
    assert bool(ops.rms_norm(x, weight, EPS)[1, 5].isnan())
    activated = ops.silu_and_mul(torch.cat((x, torch.ones_like(x)), dim=-1))
    assert bool(activated[0, 3].isnan()) and float(activated[1, 5]) == float("inf")
    assert float(ops.silu_and_mul(torch.tensor([-3e38, 2.0]).bfloat16())) == 0.0


def test_others_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = numbers(2, 8, dtype=torch.float32)
    assert not ops._fits(wide, wide[0])
    narrow = wide.bfloat16()
    assert not ops._fits(narrow, wide[0])
    assert not ops._heads_fit(torch.zeros(1, 8, 2, dtype=torch.bfloat16).transpose(1, 2))
    leave_to_torch(monkeypatch)
    exact = normed(narrow, narrow[0])
    found = ops.rms_norm(narrow, narrow[0].contiguous(), EPS)
    assert_rounded_once(found, exact, exact.abs())
