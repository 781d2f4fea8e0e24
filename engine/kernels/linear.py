"""Matrix product with weights kept in one place, computed by the implementation chosen for them.

y[..., out] = x[..., in] @ weight[out, in]^T + bias[out]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from engine.kernels import blocked
from engine.kernels.select import choose_blocked, choose_linear

Implementation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

# MKL computes W @ x^T for a number of rows between its tile sizes much slower than for the next
# of them: on an AVX2 machine (3072 x 1024) 15 rows take 2.6 ms and 16 take 1.2, 63 take 4.5 and 64
# take 3.0. From _NARROW rows on they are filled up to _LEAST, and from there to multiples of _STEP.
_NARROW, _LEAST, _STEP, _WIDE = 7, 16, 8, 256
_TILE_BYTES = 4 * 1024 * 1024  # of float32: stays in the last-level cache
_WIDE_TILE_BYTES = 8 * 1024 * 1024
_scratch = threading.local()


class Linear(nn.Module):
    """A linear layer. `weight` is [out_features, in_features], `bias` [out_features] or None.

    After `block_weight` the weight lies in the order that the CPU's products read; `weight` is then
    a plain copy made anew at every access.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        device: torch.device | str = "meta",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = _parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self._blocked: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        return self.product(x)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """What `forward` computes, whatever a subclass makes of it."""
        if self._blocked is None:
            return linear(x, self.weight, self.bias)
        name = choose_blocked(self._blocked.dtype, _num_rows(x))
        return BLOCKED_IMPLEMENTATIONS[name](x, self._blocked, self.bias)

    def block_weight(self) -> None:
        """Give up the plain weight for one in blocks (`engine.kernels.blocked`)."""
        if self._blocked is None:
            self._blocked = blocked.block(self.weight)
            del self._parameters["weight"]

    @property
    def is_blocked(self) -> bool:
        return self._blocked is not None

    @property
    def blocked_bytes(self) -> int:
        """Bytes of the weight in blocks, which is not among the parameters."""
        if self._blocked is None:
            return 0
        return self.in_features * self.out_features * self._blocked.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            held = self.__dict__.get("_blocked")
            if held is not None:
                return blocked.unblock(held)
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]; result [..., out] in x's dtype."""
    name = choose_linear(weight.dtype, weight.device.type, _num_rows(x))
    return IMPLEMENTATIONS[name](x, weight, bias)


def transposed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product the other way round, W @ x^T: for a few rows some CPUs' libraries split the
    weight over their threads well, and the activations badly."""
    flat = x.reshape(-1, x.shape[-1])
    product = torch.mm(weight, _widened(flat).t()).t()
    result = product[: len(flat)].contiguous()
    if bias is not None:
        result += bias
    return result.view(*x.shape[:-1], weight.shape[0])


def upcast(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """16-bit weights multiplied in float32: tiles of the weight are converted into a scratch buffer
    that stays in the cache, and multiplied there, W @ x^T. Accumulates in float32.

    For CPUs without 16-bit products, and for some that have them: an Intel CPU with AVX-512 BF16
    and without AMX computes 330 GFLOP/s in float32 and 172 in bfloat16.
    """
    num_rows = _num_rows(x)
    flat = _widened(x.reshape(-1, x.shape[-1]).float())
    rows, width = flat.shape
    outputs = weight.shape[0]
    tile_rows = max(1, min(outputs, _TILE_BYTES // (4 * width)))
    tile = _buffer("tile", tile_rows * width).view(tile_rows, width)
    # transposed, so that each tile writes a contiguous part
    product = _buffer("product", outputs * rows).view(outputs, rows)
    columns = flat.t()
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        tile[:count].copy_(weight[start : start + count])
        torch.mm(tile[:count], columns, out=product[start : start + count])
    if bias is not None:
        product += bias.unsqueeze(1)
    result = torch.empty(num_rows, outputs, dtype=x.dtype, device=x.device)
    result.copy_(product.t()[:num_rows])
    return result.view(*x.shape[:-1], outputs)


def upcast_wide(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`upcast` for many rows, as a prompt has: x @ W^T, so that no result is turned round."""
    flat = x.reshape(-1, x.shape[-1]).float()
    rows, width = flat.shape
    outputs = weight.shape[0]
    tile_rows = max(1, min(outputs, _WIDE_TILE_BYTES // (4 * width)))
    tile = _buffer("tile", tile_rows * width).view(tile_rows, width)
    product = _buffer("product", rows * tile_rows)
    result = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        tile[:count].copy_(weight[start : start + count])
        part = product[: rows * count].view(rows, count)
        torch.mm(flat, tile[:count].t(), out=part)
        if bias is not None:
            part += bias[start : start + count]
        result[:, start : start + count].copy_(part)
    return result.view(*x.shape[:-1], outputs)


def unblocked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`upcast_wide` with a weight in blocks: for many rows it pays to make it plain again."""
    return upcast_wide(x, blocked.unblock(weight), bias)


def _widened(rows: torch.Tensor) -> torch.Tensor:
    """`rows` with rows of zeros below where a few more rows are faster."""
    count, width = rows.shape
    wanted = max(_LEAST, -(-count // _STEP) * _STEP)
    if count == wanted or not _NARROW <= count <= _WIDE:
        return rows
    wide = rows.new_zeros(wanted, width)
    wide[:count] = rows
    return wide


IMPLEMENTATIONS: dict[str, Implementation] = {
    "torch": F.linear,
    "transposed": transposed,
    "upcast": upcast,
    "upcast_wide": upcast_wide,
}

BLOCKED_IMPLEMENTATIONS: dict[str, Implementation] = {
    "onednn": blocked.product,
    "unblocked": unblocked,
}
"""For weights in blocks."""


def _num_rows(x: torch.Tensor) -> int:
    return x.numel() // x.shape[-1]


def _buffer(name: str, size: int) -> torch.Tensor:
    """`size` float32 elements that this thread reuses: a fresh buffer costs page faults."""
    held: torch.Tensor | None = getattr(_scratch, name, None)
    if held is None or held.numel() < size:
        # not an inference tensor, so that it can be written inside and outside inference mode
        with torch.inference_mode(False):
            held = torch.empty(size, dtype=torch.float32)
        setattr(_scratch, name, held)
    return held[:size]


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
