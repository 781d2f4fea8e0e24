"""Where ranks wait until all of them have come.

An exchange is needed twice a layer, and takes a few microseconds where the ranks come at the same
time; to be put to sleep and woken by the operating system takes 50 to 100. So a rank looks for a
while whether the others are there, outside the interpreter, before it sleeps.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import torch

from engine.errors import InferdeckError
from engine.kernels.native.library import Library

_APART = 8  # meet.c
_PATIENCE_US = 200
_LATE_PATIENCE_US = 20
_PAUSE_S = 20e-6
_FAILED = 2**62


class PeerFailedError(InferdeckError):
    """Another rank failed in this step; its own error tells why."""

    def __init__(self) -> None:
        super().__init__("Another rank failed.")


class Meeting(Protocol):
    def wait(self, rank: int) -> None:
        """Until every rank has called this as often. Raises PeerFailedError where one failed."""

    def fail(self, rank: int) -> None:
        """Wake those who wait for this rank, now and later."""

    def reset(self) -> None:
        """Begin anew after a failure. No rank may wait."""


class LookingMeeting:
    """By code that was compiled here."""

    def __init__(self, size: int, library: Library) -> None:
        self._size, self._meet = size, library.meet
        self._places = torch.zeros(size * _APART, dtype=torch.int64)
        self._address = self._places.data_ptr()
        self._rounds = [0] * size
        self._has_failed = False

    def wait(self, rank: int) -> None:
        self._rounds[rank] += 1
        told = (self._address, rank, self._size, self._rounds[rank])
        is_there = self._meet(*told, _PATIENCE_US)
        while not is_there:  # it has something to do, or no core
            time.sleep(_PAUSE_S)
            is_there = self._meet(*told, _LATE_PATIENCE_US)
        if self._has_failed:
            raise PeerFailedError

    def fail(self, rank: int) -> None:
        self._has_failed = True
        self._places[rank * _APART] = _FAILED

    def reset(self) -> None:
        self._places.zero_()
        self._rounds = [0] * self._size
        self._has_failed = False


class SleepingMeeting:
    """By the operating system, where there is no compiler."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def wait(self, rank: int) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerFailedError from None

    def fail(self, rank: int) -> None:
        self._barrier.abort()

    def reset(self) -> None:
        self._barrier.reset()


def new_meeting(size: int, library: Library | None) -> Meeting:
    return SleepingMeeting(size) if library is None else LookingMeeting(size, library)
