"""Copies between host and device that nobody has waited for yet.

To the host: the numbers are wrong there until the copy is waited for. From the host: they must not
change there until then. Both are the worst that a GPU may do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.gpu.simulated.machine import SimulatedError, machine, poison


@dataclass(slots=True)
class _Copy:
    stream: int
    place: int
    host: Tensor
    numbers: Tensor
    is_to_host: bool

    def finish(self) -> None:
        if self.is_to_host:
            with torch.inference_mode():
                self.host.copy_(self.numbers)
        elif not _same(self.host, self.numbers):
            raise SimulatedError(
                f"a buffer of the host ({tuple(self.host.shape)}, {self.host.dtype}) was filled "
                "again before it was copied to the device"
            )


class Copies:
    """Used under the machine's lock: what waits is of all threads."""

    def __init__(self) -> None:
        self._waiting: list[_Copy] = []

    def to_host(self, stream: int, place: int, host: Tensor, real: Tensor) -> None:
        with torch.inference_mode():
            numbers = real.to(host.dtype).clone()
            poison(host)
        self._waiting.append(_Copy(stream, place, host, numbers, is_to_host=True))

    def to_device(self, stream: int, place: int, host: Tensor) -> None:
        self._waiting.append(_Copy(stream, place, host.detach(), host.clone(), is_to_host=False))

    def finish(self, reached: dict[int, int]) -> None:
        """Those up to a place in each stream."""
        with machine.lock:
            done = [copy for copy in self._waiting if copy.place <= reached.get(copy.stream, -1)]
            kept = [copy for copy in self._waiting if copy.place > reached.get(copy.stream, -1)]
            self._waiting = kept
            for copy in done:
                copy.finish()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(
        one.contiguous().view(torch.uint8).flatten(), other.contiguous().view(torch.uint8).flatten()
    )


copies = Copies()
