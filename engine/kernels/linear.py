"""Matrix product with weights kept in one place, computed by the implementation chosen for them.

y[..., out] = x[..., in] @ weight[out, in]^T + bias[out]

What a row of a float32 product comes to depends on its number of rows, and on nothing else of the
other rows: MKL adds up in one order for 1 row, in another for 2 to about 8 or 12, in a third for
more (seen with torch 2.13; attention in decode depends on neither batch nor padding, bit for bit).
So the requests that run beside one move its log probabilities by some 1e-5, and a token only where
two lie that near, or a draw that near to a border. One order for all would be that of 16 rows,
which makes the product of a single row 2.4 to 3.6 times as slow.

In 16 bits a product that was compiled here ("native") adds up each row in one order, up to the
number of rows from which another implementation was measured to be faster. From there on, and
where nothing can be compiled, a row's last bit depends on how many there are as it does in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from engine.kernels.cpu import between as plain
from engine.kernels.registry import choose_linear
from engine.kernels.tiles import Fill, few_rows, many_rows, widened
from engine.kernels.weights import BlockedWeights, Weights

Implementation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class Linear(nn.Module):
    """A linear layer. `weight` is [out_features, in_features], `bias` [out_features] or None.

    After `hold` the weight lies in a form of its own (in blocks, quantized); `weight` is then a
    plain copy made anew at every access.
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
        self._held: Weights | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        return self.product(x)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """What `forward` computes, whatever a subclass makes of it."""
        if self._held is None:
            return linear(x, self.weight, self.bias)
        return self._held.product(x, self.bias)

    def hold(self, weights: Weights) -> None:
        """Give up the plain weight for one in another form. Its shape must be this layer's."""
        assert weights.shape == (self.out_features, self.in_features)
        self._held = weights
        self._parameters.pop("weight", None)

    def block_weight(self) -> None:
        """Give up the plain weight for one in blocks (`engine.kernels.blocked`)."""
        if self._held is None:
            self.hold(BlockedWeights(self.weight))

    @property
    def held(self) -> Weights | None:
        """The weight in a form of its own; None while it is plain."""
        return self._held

    @property
    def is_blocked(self) -> bool:
        return isinstance(self._held, BlockedWeights)

    @property
    def held_bytes(self) -> int:
        """Bytes of a weight in a form of its own, which is not among the parameters."""
        return 0 if self._held is None else self._held.nbytes

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            held = self.__dict__.get("_held")
            if held is not None:
                return held.dense()
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
    product = torch.mm(weight, widened(flat).t()).t()
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
    return few_rows(x, _converted(weight), weight.shape[0], bias)


def upcast_wide(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`upcast` for many rows, as a prompt has: x @ W^T, so that no result is turned round."""
    return many_rows(x, _converted(weight), weight.shape[0], bias)


def _converted(weight: torch.Tensor) -> Fill:
    return lambda tile, start: tile.copy_(weight[start : start + len(tile)])


IMPLEMENTATIONS: dict[str, Implementation] = {
    "torch": F.linear,
    "transposed": transposed,
    "upcast": upcast,
    "upcast_wide": upcast_wide,
    "native": plain.product,
}


def _num_rows(x: torch.Tensor) -> int:
    return x.numel() // x.shape[-1]


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
