"""What the tests of packed weights share: which cases are drawn, and how exact they are."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from engine.kernels.packed import PackedWeights
from tests.gpu.conftest import HAS_GPU
from tests.tiers import examples

SCALE = 8 if HAS_GPU else 1
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])
ROWS = {"one row": 1, "few rows": 5, "tile": 21, "stripes": 3}
"""Of the activations, by the implementation that multiplies them."""

quick = settings(
    max_examples=60 if HAS_GPU else examples(8), deadline=None, derandomize=not HAS_GPU,
    phases=[Phase.explicit, Phase.generate],  # to find a smaller example would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
seeds = st.integers(0, 2**31)


def assert_plain(weights: PackedWeights, plain: torch.Tensor) -> None:
    """Bit by bit but for bfloat16 in the interpreter, which cuts off where it should round."""
    if HAS_GPU or weights.dtype is not torch.bfloat16:
        assert torch.equal(weights.dense().cpu(), plain.to(weights.dtype))
    else:
        assert torch.allclose(weights.dense().float(), plain, rtol=2**-7, atol=0)
