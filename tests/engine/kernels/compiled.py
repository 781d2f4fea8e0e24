"""The compiled CPU kernels (`engine.kernels.cpu`) in tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.cpu import build, check

PROCESSORS = {
    "haswell": "avx2",
    "alderlake": "avx_vnni",
    "x86-64-v4 -mavx512vnni": "avx512_vnni",
    f"x86-64-v4 -mavx512vnni -mavx512bf16 {build.BFLOAT16_DOTS}": "avx512_bf16",
    "native": "avx2",
}
"""As the compiler calls them, and what of /proc/cpuinfo each needs."""


def leave_to_torch(patch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    patch.setattr(check, "_find", lambda: check.Found(None, "no C compiler"))


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] as W8A8 products round it: integers from -127 to 127, and the scale [T, 1] of each
    row."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return (wide * (127.0 / largest) + 128.5).to(torch.uint8).int() - 128, largest / 127.0


def quantize_groups(x: Tensor, group: int) -> Tensor:
    """x [T, K] as products with weights in groups round it: to 8 bits, or to 16 in groups of inputs
    where one is more than 16 times the mean magnitude."""
    wide = x.float().view(len(x), -1, group)
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    stands_out = wide.abs().sum(-1, keepdim=True) * 16 < largest * group
    limit = torch.where(stands_out, 32512.0, 127.0)
    return ((wide * (limit / largest) + 0.5).floor() * (largest / limit)).view_as(x)


needs_compiler = pytest.mark.skipif(
    not build.is_expected(), reason="no C compiler, or no x86 processor with AVX2"
)
