"""Packed weights of 4 and 8 bits and of float8: each implementation against plain numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.kernels import packed as gpu_plans
from engine.kernels import packed_codes, registry
from engine.kernels.packed import FEW_ROWS, TILE_ROWS, PackedWeights
from engine.kernels.packed_codes import Plan
from engine.kernels.quantized import make_weights
from engine.kernels.weights import ReorderedWeights
from engine.numerics.codes import IntCodes
from tests.gpu.conftest import slow_without_gpu
from tests.gpu.packed_cases import DTYPES, ROWS, SCALE, assert_plain, quick, seeds
from tests.gpu.references import (
    TOLERANCE,
    poison,
    random_floats,
    random_ints,
    random_rows,
    relative_error,
)

NAMES = ("one row", "few rows", "tile", "stripes")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN: what no kernel wrote is seen."""
    poison(monkeypatch)


@quick
@given(
    seed=seeds, dtype=DTYPES, bits=st.sampled_from([4, 8]), name=st.sampled_from(NAMES),
    outputs=st.integers(1, 90), inputs=st.integers(1, 400),
    group=st.sampled_from([32, 64, 96, 128, 256, 10_000]), with_zeros=st.booleans(),
    with_bias=st.booleans(),
)  # fmt: skip
def test_product_is_that_of_the_plain_weight(
    device: torch.device, seed: int, dtype: torch.dtype, bits: int, name: str, outputs: int,
    inputs: int, group: int, with_zeros: bool, with_bias: bool,
) -> None:  # fmt: skip
    outputs, inputs = outputs * SCALE, inputs * SCALE
    codes = random_ints(bits, outputs, inputs, group, seed, with_zeros=with_zeros)
    weights = PackedWeights(codes, dtype, device)
    x = random_rows(ROWS[name], inputs, seed, dtype, device)
    bias = random_rows(1, outputs, seed + 7, dtype, device)[0] if with_bias else None
    found = weights.by_name(name, x, bias)
    plain = codes.dequantize()
    expected = x.float().cpu() @ plain.t()
    expected += 0 if bias is None else bias.float().cpu()
    assert relative_error(found, expected) < TOLERANCE[dtype]
    assert_plain(weights, plain)


@quick
@given(
    seed=seeds, name=st.sampled_from(NAMES), outputs=st.integers(1, 90),
    inputs=st.integers(1, 400), block=st.sampled_from([(1, 10_000), (10_000, 10_000), (128, 128)]),
)  # fmt: skip
def test_float8_is_multiplied_as_it_is(
    device: torch.device, seed: int, name: str, outputs: int, inputs: int, block: tuple[int, int]
) -> None:
    codes = random_floats(outputs, inputs, block, seed)
    weights = PackedWeights(codes, torch.bfloat16, device)
    x = random_rows(ROWS[name], inputs, seed, torch.bfloat16, device)
    expected = x.float().cpu() @ codes.dequantize().t()
    assert relative_error(weights.by_name(name, x, None), expected) < TOLERANCE[torch.bfloat16]
    assert_plain(weights, codes.dequantize())


