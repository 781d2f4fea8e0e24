"""Quantized weights in any form: values and products are those of their codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels import tiled
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.quantized import make_weights
from engine.kernels.weights import ReorderedWeights, StackedWeights
from engine.numerics.codes import NF4_TABLE, Codes, IntCodes, TableCodes, stack
from engine.numerics.rounding import (
    round_asymmetric,
    round_fp8,
    round_int8,
    round_nf4,
    round_symmetric,
)
from tests.engine.kernels.compiled import (
    leave_to_torch,
    needs_compiler,
    quantize_groups,
    quantize_rows,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPSILON = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}

KINDS = {
    "int8": round_int8,
    "int8 in groups": lambda w: round_asymmetric(w, bits=8, group_size=24),
    "int4": lambda w: round_asymmetric(w, bits=4, group_size=64),
    "int4, symmetric": lambda w: round_symmetric(w, bits=4, group_size=32),
    "int4, groups of any size": lambda w: round_asymmetric(w, bits=4, group_size=40),
    "fp8": round_fp8,
    "fp8 per tensor": lambda w: round_fp8(w, per_output=False),
    "nf4": round_nf4,
    "nf4 across rows": lambda w: round_nf4(w, block_size=48),
}


def random(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs + seed)
    return torch.randn(outputs, inputs, generator=generator)


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(DTYPES),
    outputs=st.integers(1, 140),
    inputs=st.sampled_from([1, 40, 63, 64, 128, 192]),
    rows=st.integers(1, 70),
    has_bias=st.booleans(),
    tile_bytes=st.sampled_from([4, 20_000, 2**22]),
    is_compiled=st.booleans(),
)
def test_values_and_products_are_those_of_the_codes(
    kind: str,
    dtype: torch.dtype,
    outputs: int,
    inputs: int,
    rows: int,
    has_bias: bool,
    tile_bytes: int,
    is_compiled: bool,
) -> None:
    codes: Codes = KINDS[kind](random(outputs, inputs))
    x = random(rows, inputs, seed=1).to(dtype)
    bias = random(1, outputs, seed=2)[0].to(dtype) if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            leave_to_torch(patch)
        patch.setattr(tiled, "TILE_BYTES", tile_bytes)
        patch.setattr(tiled, "WIDE_TILE_BYTES", tile_bytes)
        held = make_weights([codes], dtype)
        found = held.product(x.view(1, rows, inputs), bias)
        assert torch.equal(held.dense(), codes.dequantize(dtype))  # bit by bit
    assert found.shape == (1, rows, outputs) and found.dtype == dtype
    seen = x.float()
    if isinstance(held, IntegerWeights) and isinstance(codes, IntCodes):
        if codes.is_int8_per_output:
            steps, scales = quantize_rows(x)
            seen = steps * scales
        else:
            seen = quantize_groups(x, codes.group_size)
    weight, offset = codes.dequantize(), None if bias is None else bias.float()
    expected = F.linear(seen, weight, offset)
    size = F.linear(seen.abs(), weight.abs()).max() + (0 if offset is None else offset.abs().max())
    assert float((found[0].float() - expected).abs().max()) <= EPSILON[dtype] * float(size) + 1e-6


@given(group_size=st.sampled_from([32, 64]), outputs=st.integers(1, 90), seed=st.integers(0, 9))
def test_columns_in_any_order_of_groups(group_size: int, outputs: int, seed: int) -> None:
    """GPTQ's desc_act: a column belongs to whatever group the file says."""
    generator = torch.Generator().manual_seed(seed)
    plain = round_asymmetric(random(outputs, 192), bits=4, group_size=group_size)
    order = torch.randperm(192, generator=generator)
    shuffled = replace(
        plain,
        codes=plain.codes[:, order],
        groups=plain.group_of_columns()[order].to(torch.int32),
    )
    assert torch.equal(shuffled.dequantize(), plain.dequantize()[:, order])
    held = make_weights([shuffled], torch.float32)
    assert isinstance(held, ReorderedWeights)
    assert torch.equal(held.dense(), shuffled.dequantize())
    x = random(3, 192)
    torch.testing.assert_close(held.product(x, None), F.linear(x, shuffled.dequantize()))
    in_order = replace(plain, groups=plain.group_of_columns().to(torch.int32))
    found, expected = (make_weights([codes], torch.float32) for codes in (in_order, plain))
    assert type(found) is type(expected)


