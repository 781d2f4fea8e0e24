"""Sees every matrix product of a layer while the layer's own code runs.

transformers writes linear layers as modules, routers and experts as plain functions of a parameter:
all of them end in a function of torch, which is where they are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Product(NamedTuple):
    """A matrix that multiplies: a parameter of the layer, or one expert's part of it."""

    parameter: str
    expert: int | None = None


OnProduct = Callable[[Product, Tensor, bool], None]

_SECOND_IS_WEIGHT = (
    torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__,
)  # fmt: skip


class Watch(TorchFunctionMode):
    """Calls `on_product(product, x, is_transposed)` for each product of an input x [..., K] with a
    parameter of `layer`: [N, K], or [K, N] where is_transposed."""

    def __init__(self, layer: nn.Module, on_product: OnProduct) -> None:
        super().__init__()
        self._on_product = on_product
        self._names: dict[int, tuple[str, Tensor]] = {
            p.untyped_storage().data_ptr(): (name, p) for name, p in layer.named_parameters()
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.linear:
            self._saw(args[0], args[1], False)
        elif func is torch.addmm and len(args) >= 3:
            self._saw(args[1], args[2], True)
        elif func in _SECOND_IS_WEIGHT and len(args) >= 2:
            self._saw(args[0], args[1], True)
        self.observe(func, args, result)
        return result

    def observe(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """For those who look at more than products."""

    def _saw(self, x: Any, weight: Any, is_transposed: bool) -> None:
        if not isinstance(weight, Tensor) or not isinstance(x, Tensor):
            return
        entry = self._names.get(weight.untyped_storage().data_ptr())
        if entry is None:
            return
        name, parameter = entry
        if parameter.ndim == 3 and weight.ndim == 2:
            expert = (weight.storage_offset() - parameter.storage_offset()) // parameter.stride(0)
            self._on_product(Product(name, expert), x, is_transposed)
        elif weight.shape == parameter.shape and parameter.ndim == 2:
            self._on_product(Product(name), x, is_transposed)
        elif weight.shape == parameter.shape[::-1] and parameter.ndim == 2:
            self._on_product(Product(name), x, not is_transposed)


def matrix(layer: nn.Module, product: Product, is_transposed: bool = False) -> Tensor:
    """The product's weight as a view [N, K]; writing to it writes to the layer."""
    parameter = layer.get_parameter(product.parameter).data
    if product.expert is not None:
        parameter = parameter[product.expert]
    return parameter.t() if is_transposed else parameter
