"""Rotary embedding: cosines and sines looked up, and applied in fewer passes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from engine.kernels.ops import rotate
from engine.models.layers.replacement import ForwardSwap, ModuleSwap

TABLE = "rotary table"
APPLY = "rotary apply"

_TABLE_BYTES = 64 * 1024 * 1024
_NAME = "apply_rotary_pos_emb"

Apply = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class RotaryTable(nn.Module):
    """cos and sin of every position up to max_model_len, computed once by the module that it
    replaces.

    Same signature: (x, position_ids [..., T][, layer_type]) -> cos, sin [..., T, width].
    """

    def __init__(self, tables: dict[str | None, tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._keys = {key: index for index, key in enumerate(tables)}
        for index, (cos, sin) in enumerate(tables.values()):
            self.register_buffer(f"cos_{index}", cos, persistent=False)
            self.register_buffer(f"sin_{index}", sin, persistent=False)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        index = self._keys[layer_type]
        return (
            F.embedding(position_ids, self.get_buffer(f"cos_{index}")),
            F.embedding(position_ids, self.get_buffer(f"sin_{index}")),
        )


def table_swaps(model: nn.Module, max_model_len: int, dtype: torch.dtype) -> Iterator[ModuleSwap]:
    """A table for each rotary module whose values depend on dtype and position alone, where the
    table stays below 64 MiB. The modules' buffers have to be computed already."""
    for parent in list(model.modules()):
        for name, module in list(parent._modules.items()):
            if module is None or not _is_rotary(module):
                continue
            tables = _tables(module, max_model_len, dtype)
            if tables is not None:
                yield ModuleSwap(TABLE, parent, name, module, RotaryTable(tables))


def table_rows(model: nn.Module, dtype: torch.dtype) -> tuple[int, ...]:
    """Bytes per position of each table that `table_swaps` would make. The model may be on the meta
    device."""
    rows = []
    for module in model.modules():
        if _is_rotary(module):
            try:
                real: Any = type(module)(module.config)
            except Exception:  # built in a way of its own: not the known pattern
                continue
            tables = _tables(real, 1, dtype)
            if tables is not None:
                rows.append(sum(t.nbytes for pair in tables.values() for t in pair))
    return tuple(rows)


def bytes_of_tables(rows: Sequence[int], max_model_len: int) -> int:
    """Of tables with `rows` bytes per position; one that would be too large is not made."""
    sizes = [row * max_model_len for row in rows]
    return sum(size for size in sizes if size <= _TABLE_BYTES)


def has_rotary(model: nn.Module) -> bool:
    return any(_is_rotary(module) for module in model.modules())


def _is_rotary(module: nn.Module) -> bool:
    return "RotaryEmbedding" in type(module).__name__ and hasattr(module, "rope_type")


def _tables(
    module: nn.Module, length: int, dtype: torch.dtype
) -> dict[str | None, tuple[torch.Tensor, torch.Tensor]] | None:
    kinds: Any = getattr(module, "rope_type", None)
    keys: list[str | None] = list(kinds) if isinstance(kinds, dict) else [None]
    buffer = next(module.buffers(), None)
    if buffer is None:
        return None
    x = torch.zeros(1, dtype=dtype, device=buffer.device)
    probe = torch.tensor([[0, length - 1]], device=buffer.device)
    try:
        pairs = [_call(module, x, probe, key) for key in keys]
        row_bytes = sum(t.shape[-1] * t.element_size() for pair in pairs for t in pair)
        if row_bytes * length > _TABLE_BYTES:
            return None
        tables = {}
        positions = torch.arange(length, device=buffer.device).unsqueeze(0)
        for key in keys:
            cos, sin = (t[0].contiguous() for t in _call(module, x, positions, key))
            if cos.shape[0] != length or sin.shape != cos.shape:
                return None
            tables[key] = (cos, sin)
    except Exception:  # whatever its forward wants, it is not the known pattern
        return None
    return tables


def _call(
    module: nn.Module, x: torch.Tensor, positions: torch.Tensor, key: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    extra = {} if key is None else {"layer_type": key}
    cos, sin = module(x, positions, **extra)
    return cos, sin


def apply_halves(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of transformers' apply_rotary_pos_emb, for the form that turns halves."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return rotate(q, cos, sin), rotate(k, cos, sin)


def apply_swaps(model: nn.Module) -> Iterator[ForwardSwap]:
    """For each attention module whose forward calls a global apply_rotary_pos_emb that turns
    halves: the same forward with `apply_halves` under that name.

    The forward's code is bound to a copy of its module's globals, so no other user of
    transformers in this process is affected.
    """
    rebound: dict[type[nn.Module], FunctionType | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in rebound:
            rebound[kind] = _rebind(kind)
        forward = rebound[kind]
        if forward is not None:
            yield ForwardSwap(APPLY, module, forward)


def _rebind(kind: type[nn.Module]) -> FunctionType | None:
    # transformers 5.24 wraps it to rename an argument
    forward = inspect.unwrap(vars(kind).get("forward", nn.Module.forward))
    if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names:
        return None
    original = forward.__globals__.get(_NAME)
    if original is None or not _turns_halves(original):
        return None
    # Later registrations are still seen: the attention registry itself is shared, not copied.
    own_globals = {**vars(sys.modules[kind.__module__]), _NAME: apply_halves}
    function = FunctionType(
        forward.__code__, own_globals, forward.__name__, forward.__defaults__, forward.__closure__
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    return function


def _turns_halves(original: Apply) -> bool:
    """Whether `original` computes what `apply_halves` does, found by computing."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 8, generator=generator) for heads in (4, 2))
    angles = torch.rand(1, 3, 4, generator=generator).repeat(1, 1, 2)
    try:
        expected = original(q, k, angles.cos(), angles.sin())
    except Exception:  # another signature: not the known pattern
        return False
    found = apply_halves(q, k, angles.cos(), angles.sin())
    return all(
        e.shape == f.shape and torch.allclose(e, f, rtol=1e-5, atol=1e-6)
        for e, f in zip(expected, found, strict=True)
    )
