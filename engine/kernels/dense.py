"""Matmuls with unquantized weights: every implementation that may be the fastest on some machine.

    y[..., out] = x[..., in] @ weight[out, in]^T + bias[out]

torch        torch's own
transposed   W @ x^T
upcast       16-bit weights, converted tile by tile and multiplied in float32
upcast_wide  the same for many rows
native       16-bit weights by compiled code (`plain.c`)
tiles        bfloat16 weights by compiled code (`tiled.c`), for several rows

Blocked weights: oneDNN reads a weight in small blocks, once and sequentially, where a plain one is
row-major. On an Intel CPU with AVX-512 BF16, 3072 x 1024 in bfloat16, one row takes 0.30 ms instead
of 0.47 (reading alone 0.24), eight rows 0.51 instead of 0.75. The plain weight is freed, so memory
use stays the same.

onednn       with blocked weights
unblocked    converts them back first, which is faster for many rows
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import FORMATS
from engine.kernels.tiled import Fill, few_rows, many_rows, widened

Implementation = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def transposed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """For a few rows some CPUs' libraries split the weight over their threads well, and the
    activations badly."""
    flat = x.reshape(-1, x.shape[-1])
    product = torch.mm(weight, widened(flat).t()).t()
    result = product[: len(flat)].contiguous()
    if bias is not None:
        result += bias
    return result.view(*x.shape[:-1], weight.shape[0])


def upcast(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """16-bit weights multiplied in float32: tiles of the weight are converted into a scratch buffer
    that stays in the cache, and multiplied there, W @ x^T. Accumulates in float32.

    For CPUs without 16-bit products, and for some that have them: an Intel CPU with AVX-512 BF16
    and without AMX computes 330 GFLOP/s in float32 and 172 in bfloat16.
    """
    return few_rows(x, _converted(weight), weight.shape[0], bias)


def upcast_wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`upcast` for many rows (prefill): x @ W^T, so the result needs no transpose."""
    return many_rows(x, _converted(weight), weight.shape[0], bias)


def _converted(weight: Tensor) -> Fill:
    return lambda tile, start: tile.copy_(weight[start : start + len(tile)])


def native(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Added up in float32 and rounded once, by compiled code; torch's product where there is none,
    or for operands that `native_fits` refuses.

    The weight is read where it lies, once for a few rows: nothing is packed, and a weight that an
    embedding shares, or that is a part of another, stays what it is. A row's result depends on no
    other row and not on how many there are, bit by bit.
    """
    return _compiled("plain", native_fits, x, weight, bias)


def tiles(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`native` in tiles: every row added up in one order, which is another than `native`'s.
    torch's product where there are none, or for operands that they do not fit."""
    return _compiled("tiled", tiles_fit, x, weight, bias)


def _compiled(
    name: str, fits: Callable[..., bool], x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """The product that `Library` has under this name, of operands that fit it."""
    compiled = library()
    if compiled is None or not fits(x, weight, bias):
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    result: Tensor = getattr(compiled, name)(x.reshape(-1, inputs).contiguous(), weight, bias)
    return result.view(*x.shape[:-1], outputs)


def tiles_fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether tiled.c multiplies these: bfloat16, whole tiles."""
    outputs, inputs = weight.shape
    compiled = library()
    is_whole = outputs > 0 and inputs > 0 and inputs % 32 == 0
    has_tiles = compiled is not None and compiled.has_tiles and x.dtype is torch.bfloat16
    return has_tiles and is_whole and native_fits(x, weight, bias)


def native_fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether plain.c reads these: one 16-bit dtype, rows of contiguous numbers."""
    return (
        weight.dtype in FORMATS
        and weight.device.type == "cpu"
        and x.dtype is weight.dtype
        and x.shape[-1] == weight.shape[1]
        and (weight.stride(1) == 1 or weight.shape[1] == 1)
        and (bias is None or (bias.dtype is weight.dtype and bias.is_contiguous()))
    )


IMPLEMENTATIONS: dict[str, Implementation] = {
    "torch": F.linear,
    "transposed": transposed,
    "upcast": upcast,
    "upcast_wide": upcast_wide,
    "native": native,
    "tiles": tiles,
}


MULTIPLE = 64
"""oneDNN fills dimensions up to its block sizes; multiples of this need no filling."""


def fits_in_blocks(weight: Tensor) -> bool:
    """Whether `weight` [out, in] takes no more memory in blocks."""
    return weight.dim() == 2 and not any(size % MULTIPLE for size in weight.shape)


def block(weight: Tensor) -> Tensor:
    """`weight` [out, in] in blocks: an opaque tensor, of use to `onednn` and `unblock` alone."""
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return blocked


def unblock(blocked: Tensor) -> Tensor:
    """The plain weight [out, in], bit by bit."""
    return blocked.to_dense()


def onednn(x: Tensor, blocked: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, blocked, bias, "none", [], "")
    return result


def unblocked(x: Tensor, blocked: Tensor, bias: Tensor | None) -> Tensor:
    return upcast_wide(x, unblock(blocked), bias)


BLOCKED: dict[str, Implementation] = {"onednn": onednn, "unblocked": unblocked}
"""For weights in blocks."""


@cache
def supports_blocks(dtype: torch.dtype) -> bool:
    """Whether torch has these operations for `dtype` on this CPU and they compute what they should.

    They are not part of torch's public interface (its compiler uses them), so they are tried.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2 * MULTIPLE, MULTIPLE, generator=generator).to(dtype)
    x = torch.randn(3, MULTIPLE, generator=generator).to(dtype)
    try:
        blocked = block(weight)
        found = onednn(x, blocked, None)
        if not torch.equal(unblock(blocked), weight):
            return False
    except (AttributeError, RuntimeError):  # torch lacks them, or has them not for `dtype`
        return False
    expected = F.linear(x.float(), weight.float())
    tolerance = 1e-4 if dtype is torch.float32 else 0.02
    return torch.allclose(found.float(), expected, rtol=tolerance, atol=tolerance * 8)
