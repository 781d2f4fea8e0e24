"""The small operations between products, in Triton, against torch's in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.tiers import examples

pytest.importorskip("triton")

from engine.kernels import ops
from tests.gpu.conftest import HAS_GPU
from tests.gpu.references import poison, random_rows, relative_error

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = st.sampled_from(list(TOLERANCE))
quick = settings(
    max_examples=80 if HAS_GPU else examples(15), deadline=None, derandomize=not HAS_GPU,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's, with NaN in what no kernel wrote."""
    monkeypatch.setattr(ops, "_everywhere", True)
    poison(monkeypatch)


def normed(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    wide = x.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * scale * (weight.double() + offset)


@quick
@given(
    seed=seeds, dtype=DTYPES, rows=st.integers(0, 9), width=st.integers(1, 700),
    offset=st.sampled_from([0.0, 1.0]), is_slice=st.booleans(),
)  # fmt: skip
def test_rms_norm(
    device: torch.device, seed: int, dtype: torch.dtype, rows: int, width: int, offset: float,
    is_slice: bool,
) -> None:  # fmt: skip
    x = random_rows(rows, width + 5, seed, dtype, device)
    x = x[:, 3 : 3 + width] if is_slice else x[:, :width].contiguous()
    weight = random_rows(1, width, seed + 1, dtype, device)[0]
    found = ops.rms_norm(x, weight, 1e-6, offset)
    assert found.shape == x.shape and found.dtype is dtype
    if rows:
        assert relative_error(found, normed(x, weight, 1e-6, offset)) < TOLERANCE[dtype]


@quick
@given(seed=seeds, dtype=DTYPES, rows=st.integers(1, 9), width=st.integers(1, 700))
def test_rms_norm_with_the_residual(
    device: torch.device, seed: int, dtype: torch.dtype, rows: int, width: int
) -> None:
    x, residual = (random_rows(rows, width, seed + i, dtype, device) for i in range(2))
    weight = random_rows(1, width, seed + 5, dtype, device)[0]
    found, total = ops.add_rms_norm(x[None], residual[None], weight, 1e-5)
    assert found.shape == total.shape == (1, rows, width)
    assert relative_error(total[0], residual.double() + x.double()) < TOLERANCE[dtype]
    assert relative_error(found[0], normed(total[0], weight, 1e-5, 0.0)) < TOLERANCE[dtype]


@quick
@given(
    seed=seeds, dtype=DTYPES, tokens=st.integers(0, 6), queries=st.integers(1, 9),
    keys=st.integers(1, 4), half=st.integers(1, 40), rest=st.integers(0, 9) | st.just(0),
    has_norm=st.booleans(), offset=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_queries_and_keys_are_normed_and_turned(
    device: torch.device, seed: int, dtype: torch.dtype, tokens: int, queries: int, keys: int,
    half: int, rest: int, has_norm: bool, offset: float,
) -> None:  # fmt: skip
    """Also where only a part of a head is turned, and from a slice of a packed product."""
    width, count = 2 * half + rest, queries + keys
    packed = random_rows(tokens, (count + keys) * width, seed, dtype, device)
    heads = packed[:, : count * width].view(tokens, count, width)
    angles = torch.rand(tokens, half, generator=torch.Generator().manual_seed(seed)).repeat(1, 2)
    cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
    weights = [random_rows(1, width, seed + i, dtype, device)[0] for i in (1, 2)]
    norms = ops.HeadNorms(*weights, queries, 1e-6, offset) if has_norm else None
    expected = heads.double()
    if has_norm:
        first, second = expected[:, :queries], expected[:, queries:]
        parts = (normed(first, weights[0], 1e-6, offset), normed(second, weights[1], 1e-6, offset))
        expected = torch.cat(parts, dim=1)
    expected = ops.rotate(expected, cos.double()[:, None], sin.double()[:, None])
    found = ops.rotate_heads(heads, cos, sin, norms)
    assert found.shape == heads.shape and found.dtype is dtype
    if tokens:
        assert relative_error(found, expected) < TOLERANCE[dtype]


@quick
@given(seed=seeds, dtype=DTYPES, rows=st.integers(0, 7), size=st.integers(1, 1500))
def test_silu_and_mul(
    device: torch.device, seed: int, dtype: torch.dtype, rows: int, size: int
) -> None:
    gate_up = random_rows(rows, 2 * size, seed, dtype, device).mul_(4)
    expected = F.silu(gate_up[:, :size].double()) * gate_up[:, size:].double()
    found = ops.silu_and_mul(gate_up[None])[0]
    assert found.shape == (rows, size)
    if rows:
        assert relative_error(found, expected) < TOLERANCE[dtype]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_extreme_gates_stay_finite(device: torch.device) -> None:
    gate = torch.tensor([[-1e4, -88.0, 0.0, 88.0, 1e4]], device=device)
    found = ops.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    assert torch.allclose(found.cpu(), F.silu(gate.cpu()))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_at_real_sizes(device: torch.device, rows: int) -> None:
    x, residual = (random_rows(rows, 4096, i, torch.bfloat16, device) for i in range(2))
    weight = random_rows(1, 4096, 5, torch.bfloat16, device)[0]
    found, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, residual + x)
    assert relative_error(found, normed(total, weight, 1e-5, 0.0)) < 8e-3
    gate_up = random_rows(rows, 28672, 2, torch.bfloat16, device)
    expected = F.silu(gate_up[:, :14336].double()) * gate_up[:, 14336:].double()
    assert relative_error(ops.silu_and_mul(gate_up), expected) < 8e-3
