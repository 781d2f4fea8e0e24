"""Weights in blocks hold the same values and give the same products as plain ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import dense
from engine.kernels import registry as select
from engine.kernels.dense import BLOCKED
from engine.kernels.linear import BlockedWeights, Linear
from engine.kernels.measure import Choice
from engine.kernels.registry import blocked_choices, choose_blocked

# float32 everywhere; 16-bit formats where this CPU has instructions for them
DTYPES = [d for d in (torch.float32, torch.bfloat16, torch.float16) if dense.supports_blocks(d)]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def filled(in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> Linear:
    layer = Linear(in_features, out_features, bias=bias, device="cpu", dtype=dtype)
    generator = torch.Generator().manual_seed(in_features)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    return layer


@settings(max_examples=30)
@given(
    rows=st.integers(1, 300),
    in_features=st.sampled_from([64, 128, 192]),
    out_features=st.sampled_from([64, 320]),
    has_bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(sorted(BLOCKED)),
)
def test_the_product_is_that_of_the_plain_weight(
    rows: int, in_features: int, out_features: int, has_bias: bool, dtype: torch.dtype, name: str
) -> None:
    layer = filled(in_features, out_features, has_bias, dtype)
    x = torch.randn(rows, in_features).to(dtype)
    bias = None if layer.bias is None else layer.bias.float()
    expected = F.linear(x.float(), layer.weight.float(), bias)
    weight = dense.block(layer.weight)
    found = BLOCKED[name](x, weight, layer.bias)
    assert found.dtype == dtype and found.is_contiguous()
    torch.testing.assert_close(
        found.float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_gives_up_its_plain_weight_and_still_shows_it(dtype: torch.dtype) -> None:
    layer = filled(128, 192, True, dtype)
    plain = layer.weight.detach().clone()
    x = torch.randn(2, 3, 256).to(dtype)[..., ::2]  # strided, with leading dimensions
    before = layer(x)
    layer.pack(BlockedWeights(layer.weight))
    assert not layer.is_quantized and layer.packed_bytes == plain.nbytes
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    assert torch.equal(layer.weight, plain)  # bit by bit
    after = layer(x)
    assert after.shape == before.shape == (2, 3, 192)
    torch.testing.assert_close(after, before, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    with pytest.raises(AttributeError, match="no attribute"):
        layer.absent  # noqa: B018


@pytest.mark.parametrize("shape", [(64, 65), (100, 64), (64,), (2, 64, 64)])
def test_what_would_take_more_memory_in_blocks_stays_plain(shape: tuple[int, ...]) -> None:
    assert not dense.fits_in_blocks(torch.empty(shape))
    assert dense.fits_in_blocks(torch.empty(64, 128))


def test_a_format_that_onednn_lacks_is_not_supported() -> None:
    assert not dense.supports_blocks(torch.float64)
    assert blocked_choices(torch.float64) == ()


@pytest.mark.parametrize(
    ("one_row", "eight_rows", "is_taken"),
    [(0.6, 0.6, True), (0.6, 0.99, True), (0.95, 0.95, False), (1.1, 0.3, False)],
)
def test_blocks_have_to_pay_and_to_slow_nothing_down(
    monkeypatch: pytest.MonkeyPatch, one_row: float, eight_rows: float, is_taken: bool
) -> None:
    def measured(candidates: tuple[str, ...], dtype: object, rows: int, *_: object) -> object:
        share = {1: one_row, 8: eight_rows}.get(rows, 1.0)
        times = {"torch": 1.0, "onednn": share, "unblocked": 1.2 if rows < 256 else 0.7}
        return {key: times[key] for key in candidates}

    plain = (Choice("linear", "bfloat16", 1, "torch", ""),)
    monkeypatch.setattr(dense, "supports_blocks", lambda dtype: True)
    monkeypatch.setattr(select, "linear_ms", measured)
    monkeypatch.setattr(select, "_linear_choices", lambda dtype: plain)
    select._blocked_choices.cache_clear()
    try:
        found = [(c.rows, c.implementation) for c in blocked_choices(torch.bfloat16)]
        assert found == ([(1, "onednn"), (256, "unblocked")] if is_taken else [])
        chosen = [choose_blocked(torch.bfloat16, rows) for rows in (0, 1, 255, 256, 9999)]
        assert chosen == ["onednn"] * 3 + (["unblocked"] * 2 if is_taken else ["onednn"] * 2)
    finally:
        select._blocked_choices.cache_clear()
