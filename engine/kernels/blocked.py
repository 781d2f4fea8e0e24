"""Weights in the order in which oneDNN's products read them.

A plain weight is [out, in], row after row; oneDNN cuts it into small blocks, so that a product
reads memory once and straight on. With a plain weight torch takes a kernel that reads it badly. In
blocks the product of a few rows (decoding) comes near what memory gives: on an Intel CPU with
AVX-512 BF16, 3072 x 1024 in bfloat16, one row takes 0.30 ms in place of 0.47 (reading alone 0.24),
eight rows 0.51 in place of 0.75. The plain weight is given up, so memory stays the same.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from engine.kernels.tiled import many_rows

MULTIPLE = 64
"""oneDNN fills dimensions up to its block sizes; multiples of this need no filling."""


def fits(weight: torch.Tensor) -> bool:
    """Whether `weight` [out, in] takes no more memory in blocks."""
    return weight.dim() == 2 and not any(size % MULTIPLE for size in weight.shape)


def block(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [out, in] in blocks: an opaque tensor, of use to `product` and `unblock` alone."""
    blocked: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return blocked


def unblock(blocked: torch.Tensor) -> torch.Tensor:
    """The plain weight [out, in], bit by bit."""
    return blocked.to_dense()


def product(x: torch.Tensor, blocked: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, blocked, bias, "none", [], "")
    return result


def unblocked(x: torch.Tensor, blocked: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`product` with the weight made plain again first, which pays for many rows."""
    plain = unblock(blocked)
    return many_rows(
        x, lambda tile, start: tile.copy_(plain[start : start + len(tile)]), len(plain), bias
    )


IMPLEMENTATIONS = {"onednn": product, "unblocked": unblocked}
"""For weights in blocks."""


@cache
def is_supported(dtype: torch.dtype) -> bool:
    """Whether torch has these operations for `dtype` on this CPU and they compute what they should.

    They are not part of torch's public interface (its compiler uses them), so they are tried.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2 * MULTIPLE, MULTIPLE, generator=generator).to(dtype)
    x = torch.randn(3, MULTIPLE, generator=generator).to(dtype)
    try:
        blocked = block(weight)
        found = product(x, blocked, None)
        if not torch.equal(unblock(blocked), weight):
            return False
    except (AttributeError, RuntimeError):  # torch lacks them, or has them not for `dtype`
        return False
    expected = F.linear(x.float(), weight.float())
    tolerance = 1e-4 if dtype is torch.float32 else 0.02
    return torch.allclose(found.float(), expected, rtol=tolerance, atol=tolerance * 8)