def test_groups_of_unequal_sizes_are_refused() -> None:
    codes = round_asymmetric(random(4, 64), bits=4, group_size=32)
    with pytest.raises(ValueError, match="groups of"):
        replace(codes, groups=torch.zeros(64, dtype=torch.int32)).grouped()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_parts_are_joined_where_they_are_alike(kind: str) -> None:
    inputs = 192
    weights = [random(rows, inputs) for rows in (64, 96, 32)]
    parts = [KINDS[kind](weight) for weight in weights]
    expected = torch.cat([part.dequantize() for part in parts])
    joined = stack(parts)
    assert joined is not None and torch.equal(joined.dequantize(), expected)
    assert torch.equal(make_weights(parts, torch.float32).dense(), expected)
    mixed = [*parts, random(16, inputs)]
    held = make_weights(mixed, torch.float32)
    assert isinstance(held, StackedWeights) and held.shape == (208, inputs)
    assert torch.equal(held.dense(), torch.cat([expected, mixed[-1]]))  # type: ignore[list-item]
    x, bias = random(2, inputs), random(1, 208)[0]
    alone = [make_weights([part], torch.float32).product(x, None) for part in mixed]
    torch.testing.assert_close(held.product(x, bias), torch.cat(alone, dim=-1) + bias)


@needs_compiler
def test_a_token_s_result_does_not_depend_on_the_others() -> None:
    """Integers are summed exactly, so int8 is the same to the last bit in any batch."""
    held = make_weights([round_int8(random(96, 256))], torch.float32)
    x = random(40, 256)
    together = held.product(x, None)
    for rows in (1, 3, 17):
        assert torch.equal(held.product(x[:rows], None), together[:rows])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_in_its_own_row(value: float) -> None:
    held = make_weights([round_int8(random(32, 64))], torch.bfloat16)
    x = random(3, 64).to(torch.bfloat16)
    x[1, 5] = value
    found = held.product(x, None)
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all() and found[2].isfinite().all()
    x[1] = 0
    assert (held.product(x, None)[1] == 0).all()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_zeros_stay_zeros(kind: str) -> None:
    codes = KINDS[kind](torch.zeros(5, 64))
    assert (codes.dequantize() == 0).all()


def test_memory_is_that_of_the_bits() -> None:
    weight = random(1024, 1024)
    bfloat16 = 2 * weight.numel()
    share = {
        kind: make_weights([KINDS[kind](weight)], torch.bfloat16).nbytes / bfloat16
        for kind in ("int8", "int4", "nf4", "fp8")
    }
    assert share["int8"] < 0.505 and share["fp8"] < 0.505
    assert share["int4"] < 0.31 and share["nf4"] < 0.29
    large_groups = make_weights([round_asymmetric(weight, bits=4, group_size=128)], torch.bfloat16)
    assert large_groups.nbytes / bfloat16 < 0.28


def test_nf4_takes_the_nearest_of_its_values() -> None:
    weight = random(8, 64)
    codes = round_nf4(weight)
    table = torch.tensor(NF4_TABLE)
    distances = (weight / codes.scales.view(8, 1)).unsqueeze(-1) - table
    assert torch.equal(codes.codes.long(), distances.abs().argmin(-1))


def test_another_table_is_kept() -> None:
    """bitsandbytes' fp4 has 16 values of its own."""
    table = torch.linspace(-2, 3, 16)
    codes = torch.randint(0, 16, (4, 64), dtype=torch.uint8)
    held = make_weights([TableCodes(codes, torch.ones(4), 64, table)], torch.float32)
    assert torch.equal(held.dense(), table[codes.long()])


def test_eight_bits_with_zero_points_below_zero_of_a_signed_byte() -> None:
    codes = IntCodes(8, torch.tensor([[0, 255, 128, 7]], dtype=torch.uint8), torch.ones(1, 1),
                     torch.tensor([[200]], dtype=torch.uint8), 4)  # fmt: skip
    assert make_weights([codes], torch.float32).dense().tolist() == [[-200.0, 55.0, -72.0, -193.0]]
