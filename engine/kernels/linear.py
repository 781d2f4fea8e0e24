"""Linear layers: the matmul with a weight, by the implementation that the registry chooses.

    y[..., out] = x[..., in] @ weight[out, in]^T + bias[out]

In float32 a row's result depends on the number of rows, but not on the other rows: MKL sums in one
order for 1 row, in another for 2 to about 8 or 12, in a third for more (seen with torch 2.13;
attention in decode is bitwise independent of batch and padding). Other requests in the batch
therefore change log probabilities by about 1e-5, and a token only where two are that close, or a
draw is that close to a boundary. A single order for all would be that of 16 rows, which makes the
matmul of one row 2.4 to 3.6 times as slow.

In 16 bits the compiled matmul ("native") sums each row in one order, up to the number of rows from
which another implementation was measured to be faster. Beyond that, and without a compiler, a row's
last bit depends on the number of rows as in float32. Weights in 12 bits (AMX) have one order for
any number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.kernels.cpu import compressed
from engine.kernels.cpu.check import library
from engine.kernels.cpu.compressed import CompressedWeights
from engine.kernels.dense import BLOCKED, IMPLEMENTATIONS, block, fits_in_blocks, unblock
from engine.kernels.measure import dtype_name
from engine.kernels.registry import blocked_choices, choose_blocked, choose_linear
from engine.kernels.weights import Weights


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]; result [..., out] in x's dtype."""
    name = choose_linear(weight.dtype, weight.device.type, x.numel() // x.shape[-1])
    return IMPLEMENTATIONS[name](x, weight, bias)


class PlainWeights(Weights):
    """An unquantized weight, for layers of which other parts are quantized."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.shape, weight.dtype, dtype_name(weight.dtype), weight)
        self._weight = weight

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, self._weight, bias)

    def dense(self) -> Tensor:
        return self._weight.clone()


class BlockedWeights(Weights):
    """An unquantized weight in oneDNN's block layout (`engine.kernels.dense`)."""

    def __init__(self, weight: Tensor) -> None:
        title = f"{dtype_name(weight.dtype)}, blocked"
        super().__init__(weight.shape, weight.dtype, title, weight)
        self._blocked = block(weight)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        name = choose_blocked(self.dtype, len(x))
        return BLOCKED[name](x, self._blocked, bias)

    def dense(self) -> Tensor:
        return unblock(self._blocked)


def fastest_form(weight: Tensor) -> Weights | None:
    """An unquantized weight on the CPU as it is multiplied fastest: in 12 bits or in blocks. None:
    as it is."""
    compiled = library()
    if compiled is not None and compressed.fits(weight, compiled):
        return CompressedWeights.of(weight, compiled)
    if fits_in_blocks(weight) and blocked_choices(weight.dtype):
        return BlockedWeights(weight)
    return None


class Linear(nn.Module):
    """A linear layer. `weight` is [out_features, in_features], `bias` [out_features] or None.

    After `pack` the weight is stored in another form (blocked, compressed, quantized); each access
    to `weight` then makes a dense copy.
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
        plain = torch.empty(out_features, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(plain, requires_grad=False)
        if bias:
            values = torch.empty(out_features, device=device, dtype=dtype)
            self.bias = nn.Parameter(values, requires_grad=False)
        else:
            self.register_parameter("bias", None)
        self.packed: Weights | None = None  # None: the weight is plain

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]."""
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """`forward`, whatever a subclass changes in it."""
        if self.packed is None:
            return linear(x, self.weight, self.bias)
        return self.packed.product(x, self.bias)

    def pack(self, weights: Weights) -> None:
        """Replace the plain weight by one in another form. Its shape must be this layer's."""
        assert weights.shape == (self.out_features, self.in_features)
        self.packed = weights
        self._parameters.pop("weight", None)

    @property
    def is_quantized(self) -> bool:
        return not isinstance(self.packed, BlockedWeights | CompressedWeights | None)

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed weight, which is not among the parameters."""
        return 0 if self.packed is None else self.packed.nbytes

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            packed = self.__dict__.get("packed")
            if packed is not None:
                return packed.dense()
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
