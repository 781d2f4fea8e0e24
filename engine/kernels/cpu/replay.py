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


class Counts:
    """Of a step: its tokens, and those that are sampled. Arguments of replays, which stay the same
    objects while their values change."""

    def __init__(self, tokens: int, sampled: int) -> None:
        self.tokens, self.sampled = ctypes.c_int64(tokens), ctypes.c_int64(sampled)


class _Call(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("numbers", ctypes.c_int64 * _NUMBERS),
        ("floats", ctypes.c_float * _FLOATS),
        ("scratch", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("is_sampled", ctypes.c_int32),
        ("each", ctypes.c_int64),
    )


def as_one(
    native: Library, calls: Sequence[CompiledCall], workspace: Workspace, counts: Counts,
    operands: object = None,
) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Function and arguments of a call that makes all of `calls`, with memory and thread count
    as `workspace`, in which they compute, has them then. counts: of the step that made them; where
    there are fewer later, so many rows are computed. operands: what it keeps alive."""
    array: Any = (_Call * len(calls))(*(_packed(one, workspace, counts) for one in calls))
    array.operands = operands
    given = workspace.address, workspace.threads, counts.tokens, counts.sampled
    return native.replay, (array, len(calls), *given)


def _packed(call: CompiledCall, workspace: Workspace, counts: Counts) -> _Call:
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
        if kind is Rows:
            packed.is_sampled = value % counts.tokens.value != 0
            of = counts.sampled if packed.is_sampled else counts.tokens
            packed.rows, packed.each = numbers, value // of.value
        numbers += 1
    return packed
