"""What ranks hand each other in the middle of a step, from thread to thread.

    rank 0   partial sum ---+--> its own + rank 1's     the same numbers on every rank,
    rank 1   partial sum ---+--> rank 0's + its own     added in the order of the ranks

Each rank gives its tensor to all others and takes theirs: on the CPU the tensor itself, on GPUs a
copy from one's memory to the other's, which is launched and not waited for. With two ranks nothing
is copied that a ring or a tree would save.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import SimpleQueue

import torch
from torch import Tensor

from engine.errors import InferdeckError


class PeerFailedError(InferdeckError):
    """Another rank failed in this step; its own error tells why."""


class Exchange:
    """Between `size` ranks, each with a thread of its own. Every rank calls the same methods in the
    same order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waited = [0.0] * size
        """Seconds that each rank waited for others and added up, until somebody sets it to 0."""
        self._from_to: list[list[SimpleQueue[Tensor | None]]] = []
        self.reset()

    def reset(self) -> None:
        """Forget what a step left behind that failed. No rank may be in one."""
        ranks = range(self.size)
        self._from_to = [[SimpleQueue() for _ in ranks] for _ in ranks]

    def fail(self, rank: int) -> None:
        """Wake those who wait for this rank, now and later in this step."""
        for queue in self._from_to[rank]:
            queue.put(None)

    def sum(self, rank: int, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all ranks, which have one shape; for each on its own device."""
        first, *others = self.all(rank, tensor)
        began = time.perf_counter()
        result = first + others[0]
        for other in others[1:]:
            result += other
        self.waited[rank] += time.perf_counter() - began
        return result

    def all(self, rank: int, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all ranks in their order, each on this rank's device."""
        began = time.perf_counter()
        for other, queue in enumerate(self._from_to[rank]):
            if other != rank:
                queue.put(tensor)
        found = [
            tensor if other == rank else self._taken(other, rank, tensor.device)
            for other in range(self.size)
        ]
        self.waited[rank] += time.perf_counter() - began
        return found

    def _taken(self, other: int, rank: int, device: torch.device) -> Tensor:
        tensor = self._from_to[other][rank].get()
        if tensor is None:
            self._from_to[other][rank].put(None)  # whoever asks again is told again
            raise PeerFailedError(f"Rank {other} failed.")
        # torch launches the copy behind what both GPUs compute now, and nobody waits
        return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
