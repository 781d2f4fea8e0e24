"""A minimal kernel that tests whether Triton compiles and runs on a device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_one_kernel(number):
    tl.store(number, tl.load(number) + 1)


def runs_on(device: torch.device) -> bool:
    """Raises whatever Triton does where it cannot compile: it needs a C compiler, too."""
    number = torch.zeros(1, dtype=torch.int32, device=device)
    with torch.cuda.device(device):  # Triton launches on the thread's, which may be another
        add_one_kernel[(1,)](number)
    return int(number) == 1
