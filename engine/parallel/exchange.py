"""What ranks hand each other in the middle of a step, from thread to thread.

    rank 0   partial sum ---+--> its own + rank 1's     the same numbers on every rank,
    rank 1   partial sum ---+--> rank 0's + its own     added in the order of the ranks

Each rank lays its tensor down, waits for the others, and adds up all: on the CPU the tensors
themselves, on GPUs copies from one's memory to the other's, which are launched and not waited for.
With two ranks nothing is copied that a ring or a tree would save.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from engine.kernels.native.library import Library
from engine.parallel.meeting import Meeting, new_meeting


class Exchange:
    """Between `size` ranks, each with a thread of its own. Every rank calls `sum` as often.
    library: of compiled functions, if there is one."""

    def __init__(self, size: int, library: Library | None) -> None:
        self.size = size
        self.waited = [0.0] * size
        """Seconds that each rank waited for others and added up, until somebody sets it to 0."""
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
        """Let go of what was handed over last. No rank may be in a step."""
        self._tables = [[None] * self.size for _ in range(2)]

    def fail(self, rank: int) -> None:
        """Wake those who wait for this rank, now and later in this step."""
        self._meeting.fail(rank)

    def sum(self, rank: int, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all ranks, which have one shape; for each on its own device.
        Nobody may change `tensor` afterwards. Raises PeerFailedError."""
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
    # torch launches the copy behind what both GPUs compute now, and nobody waits
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
