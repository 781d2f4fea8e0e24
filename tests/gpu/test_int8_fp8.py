"""Weights of 8 bits with a scale per output: integers exactly, float8 as its numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.tiers import examples

pytest.importorskip("triton")

from engine.kernels import quantized
from engine.kernels.packed import PackedWeights
from engine.kernels.per_channel import Fp8PerChannel, Int8PerChannel
from engine.kernels.quantized import make_weights
from engine.kernels.tiled import GroupedWeights
from engine.kernels.triton import per_channel
from engine.numerics.rounding import round_asymmetric, round_int8
from tests.engine.kernels.compiled import quantize_rows
from tests.gpu.conftest import HAS_GPU
from tests.gpu.references import TOLERANCE, poison, random_floats, random_rows, relative_error

DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])
quick = settings(
    max_examples=60 if HAS_GPU else examples(10), deadline=None, derandomize=not HAS_GPU,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, or a number that no product gives."""
    poison(monkeypatch)


@quick
@given(seed=seeds, dtype=DTYPES, rows=st.integers(1, 6), width=st.integers(1, 300))
def test_rows_are_rounded_as_on_the_cpu(
    device: torch.device, seed: int, dtype: torch.dtype, rows: int, width: int
) -> None:
    x = random_rows(rows, width, seed, dtype, device)
    x[0] *= 0
    filled = -(-width // 16) * 16
    values, scales = per_channel.quantize_rows(x, filled, torch.int8)
    expected, expected_scales = quantize_rows(x.cpu())
    assert not values[:, width:].any()
    # a division that is rounded otherwise may move a number that lies on the edge by one step
    steps = values[:, :width].cpu().int() - expected
    assert steps.abs().max() <= 1 and (steps != 0).float().mean() < 0.02
    assert torch.allclose(scales.cpu(), expected_scales)


def test_what_is_not_finite_reaches_the_result(device: torch.device) -> None:
    x = torch.ones(4, 40, device=device)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    weights = Int8PerChannel(round_int8(torch.eye(40)), torch.float32, device)
    found = weights.product(x, None).isfinite().all(dim=1)
    assert found.tolist() == [True, False, False, True]


@quick
@given(
    seed=seeds, dtype=DTYPES, rows=st.integers(1, 80), outputs=st.integers(1, 90),
    inputs=st.integers(1, 300), name=st.sampled_from(["triton", "torch"]), with_bias=st.booleans(),
)  # fmt: skip
def test_int8_is_the_product_of_the_rounded_numbers(
    device: torch.device, seed: int, dtype: torch.dtype, rows: int, outputs: int, inputs: int,
    name: str, with_bias: bool,
) -> None:  # fmt: skip
    rows = max(rows, 17) if name == "torch" else min(rows, 20)
    codes = round_int8(random_rows(outputs, inputs, seed, torch.float32, torch.device("cpu")))
    weights = Int8PerChannel(codes, dtype, device)
    x = random_rows(rows, inputs, seed, dtype, device)
    bias = random_rows(1, outputs, seed + 3, dtype, device)[0] if with_bias else None
    values, scales = per_channel.quantize_rows(x, inputs, torch.int8)
    expected = (values.cpu().double() * scales.cpu()) @ codes.dequantize().double().t()
    expected += 0 if bias is None else bias.cpu().double()
    found = weights.by_name(name, x, bias)
    assert found.shape == (rows, outputs)
    assert relative_error(found, expected) < TOLERANCE[dtype]


def test_a_row_of_int8_does_not_depend_on_the_others(device: torch.device) -> None:
    """Nor on which kernel adds its integers up."""
    generator = torch.Generator().manual_seed(3)
    codes = round_int8(torch.randn(48, 256, generator=generator))
    weights = Int8PerChannel(codes, torch.float32, device)
    x = random_rows(70, 256, 1, torch.float32, device)
    together = weights.product(x, None)
    assert weights.choose(70) == "torch" and weights.choose(3) == "triton"
    for rows in (1, 3, 17):
        assert torch.equal(weights.product(x[:rows], None), together[:rows])


def test_a_row_of_int8_looked_up_is_that_of_the_weight(device: torch.device) -> None:
    weights = Int8PerChannel(round_int8(torch.randn(50, 20)), torch.float32, device)
    tokens = torch.tensor([3, 49, 3, 0], device=device)
    assert torch.equal(weights.rows(tokens), weights.dense()[tokens])


@quick
@given(seed=seeds, rows=st.integers(1, 20), outputs=st.integers(1, 6), inputs=st.integers(1, 18))
def test_float8_by_rows(
    device: torch.device, seed: int, rows: int, outputs: int, inputs: int
) -> None:
    codes = random_floats(16 * outputs, 16 * inputs, (1, 16 * inputs), seed)
    weights = Fp8PerChannel(codes, torch.bfloat16, device)
    x = random_rows(rows, 16 * inputs, seed, torch.bfloat16, device)
    expected = x.float().cpu() @ codes.dequantize().t()
    assert relative_error(weights.by_name("triton", x, None), expected) < 1.2e-2
    assert torch.equal(weights.dense().cpu(), codes.dequantize(torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [65, 500, 2048])
def test_float8_by_torch(device: torch.device, rows: int) -> None:
    codes = random_floats(4096, 2048, (1, 2048), rows)
    if not Fp8PerChannel.fits(codes, torch.bfloat16, device):
        pytest.skip("no float8 products on this GPU")
    weights = Fp8PerChannel(codes, torch.bfloat16, device)
    x = random_rows(rows, 2048, 5, torch.bfloat16, device)
    bias = random_rows(1, 4096, 6, torch.bfloat16, device)[0]
    expected = x.float() @ codes.dequantize().to(device).t() + bias
    assert relative_error(weights.product(x, bias), expected) < 4e-2  # activations in 8 bits


def test_every_kind_of_codes_finds_its_kernel(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(quantized, "is_usable", lambda device: True)
    plain = torch.randn(64, 128)
    kinds = {
        Int8PerChannel: round_int8(plain),
        PackedWeights: round_asymmetric(plain, bits=4, group_size=64),
        Fp8PerChannel: random_floats(64, 128, (1, 128), 0),
        GroupedWeights: round_asymmetric(plain, bits=4, group_size=40),
    }
    for kind, codes in kinds.items():
        weights = make_weights([codes], torch.bfloat16, device)
        assert type(weights) is kind
        x = random_rows(3, 128, 0, torch.bfloat16, device)
        expected = x.float().cpu() @ codes.dequantize().t()
        assert relative_error(weights.product(x, None), expected) < 2e-2
    blocks = make_weights([random_floats(64, 256, (32, 128), 0)], torch.bfloat16, device)
    assert type(blocks) is PackedWeights
    rows = make_weights([random_floats(64, 128, (1, 128), 0)], torch.half, device)
    assert type(rows) is PackedWeights


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, 65, 500])
def test_at_real_sizes(device: torch.device, rows: int) -> None:
    codes = round_int8(torch.randn(6144, 4096))
    weights = Int8PerChannel(codes, torch.bfloat16, device)
    x = random_rows(rows, 4096, 1, torch.bfloat16, device)
    expected = x.float() @ codes.dequantize().to(device).t()
    assert relative_error(weights.product(x, None), expected) < 2e-2
