"""Compiled calls that are made again, without Python between them: replay.c."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from engine.kernels.cpu.library import Library, Rows
from engine.kernels.cpu.workspace import Workspace

_NUMBERS, _FLOATS, _NONE = 16, 2, -1  # replay.c


class CompiledCall(NamedTuple):
    """A call of a function of `Library`."""

    function: Any
    arguments: tuple[Any, ...]


class _Call(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("numbers", ctypes.c_int64 * _NUMBERS),
        ("floats", ctypes.c_float * _FLOATS),
        ("scratch", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("each", ctypes.c_int64),
    )


def as_one(
    native: Library, calls: Sequence[CompiledCall], workspace: Workspace, tokens: ctypes.c_int64,
    operands: object = None,
) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Function and arguments of a call that makes all of `calls`, with memory and thread count
    as `workspace`, in which they compute, has them then. tokens: of the step that made them; where
    it has fewer later, so have they. operands: what it keeps alive."""
    most = tokens.value
    array: Any = (_Call * len(calls))(*(_packed(one, workspace, most) for one in calls))
    array.operands = operands
    return native.replay, (array, len(calls), workspace.address, workspace.threads, tokens)


def _packed(call: CompiledCall, workspace: Workspace, tokens: int) -> _Call:
    function = ctypes.cast(call.function, ctypes.c_void_p)
    packed = _Call(function, scratch=_NONE, threads=_NONE, rows=_NONE)
    numbers = floats = 0
    for kind, value in zip(call.function.argtypes, call.arguments, strict=True):
        if kind is ctypes.c_float:
            packed.floats[floats] = value
            floats += 1
            continue
        if value is workspace.address:
            packed.scratch = numbers
        elif value is workspace.threads:
            packed.threads = numbers
        else:
            packed.numbers[numbers] = value or 0
        if kind is Rows and value % tokens == 0:  # else of the rows that are sampled
            packed.rows, packed.each = numbers, value // tokens
        numbers += 1
    return packed
