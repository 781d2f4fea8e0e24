"""The small operations between matmuls, with one function each for every device.

Each is one launch of a Triton kernel on a GPU, and one call of compiled code on the CPU in 16 bits;
elsewhere torch computes the same.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu import elementwise
from engine.kernels.cpu.check import library
from engine.kernels.cpu.elementwise import HeadNorms as HeadNorms
from engine.kernels.cpu.library import FORMATS
from engine.kernels.triton.support import is_usable

_everywhere = False  # tests: Triton's kernels take the CPU's tensors too, in the interpreter


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x [..., width] / sqrt(mean(x^2) + eps) * (offset + weight [width]), in float32 inside."""
    if x.is_cuda or _everywhere:
        if _has_kernels(x):
            from engine.kernels.triton import fused

            return fused.rms_norm(x, weight, eps, offset)
        wide = weight.float() + offset if offset else weight
        return F.rms_norm(x.float() if offset else x, weight.shape, wide, eps).to(x.dtype)
    if _fits(x, weight) and (native := library()):
        return elementwise.rms_norm(native, x, weight, eps, offset)
    factors = _factors(weight, offset)
    return _normed(x, eps).mul_(factors).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(RMSNorm of residual + x, residual + x): the end of one half of a decoder layer and the
    beginning of the next."""
    if (x.is_cuda or _everywhere) and _has_kernels(x):
        from engine.kernels.triton import fused

        return fused.add_rms_norm(x, residual, weight, eps, offset)
    is_alike = residual.shape == x.shape and residual.dtype is x.dtype
    if is_alike and _fits(x, weight) and (native := library()):
        return elementwise.add_rms_norm(native, x, residual, weight, eps, offset)
    total = residual + x
    return rms_norm(total, weight, eps, offset), total


def rotate_heads(heads: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms | None = None) -> Tensor:
    """heads [T, H, D], queries beside keys, normed by `norms` and turned by cos, sin [T, R]."""
    if (heads.is_cuda or _everywhere) and _has_kernels(heads):
        from engine.kernels.triton import fused

        return fused.rotate_heads(heads, cos, sin, norms)
    weights = () if norms is None else (norms.queries, norms.keys)
    if _heads_fit(heads, cos, sin, *weights) and (native := library()):
        return elementwise.rotate_heads(native, heads, cos, sin, norms)
    if norms is not None:
        wide = _normed(heads, norms.eps)
        count = norms.num_queries
        wide[:, :count].mul_(_factors(norms.queries, norms.offset))
        wide[:, count:].mul_(_factors(norms.keys, norms.offset))
        heads = wide.to(heads.dtype)
    return rotate(heads, cos.unsqueeze(1), sin.unsqueeze(1))


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, of gate_up [..., 2 size], gate before up. May write into gate_up."""
    if (gate_up.is_cuda or _everywhere) and _has_kernels(gate_up):
        from engine.kernels.triton import fused

        return fused.silu_and_mul(gate_up)
    if _fits(gate_up) and (native := library()):
        return elementwise.silu_and_mul(native, gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)


def fuses_residual(device: str) -> bool:
    """Whether `add_rms_norm` is one operation on `device` (on the CPU: in 16 bits), and so worth
    the arranging."""
    is_compiled = device == "cpu" and library() is not None
    return _everywhere or is_compiled or is_usable(torch.device(device))


def _has_kernels(x: Tensor) -> bool:
    return _everywhere or is_usable(x.device)


def _fits(x: Tensor, *others: Tensor) -> bool:
    """Whether elementwise.c reads these: one 16-bit dtype, the others contiguous."""
    if x.dtype not in FORMATS or x.device.type != "cpu":
        return False
    return all(other.dtype is x.dtype and other.is_contiguous() for other in others)


def _heads_fit(heads: Tensor, *others: Tensor) -> bool:
    """The same for `rotate_heads`."""
    return heads.stride(2) == 1 and _fits(heads, *others)


def _normed(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), as a new float32 tensor."""
    # torch.rms_norm is a chain of passes here; the 2-norm reads x once. Everything is
    # float32 before it meets: operands of unlike dtypes are converted one by one. Not addcmul:
    # its last bit depends on the place of a row in the batch.
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    mean = torch.mul(norm, norm).mul_(_constant(1 / x.shape[-1]))
    scale = mean.add_(_constant(eps)).rsqrt_()
    return wide * scale if wide is x else wide.mul_(scale)  # x is the caller's


def _factors(weight: Tensor, offset: float) -> Tensor:
    """What a normed row is multiplied with, float32 [width]."""
    wide = weight.float()
    return wide + offset if offset else wide


@cache
def _constant(value: float) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin in three passes instead of five. x [..., T, D]; cos, sin
    broadcastable to it, their halves equal. For a rotary width below D the rest stays."""
    width = cos.shape[-1]
    half = width // 2
    turned = x if width == x.shape[-1] else x[..., :width]
    result = turned * cos
    result[..., :half].addcmul_(turned[..., half:], sin[..., :half], value=-1)
    result[..., half:].addcmul_(turned[..., :half], sin[..., half:])
    return result if turned is x else torch.cat((result, x[..., width:]), dim=-1)
