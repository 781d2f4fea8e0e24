"""Plain weights of 16 bits, multiplied where they lie by code that is compiled here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import FORMATS
from engine.kernels.dense import native as product
from engine.kernels.dense import native_fits as fits
from engine.kernels.linear import Linear
from tests.engine.kernels.compiled import leave_to_torch, needs_compiler
from tests.engine.kernels.products import is_exact_but_for_rounding, made


@needs_compiler
@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 70),
    inputs=st.integers(1, 200) | st.sampled_from([512, 1000, 1100]),
    outputs=st.integers(1, 90),
    has_bias=st.booleans(),
    dtype=st.sampled_from(FORMATS),
)
def test_it_is_the_exact_product_rounded_once(
    rows: int, inputs: int, outputs: int, has_bias: bool, dtype: torch.dtype
) -> None:
    x, weight, bias = made(rows, inputs, outputs, dtype)
    found = product(x, weight, bias if has_bias else None)
    assert found.dtype is dtype and found.is_contiguous()
    assert is_exact_but_for_rounding(found, x, weight, bias if has_bias else None)
    for first in (1, 2, 3, 5, 33, rows - 1):  # to the last bit, in any company
        assert torch.equal(product(x[first:], weight, bias if has_bias else None), found[first:])


@needs_compiler
@pytest.mark.parametrize("dtype", FORMATS)
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    x, weight, bias = made(70, 3000, 131, dtype)
    found, threads = product(x, weight, bias), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(product(x, weight, bias), found)
            alone = [product(row[None], weight, bias) for row in x[:9]]
            assert torch.equal(torch.cat(alone), found[:9])
    finally:
        torch.set_num_threads(threads)


@needs_compiler
@given(offset=st.integers(0, 40), inputs=st.sampled_from([64, 77]),
       dtype=st.sampled_from(FORMATS))  # fmt: skip
def test_weights_lie_anywhere(offset: int, inputs: int, dtype: torch.dtype) -> None:
    """In a file that is mapped they start at any byte; a shard of them is a part of every row."""
    x, weight, bias = made(3, inputs, 21, dtype)
    expected = product(x, weight, bias)
    storage = torch.zeros(2 * weight.numel() + offset + 1, dtype=torch.uint8)
    at = storage[offset : offset + weight.nbytes]
    at.copy_(weight.view(torch.uint8).flatten())
    if offset % 2 == 0:  # torch has no views at odd bytes
        assert torch.equal(product(x, at.view(dtype).view(21, inputs), bias), expected)
    wide = torch.full((21, inputs + 50), float("nan"), dtype=dtype)
    part = wide[:, offset : offset + inputs]
    part.copy_(weight)
    assert torch.equal(product(x, part, bias), expected)


@needs_compiler
def test_activations_of_any_shape_and_strides() -> None:
    x, weight, bias = made(12, 64, 9, torch.bfloat16)
    expected = product(x, weight, bias)
    strided = torch.cat((x, x), dim=-1).view(3, 4, 128)[..., :64]
    assert torch.equal(product(strided, weight, bias), expected.view(3, 4, 9))
    assert torch.equal(product(x.t().contiguous().t(), weight, bias), expected)
    assert product(x[:0], weight, bias).shape == (0, 9)
    assert torch.equal(product(x[0], weight, bias), expected[0])


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("inputs", [64, 70])
def test_what_is_not_finite_stays_so_in_its_own_place(
    value: float, dtype: torch.dtype, inputs: int
) -> None:
    x, weight, _ = made(5, inputs, 11, dtype)
    x[1, inputs - 1] = value
    found = product(x, weight, None)
    assert not found[1].isfinite().any()
    assert found[[0, 2, 3, 4]].isfinite().all()
    x[1] = 1
    weight[6, inputs - 1] = value
    found = product(x, weight, None)
    assert not found[:, 6].isfinite().any()
    assert found[:, :6].isfinite().all() and found[:, 7:].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_smallest_numbers_count_and_what_is_too_large_is_infinite(dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    x = torch.full((1, 40), 0.5, dtype=dtype)
    weight = torch.full((5, 40), smallest / 4, dtype=dtype)  # subnormal
    assert (product(x, weight, None) == smallest * 5).all()
    x, weight = torch.full((6, 1), 0.5, dtype=dtype), weight[:, :1]
    assert (product(x, weight, None) == smallest / 8).all()  # and so is the result
    x = torch.full((1, 40), torch.finfo(dtype).max, dtype=dtype)
    weight = torch.ones(5, 40, dtype=dtype)
    assert product(x, weight, None).isinf().all()


@needs_compiler
def test_a_weight_that_an_embedding_shares_stays_its_own() -> None:
    embedding = torch.nn.Embedding(30, 64, dtype=torch.bfloat16)
    head = Linear(64, 30, device="cpu", dtype=torch.bfloat16)
    head.weight = embedding.weight
    x = torch.randn(1, 64).to(torch.bfloat16)
    with torch.inference_mode():
        before = head(x)
        assert torch.equal(before, product(x, embedding.weight, None))
        embedding.weight[3] = 0  # also what is written later is read
        assert head(x)[0, 3] == 0 and torch.equal(head(x)[0, 4:], before[0, 4:])
    assert head.weight is embedding.weight and head.packed is None


def test_what_it_does_not_read_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = made(3, 64, 9, torch.bfloat16)
    across = weight.t().contiguous().t()
    assert fits(x, weight, bias)
    assert not fits(x, across, bias) and not fits(x, weight, bias.float())
    assert not fits(x.float(), weight.float(), None)
    assert torch.equal(product(x, across, bias), F.linear(x, across, bias))
    assert torch.equal(product(x.float(), weight.float(), None), x.float() @ weight.float().t())
    with pytest.raises(RuntimeError):
        product(x[:, :32], weight, None)
    leave_to_torch(monkeypatch)
    assert library() is None
    assert torch.equal(product(x, weight, bias), F.linear(x, weight, bias))
