"""SiLU of the gate times the other half, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(x, out, size, x_stride, BLOCK: tl.constexpr):
    """out[row] = silu(x[row, :size]) * x[row, size : 2 * size], in float32 inside."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    place = x + row * x_stride + columns
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + size, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * size + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [..., 2 size], gate before up: [..., size]."""
    flat = gate_up.reshape(-1, gate_up.shape[-1])
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    rows, size = flat.shape[0], flat.shape[1] // 2
    out = flat.new_empty(rows, size)
    if rows:
        silu_and_mul_kernel[(rows, triton.cdiv(size, _BLOCK))](
            flat, out, size, flat.stride(0), _BLOCK, num_warps=4
        )
    return out.view(*gate_up.shape[:-1], size)
