"""The cores that are left for this program's threads."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.loading.request import Progress
from engine.threads.crowding import FIRST_S, Crowding, allowed_cores

_MORE = 0.65
"""Cores that must have become free before one more is counted: less than what makes it one fewer
would have the count swing with every look."""


class FreeCores:
    """How many of `most` threads find a core of their own. num_cores: of the machine."""

    def __init__(self, most: int, crowding: Crowding, num_cores: int | None = None) -> None:
        self._most = most
        self._crowding = crowding
        self._num_cores = num_cores or len(allowed_cores())
        self.latest = most

    @property
    def others(self) -> float | None:
        """Cores that other programs kept busy at the last look."""
        return self._crowding.latest

    def count(self, now: float) -> int:
        """At least one; all where it is not known what others use."""
        others = self._crowding.others(now)
        if others is None:
            self.latest = self._most
            return self.latest
        left = self._num_cores - others
        wanted = max(1, min(self._most, int(left + 0.5)))
        if wanted < self.latest or left >= self.latest + _MORE:
            self.latest = wanted
        return self.latest


def while_loading(
    progress: Progress,
    most: int,
    *,
    crowding: Crowding | None = None,
    num_cores: int | None = None,
    apply: Callable[[int], None] = torch.set_num_threads,
    wait: Callable[[float], None] = time.sleep,
) -> Progress:
    """`progress`, that takes as many threads as others leave cores for, now and at every call. A
    tenth of a second is spent on looking first: beside one busy program on two cores the starter
    model, whose kernels are measured while it loads, took 7 to 15 s with two threads, and 2 to 7
    like this. crowding and what follows it are replaced in tests."""
    if most == 1:
        apply(1)
        return progress
    free = FreeCores(most, crowding or Crowding(time.perf_counter), num_cores)
    used = 0

    def adapt() -> None:
        nonlocal used
        count = free.count(time.perf_counter())
        if count != used:
            apply(count)
            used = count

    def told(stage: str, done: int, total: int) -> None:
        adapt()
        progress(stage, done, total)

    wait(FIRST_S)
    adapt()
    return told
