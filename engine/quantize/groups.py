"""Observes every matmul of a layer while the layer's own code runs, and groups matrices by input.

transformers writes linear layers as modules, routers and experts as plain functions of a parameter.
All of them call a torch function, which is where they are observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
        """Hook for subclasses that observe more than matmuls."""

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


_SAME_CHANNELS = frozenset(
    (
        "view", "reshape", "__getitem__", "index_select", "contiguous", "to", "float", "type",
        "unsqueeze", "squeeze", "flatten", "expand", "repeat", "type_as", "clone", "detach",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A parameter that multiplies a group's input: [N, K]; [K, N] if transposed; with experts [E,
    N, K]."""

    parameter: str
    is_transposed: bool
    num_experts: int  # 0: it is one matrix


@dataclass(frozen=True)
class Group:
    """Matrices with the same input. `norm`: the module whose output is the input. `block`: the
    module inside the layer that contains all of them ("": the layer), or None where each is
    evaluated separately. `is_per_expert`: each expert has its own input."""

    readers: tuple[Reader, ...]
    width: int
    norm: str | None
    block: str | None
    is_per_expert: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reader.parameter for reader in self.readers)


def find_groups(layer: nn.Module, run: Callable[[], Any]) -> list[Group]:
    """The groups of `layer` in the order in which they work; `run` runs it on a few tokens."""
    trace = _Trace(layer)
    try:
        with trace:
            run()
        return trace.groups()
    finally:
        trace.close()


class _Trace(Watch):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, self._product)
        self._layer = layer
        self._alive: list[Tensor] = []  # so that no identity is used twice
        self._roots: dict[int, Tensor] = {}
        self._norms: dict[int, str] = {}
        self._called: set[str] = {""}
        self._seen: dict[str, tuple[bool, list[Tensor]]] = {}  # transposed, roots of the inputs
        self._handles = []
        for path, module in layer.named_modules():
            called = partial(self._on_call, path)
            self._handles.append(module.register_forward_pre_hook(called))
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.ndim == 1:  # a norm
                self._handles.append(module.register_forward_hook(partial(self._on_norm, path)))

    def close(self) -> None:
        """Release all tensors: the trace refers to itself, and would keep them for a while."""
        for handle in self._handles:
            handle.remove()
        for kept in (self._alive, self._roots, self._seen, self._names):
            kept.clear()

    def observe(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        if not args or not isinstance(result, Tensor) or not isinstance(args[0], Tensor):
            return
        source = args[0]
        if (
            getattr(func, "__name__", "") in _SAME_CHANNELS
            and result is not source
            and source.ndim
            and result.ndim
            and result.shape[-1] == source.shape[-1]
        ):
            self._alive += (source, result)
            self._roots[id(result)] = self._root(source)

    def groups(self) -> list[Group]:
        found: dict[tuple[int, str], list[str]] = {}
        for name, (_, roots) in self._seen.items():
            key = name if self._has_own_inputs(name) else ""
            found.setdefault((id(roots[0]), key), []).append(name)
        return [self._group(names) for names in found.values()]

    def _group(self, names: Sequence[str]) -> Group:
        readers = tuple(self._reader(name) for name in names)
        roots = self._seen[names[0]][1]
        is_per_expert = len(names) == 1 and self._has_own_inputs(names[0])
        norm = None if is_per_expert else self._norms.get(id(roots[0]))
        is_alone = len(readers) == 1 and norm is None
        block = None if is_alone or is_per_expert else self._common(names)
        return Group(readers, roots[0].shape[-1], norm, block, is_per_expert)

    def _has_own_inputs(self, name: str) -> bool:
        """Whether each expert of a parameter has its own input."""
        roots = self._seen[name][1]
        if self._layer.get_parameter(name).ndim < 3:
            return False
        if any(root is not roots[0] for root in roots):
            return True
        others = (r for n, (_, found) in self._seen.items() if n != name for r in found)
        is_alone = all(root is not roots[0] for root in others)
        return is_alone and id(roots[0]) not in self._norms  # a single expert was at work

    def _reader(self, name: str) -> Reader:
        parameter = self._layer.get_parameter(name)
        return Reader(name, self._seen[name][0], parameter.shape[0] if parameter.ndim == 3 else 0)

    def _common(self, names: Sequence[str]) -> str:
        """The innermost module that was called and holds all of them; of one matrix the module
        around it (attention, or the whole MLP), where its errors are felt."""
        parts = [name.split(".")[:-1] for name in names]
        if len(names) == 1 and self._layer.get_parameter(names[0]).ndim == 2:
            parts[0].pop()
        common: list[str] = []
        for column in zip(*parts, strict=False):
            if len(set(column)) > 1:
                break
            common.append(column[0])
        while ".".join(common) not in self._called:
            common.pop()
        return ".".join(common)

    def _product(self, product: Product, x: Tensor, is_transposed: bool) -> None:
        self._alive.append(x)
        root = self._root(x)
        self._seen.setdefault(product.parameter, (is_transposed, []))[1].append(root)

    def _root(self, tensor: Tensor) -> Tensor:
        return self._roots.get(id(tensor), tensor)

    def _on_call(self, path: str, module: nn.Module, args: Any) -> None:
        self._called.add(path)

    def _on_norm(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            self._alive.append(output)
            self._norms[id(self._root(output))] = path
