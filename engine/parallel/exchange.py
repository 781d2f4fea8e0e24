"""All-reduce between the ranks of a process, and the barriers that it needs.

It runs twice per layer and takes a few microseconds when the ranks arrive together; sleeping and
being woken by the operating system would take 50 to 100. So a rank first spins for a while, without
the GIL, before it sleeps.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import InferdeckError
from engine.kernels.cpu.library import Library

_APART = 8  # barrier.c
_PATIENCE_US = 200
_LATE_PATIENCE_US = 20
_PAUSE_S = 20e-6
_FAILED = 2**62


class PeerFailedError(InferdeckError):
    """Another rank failed in this step; that rank raises the actual error."""

    def __init__(self) -> None:
        super().__init__("Another tensor parallel rank failed.")


class Meeting(Protocol):
    def wait(self, rank: int) -> None:
        """Until every rank has called this as often. Raises PeerFailedError where one failed."""

    def fail(self, rank: int) -> None:
        """Wake those who wait for this rank, now and later."""

    def reset(self) -> None:
        """Begin anew after a failure. No rank may wait."""


class LookingMeeting:
    """A spinning barrier in compiled code (barrier.c)."""

    def __init__(self, size: int, library: Library) -> None:
        self._size, self._meet = size, library.barrier
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
    """A barrier of the operating system, where there is no compiler."""

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


class Exchange:
    """All-reduce between `size` ranks, one thread each. Every rank calls `sum` equally often.
    library: the compiled functions, if available."""

    def __init__(self, size: int, library: Library | None) -> None:
        self.size = size
        self.waited = [0.0] * size
        """Seconds that each rank waited for others and summed, since the caller last reset it."""
        self._meeting: Meeting = new_meeting(size, library)
        self._turns = [0] * size
        # Two tables in turns: who lays down for the next sum but one has met the others after they
        # were done with this one.
        self._tables: list[list[Tensor | None]] = [[None] * size for _ in range(2)]

    def reset(self) -> None:
        """Forget what a step left behind. No rank may be in one."""
        self._meeting.reset()
        self._turns = [0] * self.size
        self.clear()

    def clear(self) -> None:
        """Release the last exchanged tensors. No rank may be in a step."""
        self._tables = [[None] * self.size for _ in range(2)]

    def fail(self, rank: int) -> None:
        """Wake those who wait for this rank, now and later in this step."""
        self._meeting.fail(rank)

    def sum(self, rank: int, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all ranks, which have one shape; for each on its own device.
        `tensor` must not change afterwards. Raises PeerFailedError."""
        began = time.perf_counter()
        table = self._tables[self._turns[rank] % 2]
        self._turns[rank] += 1
        table[rank] = tensor
        self._meeting.wait(rank)
        first, second, *others = (_near(given, tensor.device) for given in table)
        result = first + second
        for other in others:
            result += other
        self.waited[rank] += time.perf_counter() - began
        return result


def _near(tensor: Tensor | None, device: torch.device) -> Tensor:
    assert tensor is not None, "every rank has laid one down"
    # torch launches the copy behind the current work of both GPUs; the host does not wait
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
