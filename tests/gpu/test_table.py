"""Packed weights that are places in a table of 16 numbers (NF4, FP4), against plain numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.kernels import quantized
from engine.kernels.experts import Route, stacked
from engine.kernels.packed import FEW_ROWS, PackedWeights
from engine.kernels.packed_codes import Plan, fits
from engine.kernels.quantized import make_weights
from engine.kernels.tiled import TableWeights
from engine.numerics.codes import TableCodes
from engine.numerics.rounding import round_nf4
from tests.gpu.conftest import slow_without_gpu
from tests.gpu.packed_cases import DTYPES, ROWS, SCALE, assert_plain, quick, seeds
from tests.gpu.references import TOLERANCE, poison, random_rows, random_table, relative_error


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN: what no kernel wrote is seen."""
    poison(monkeypatch)


@quick
@given(
    seed=seeds, dtype=DTYPES, name=st.sampled_from(list(ROWS)), outputs=st.integers(1, 90),
    runs=st.integers(1, 9), block=st.sampled_from([32, 64, 128, 256, 512, 4096]),
    with_bias=st.booleans(),
)  # fmt: skip
def test_product_is_that_of_the_plain_weight(
    device: torch.device, seed: int, dtype: torch.dtype, name: str, outputs: int, runs: int,
    block: int, with_bias: bool,
) -> None:  # fmt: skip
    """Also where blocks of one scale run on from one row into the next."""
    outputs, inputs = outputs * SCALE, 32 * runs * SCALE
    codes = random_table(outputs, inputs, block, seed)
    assert fits(codes)
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
@given(seed=seeds, inputs=st.sampled_from([1, 3, 16, 24]), times=st.integers(1, 4))
def test_a_row_in_one_block(device: torch.device, seed: int, inputs: int, times: int) -> None:
    """However short: a block is of so many whole rows."""
    codes = random_table(10, inputs, inputs * times, seed)
    assert fits(codes)
    weights = PackedWeights(codes, torch.float32, device)
    x = random_rows(2, inputs, seed, torch.float32, device)
    assert relative_error(weights.product(x, None), x.cpu() @ codes.dequantize().t()) < 1e-5


@slow_without_gpu
@quick
@given(seed=seeds, splits=st.integers(2, 5), name=st.sampled_from(["one row", "few rows"]))
def test_splits_along_the_inputs_are_joined(
    device: torch.device, seed: int, splits: int, name: str
) -> None:
    """Also where the last programs have fewer blocks, or none."""
    from engine.kernels.triton import packed as kernels

    codes = random_table(40, 800, 64, seed)
    weights = PackedWeights(codes, torch.float32, device)
    x = random_rows(ROWS[name], 800, seed, torch.float32, device)
    product = kernels.one_row if name == "one row" else kernels.tiled
    found = product(x, weights.packed, None, Plan(32, splits, 4, 2))
    assert relative_error(found, x.cpu() @ codes.dequantize().t()) < 1e-5


@slow_without_gpu
@quick
@given(
    seed=seeds, tokens=st.sampled_from([1, 5, 30]), count=st.integers(1, 5),
    outputs=st.integers(1, 70), runs=st.integers(1, 9), dtype=DTYPES, is_shared=st.booleans(),
)  # fmt: skip
def test_each_pair_is_multiplied_with_its_expert(
    device: torch.device, seed: int, tokens: int, count: int, outputs: int, runs: int,
    dtype: torch.dtype, is_shared: bool,
) -> None:  # fmt: skip
    slots, inputs = 2, 32 * runs
    codes = [random_table(outputs, inputs, 64, seed + i) for i in range(count)]
    together = stacked([PackedWeights(one, dtype, device) for one in codes])
    assert together is not None
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, count, (tokens, slots), generator=generator)
    shared = slots if is_shared else 1
    x = random_rows(tokens * slots // shared, inputs, seed, dtype, device)
    found = together.product(x, Route(chosen.to(device), count), None, shared)
    plain = torch.stack([one.dequantize() for one in codes])
    rows = x.float().cpu()[torch.arange(tokens * slots) // shared]
    expected = torch.einsum("pi,poi->po", rows, plain[chosen.view(-1)])
    assert relative_error(found, expected) < TOLERANCE[dtype]


def test_experts_of_unlike_tables_stay_apart(device: torch.device) -> None:
    first, other = random_table(32, 64, 64, 0), random_table(32, 64, 64, 1)
    other = TableCodes(other.codes, other.scales, 64, other.table.flip(0))
    weights = [PackedWeights(codes, torch.half, device) for codes in (first, other)]
    assert stacked(weights) is None


def test_a_row_does_not_depend_on_the_rows_with_it(device: torch.device) -> None:
    """Up to FEW_ROWS rows; one row alone and larger tiles round differently."""
    weights = PackedWeights(random_table(48, 512, 64, 5), torch.bfloat16, device)
    x = random_rows(FEW_ROWS, 512, 3, torch.bfloat16, device)
    together = weights.product(x, None)
    for rows in (2, 3, FEW_ROWS - 1):
        assert torch.equal(weights.product(x[:rows], None), together[:rows])


def test_what_a_gpu_holds(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed where each run of 32 inputs has one scale; else made plain in each product."""
    monkeypatch.setattr(quantized, "is_usable", lambda device: True)
    parts = [round_nf4(torch.randn(64, 96)), round_nf4(torch.randn(32, 96))]
    weights = make_weights(parts, torch.bfloat16, device)
    assert type(weights) is PackedWeights and weights.shape == (96, 96)
    assert weights.title == "nf4, blocks of 64"
    assert weights.nbytes == 256 * 96 // 2 + 8 * 96 * 4 + 64  # filled up to 256 inputs
    other = make_weights([round_nf4(torch.randn(64, 100))], torch.bfloat16, device)
    assert type(other) is TableWeights


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(6144, 4096), (28672, 4096), (4096, 14336), (1000, 4128)])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 128, 129, 512])
def test_at_real_sizes(device: torch.device, shape: tuple[int, int], rows: int) -> None:
    codes = random_table(*shape, 64, 0)
    weights = PackedWeights(codes, torch.bfloat16, device)
    x = random_rows(rows, shape[1], 1, torch.bfloat16, device)
    expected = x.float() @ codes.dequantize().to(device).t()
    assert relative_error(weights.product(x, None), expected) < TOLERANCE[torch.bfloat16]
