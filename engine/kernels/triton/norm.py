"""RMSNorm in one pass, alone or with the addition of the residual before it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.support import next_power_of_2


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, width, x_stride, residual_stride, eps, offset,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = v / sqrt(mean(v^2) + eps) * (offset + weight), where v = x[row], or x[row] +
    residual[row], which `total` gets, rounded as it is."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        before = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
        rounded = (value + before.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row * width + columns, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + offset
    normed = value * scale * factor
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """x [..., width] normed over its last dimension and times offset + weight [width]."""
    flat = _rows(x)
    out = x.new_empty(flat.shape)
    _launch(flat, None, weight, out, None, eps, offset)
    return out.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    """(RMSNorm of x + residual, x + residual), both [..., width]."""
    flat, before = _rows(x), _rows(residual)
    out, total = x.new_empty(flat.shape), x.new_empty(flat.shape)
    _launch(flat, before, weight, out, total, eps, offset)
    return out.view(x.shape), total.view(x.shape)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, total: Tensor | None,
    eps: float, offset: float,
) -> None:  # fmt: skip
    rows, width = x.shape
    if not rows:
        return
    block = next_power_of_2(width)
    rms_norm_kernel[(rows,)](
        x, x if residual is None else residual, weight, out, out if total is None else total,
        width, x.stride(0), 0 if residual is None else residual.stride(0), eps, offset,
        residual is not None, block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    """[rows, width] with neighbouring columns; a view where it can be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()