@slow_without_gpu
@quick
@given(seed=seeds, splits=st.integers(2, 5), name=st.sampled_from(["one row", "few rows"]))
def test_splits_along_the_inputs_are_joined(
    device: torch.device, seed: int, splits: int, name: str
) -> None:
    """Also where the last programs have fewer blocks, or none."""
    from engine.kernels.triton import packed as kernels

    codes = random_ints(4, 40, 800, 128, seed, with_zeros=True)
    weights = PackedWeights(codes, torch.float32, device)
    x = random_rows(ROWS[name], 800, seed, torch.float32, device)
    product = kernels.one_row if name == "one row" else kernels.tiled
    found = product(x, weights.packed, None, Plan(32, splits, 4, 2))
    assert relative_error(found, x.cpu() @ codes.dequantize().t()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_row_does_not_depend_on_the_rows_with_it(
    device: torch.device, dtype: torch.dtype
) -> None:
    """Up to FEW_ROWS rows; one row alone and larger tiles round differently."""
    weights = PackedWeights(random_ints(4, 48, 512, 64, 5, with_zeros=True), dtype, device)
    x = random_rows(FEW_ROWS, 512, 3, dtype, device)
    together = weights.product(x, None)
    for rows in (2, 3, FEW_ROWS - 1):
        assert torch.equal(weights.product(x[:rows], None), together[:rows])


def test_implementation_by_number_of_rows(device: torch.device) -> None:
    weights = PackedWeights(random_ints(4, 16, 64, 32, 0, with_zeros=False), torch.half, device)
    assert weights.choose(1) == "one row"
    assert weights.choose(2) == weights.choose(FEW_ROWS) == "few rows"
    assert weights.choose(FEW_ROWS + 1) == weights.choose(TILE_ROWS) == "tile"
    assert weights.choose(TILE_ROWS + 1) == "stripes"


def test_inputs_of_any_shape_and_strides(device: torch.device) -> None:
    codes = random_ints(4, 24, 64, 32, 11, with_zeros=True)
    weights = PackedWeights(codes, torch.float32, device)
    x = random_rows(6, 64, 2, torch.float32, device)
    expected = (x.cpu() @ codes.dequantize().t()).view(2, 3, 24)
    turned = x.t().contiguous().t().view(2, 3, 64)
    assert relative_error(weights.product(turned, None), expected) < 1e-5


def test_by_activation_order(device: torch.device) -> None:
    """GPTQ's desc_act: columns in the order of their groups, and the order beside them."""
    codes = random_ints(4, 40, 128, 32, 3, with_zeros=True)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(9))
    groups = (torch.arange(128) // 32).to(torch.int32)[order]
    mixed = IntCodes(4, codes.codes, codes.scales, codes.zeros, 32, groups)
    ordered, found = mixed.grouped()
    assert found is not None
    weights = ReorderedWeights(PackedWeights(ordered, torch.float32, device), found.to(device))
    x = random_rows(4, 128, 1, torch.float32, device)
    assert relative_error(weights.product(x, None), x.cpu() @ mixed.dequantize().t()) < 1e-5
    assert torch.equal(weights.dense().cpu(), mixed.dequantize())


def test_packing_some_rows_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_ints(4, 50, 300, 64, 1, with_zeros=True)
    whole = packed_codes.pack(codes, torch.device("cpu"))
    monkeypatch.setattr(packed_codes, "_AT_ONCE", 512 * 7)
    assert torch.equal(packed_codes.pack(codes, torch.device("cpu")).words, whole.words)


def test_memory_is_that_of_the_bits(device: torch.device) -> None:
    weights = PackedWeights(random_ints(4, 64, 1024, 128, 0, with_zeros=True), torch.half, device)
    assert weights.nbytes == 64 * 1024 // 2 + 64 * 8 * 3
    assert weights.title == "int4, groups of 128"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(6144, 4096), (28672, 4096), (4096, 14336), (1000, 4100)])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 128, 129, 512])
def test_at_real_sizes(device: torch.device, shape: tuple[int, int], rows: int) -> None:
    codes = random_ints(4, *shape, 128, 0, with_zeros=True)
    weights = PackedWeights(codes, torch.bfloat16, device)
    x = random_rows(rows, shape[1], 1, torch.bfloat16, device)
    expected = x.float() @ codes.dequantize().to(device).t()
    assert relative_error(weights.product(x, None), expected) < TOLERANCE[torch.bfloat16]


def test_fewer_rows_in_tiles_where_that_was_measured(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = PackedWeights(random_ints(4, 16, 64, 32, 0, with_zeros=False), torch.half, device)
    monkeypatch.setitem(gpu_plans.measured_tile_rows, gpu_plans.family(weights.packed), 32)
    assert (weights.choose(32), weights.choose(33)) == ("tile", "stripes")


@pytest.mark.gpu
def test_rows_in_tiles_are_measured_at_load(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_plans, "measured_tile_rows", {})
    codes = random_ints(4, 4096, 4096, 128, 0, with_zeros=True)
    weights = make_weights([codes], torch.bfloat16, device)
    assert isinstance(weights, PackedWeights)
    assert next(iter(gpu_plans.measured_tile_rows.values())) in (FEW_ROWS, 32, 64, TILE_ROWS)


def test_choices_for_people(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(registry, "problem", lambda device: "")
    found = registry.gpu_choices(device)
    by_rows = {c.rows: c.implementation for c in found if "packed" in c.operation}
    weights = PackedWeights(random_ints(4, 16, 64, 32, 0, with_zeros=False), torch.half, device)
    assert all(weights.choose(rows) == name for rows, name in by_rows.items())
    assert all(choice.reason for choice in found)
