"""Threads that compute the steps on the CPU."""

from __future__ import annotations

from typing import NamedTuple


class ThreadsOf(NamedTuple):
    """`threads` were found best for steps of `first` to `last` tokens."""

    first: int
    last: int
    threads: int


class ThreadFigures(NamedTuple):
    """most: threads that a step may have. used: those of the last one. free: those that found a
    core of their own; others: cores that other programs keep busy, None where it is not known.
    found: what measurement chose, for steps of few tokens."""

    most: int
    used: int
    free: int
    others: float | None
    found: tuple[ThreadsOf, ...] = ()
