"""Attention over KV pages, and writing to them, without gathering them first (attention.c); for
many tokens of a request in tiles (prompt.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.kernels.cpu.library import TYPES, Library
from engine.kernels.cpu.workspace import workspace
from engine.kernels.paged_kv import PLAIN, PageTensors

_LANES = 16  # vectors.h
_WIDEST = 576  # part.h
_TILE, _BLOCK, _KEYS, _BLOCKS = 32, 32, 128, 16  # prompt.c
_CODES = {"int8": 3, "fp8": 4}  # part.h


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("elements", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
    )


class _Pages(ctypes.Structure):
    _fields_ = (
        ("kv_heads", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("keys", _Tensors),
        ("values", _Tensors),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        ("first_rows", ctypes.c_void_p),
        ("queries", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("table_starts", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
    )


_Shape = tuple[int, int, int]


class NativeStep:
    """The arguments for some requests of a step: request i has tokens first_rows[i] to
    first_rows[i] + queries[i] of the step, the last ones of a sequence of lengths[i], with blocks
    tables[i]. Its address stays the same."""

    def __init__(self, *columns: Sequence[Any]) -> None:
        self._arguments = _Step()
        self.address = ctypes.addressof(self._arguments)
        self._shapes: set[_Shape] = set()  # of layers that attended
        self.begin(*columns)

    def begin(
        self,
        first_rows: Sequence[int] = (),
        queries: Sequence[int] = (),
        lengths: Sequence[int] = (),
        tables: Sequence[Sequence[int]] = (),
    ) -> None:
        """Another step."""
        self.num_requests = count = len(lengths)
        self._blocks = array("i")
        starts = []
        for table in tables:
            starts.append(len(self._blocks))
            self._blocks.extend(table)
        self._numbers = array("q", (*first_rows, *queries, *lengths, *starts))
        numbers, apart = self._numbers.buffer_info()[0], 8 * count
        to = self._arguments
        to.requests, to.tables = count, self._blocks.buffer_info()[0]
        to.first_rows, to.queries, to.lengths, to.table_starts = (
            numbers + n * apart for n in range(4)
        )

    def scratch_bytes(self, native: Library, shape: _Shape) -> int:
        """Of `Library.attention` for a layer of so many KV heads, heads and elements of a value."""
        self._shapes.add(shape)
        return native.attention_scratch(self.address, *shape, torch.get_num_threads())

    def most_scratch_bytes(self, native: Library) -> int:
        """For every layer that attended, in this step or before."""
        return max((self.scratch_bytes(native, shape) for shape in [*self._shapes]), default=0)


class NativeCache:
    """The pages of one layer."""

    def __init__(self, native: Library, keys: PageTensors, values: PageTensors) -> None:
        self._native = native
        self._tensors = keys, values  # keeps the memory alive
        _, kv_heads, block_size, self._key_dim = keys.elements.shape
        self._kv_heads: int = kv_heads
        self._arguments = _Pages(kv_heads, block_size, *map(_arguments, self._tensors))
        self._address = ctypes.addressof(self._arguments)
        self._value_dim: int = values.elements.shape[3]

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at slots[T] (int64; block * block_size + place in
        it; -1: nowhere)."""
        if k.dtype != v.dtype:  # rotary left one of them in float32: both are read as one type
            k, v = k.float(), v.float()
        k, v, slots = _readable(k), _readable(v), slots.contiguous()
        self._native.cache_write(
            self._address, slots.data_ptr(), k.shape[0], k.data_ptr(), k.stride(0), k.stride(1),
            v.data_ptr(), v.stride(0), v.stride(1), TYPES[k.dtype], workspace().threads,
        )  # fmt: skip

    def attend(
        self,
        step: NativeStep,
        q: Tensor,
        output: Tensor,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        chunk: int | None = None,
        *,
        in_tiles: bool = False,
    ) -> None:
        """Causal attention of the step's tokens with q[T, Hq, Dk] over their sequences, to
        output[T, Hq, Dv], contiguous and in q's dtype; other rows of it stay as they are. Options
        as `engine.attention.interface.AttentionOptions` has them. in_tiles: with queries of
        bfloat16 (`Library.has_tiles`), faster for many tokens of a request."""
        _, heads, key_dim = q.shape
        if heads % self._kv_heads or key_dim != self._key_dim:
            raise ValueError(
                f"{heads} query heads of {key_dim} over {self._kv_heads} KV heads of "
                f"{self._key_dim}"
            )
        q = _readable(q.to(torch.bfloat16) if in_tiles else q)
        wide = None if sinks is None else sinks.to(torch.float32).contiguous()
        if in_tiles:
            width = -(-key_dim // _TILE) * _TILE
            of = self._native.element_bytes
            size = _KEYS * (of * (width + self._value_dim) + (of + 4) * _BLOCK)
            size += _BLOCKS * _BLOCK * (of * width + 4 * self._value_dim)
            space = workspace(0, size)
            self._native.prompt_attention(
                self._address, step.address, q.data_ptr(), q.stride(0), q.stride(1), heads,
                window or 0, scaling, softcap or 0.0, None if wide is None else wide.data_ptr(),
                chunk or 0, output.data_ptr(), TYPES[output.dtype], space.address,
                space.threads,
            )  # fmt: skip
            return
        shape = self._kv_heads, heads, self._value_dim
        space = workspace(step.scratch_bytes(self._native, shape))
        self._native.attention(
            self._address, step.address, q.data_ptr(), q.stride(0), q.stride(1), heads,
            window or 0, scaling, softcap or 0.0, None if wide is None else wide.data_ptr(),
            chunk or 0, output.data_ptr(), TYPES[q.dtype], space.address, space.threads,
        )  # fmt: skip


def can_attend(keys: PageTensors, values: PageTensors) -> bool:
    """Whether attention.c reads these pages: on the CPU, heads of whole vectors."""
    for one in (keys, values):
        width = one.elements.shape[3]
        if one.elements.device.type != "cpu" or _kind(one) is None:
            return False
        if width % _LANES or width > _WIDEST:
            return False
    return True


def _kind(one: PageTensors) -> int | None:
    """As part.h numbers it; None: another number format."""
    return TYPES.get(one.elements.dtype) if one.form == PLAIN else _CODES[one.form]


def _arguments(one: PageTensors) -> _Tensors:
    scales = None if one.scales is None else one.scales.data_ptr()
    return _Tensors(one.elements.shape[3], _kind(one), one.elements.data_ptr(), scales)


def _readable(x: Tensor) -> Tensor:
    """Elements of a head beside each other."""
    return x if x.stride(2) == 1 else x.contiguous()
