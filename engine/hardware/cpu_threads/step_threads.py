"""The number of threads of the next step."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from engine.hardware.cpu_threads.idle_cores import FIRST_S, Crowding, allowed_cores
from engine.hardware.cpu_threads.search import Search, counts
from engine.snapshot import ThreadFigures, ThreadsOf

if TYPE_CHECKING:
    from engine.config import EngineConfig

Progress = Callable[[str, int, int], None]

LARGE = 64
"""Tokens of a step that is computed with all threads that have a core: there is enough to do for
each of them, and steps differ too much in length to be compared."""
BYTES_PER_THREAD = 32 * 2**20
"""Of weights, which one thread reads in about 4 ms: where a search begins."""

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


class StepThreads:
    """Of steps that are computed on the CPU, in whole or in part; where a GPU computes all of it,
    nothing is done. config: with num_threads resolved; weights_bytes: that the CPU reads in a step,
    None where it computes nothing; clock: the engine's. crowding, num_cores, apply (which sets the
    number for the thread that calls) are replaced in tests."""

    def __init__(
        self,
        config: EngineConfig,
        weights_bytes: int | None,
        clock: Callable[[], float],
        *,
        crowding: Crowding | None = None,
        num_cores: int | None = None,
        apply: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        self._apply = apply
        self._ranks = config.tensor_parallel_size  # which divide the threads alike
        self._most = 0 if weights_bytes is None else self._for_ranks(config.num_threads or 1)
        self._free = FreeCores(self._most, crowding or Crowding(clock), num_cores)
        self._used = 0
        self._counts = tuple(self._ranks * n for n in counts(self._most // self._ranks))
        wanted = min(self._most, -(-(weights_bytes or 0) // BYTES_PER_THREAD))
        self._start = bisect_left(self._counts, wanted)
        self._searches: dict[int, Search] = {}
        self._kind = 0  # of the step that runs: its tokens' bit length; 0: not compared
        self.update(config)

    def update(self, config: EngineConfig) -> None:
        """Take over live settings."""
        self._is_adaptive = config.adaptive_threads and self._most > 1
        self.rest()

    def rest(self) -> None:
        """All threads again, for what is computed between steps."""
        self._kind = 0
        self._set(self._most)

    def begin(self, num_tokens: int, now: float, *, is_timed: bool = True) -> int:
        """Set the number for a step with so many tokens; what it is, 0 on a GPU. is_timed: whether
        what `ended` is told belongs to this step alone; if not, nothing is tried."""
        count = self._count(num_tokens, now, is_timed) if self._is_adaptive else self._most
        self._set(count)  # another engine of this thread may have set its own
        return count

    def ended(self, seconds: float, now: float) -> None:
        """The step that `begin` was called for took so long."""
        search = self._searches.get(self._kind)
        if search is not None and self._is_adaptive:
            search.learn(self._used, seconds, now)

    def figures(self) -> ThreadFigures | None:
        """What was found, for the window; None on a GPU."""
        if not self._most:
            return None
        if not self._is_adaptive:
            return ThreadFigures(self._most, self._used, self._most, None)
        free = self._free.latest
        found = tuple(
            ThreadsOf(1 << (kind - 1), (1 << kind) - 1, min(self._searches[kind].best, free))
            for kind in sorted(self._searches)
        )
        return ThreadFigures(self._most, self._used, free, self._free.others, found)

    def _set(self, count: int) -> None:
        self._used = count
        if count:
            self._apply(count)

    def _for_ranks(self, count: int) -> int:
        """As many for each: at least one, and no more than there are, if there are that many."""
        return max(1, count // self._ranks) * self._ranks

    def _count(self, num_tokens: int, now: float, is_timed: bool) -> int:
        free = self._for_ranks(self._free.count(now))
        if num_tokens >= LARGE or not is_timed:
            self._kind = 0
            return free
        self._kind = num_tokens.bit_length()
        search = self._searches.get(self._kind)
        if search is None:
            search = self._searches[self._kind] = Search(self._counts, self._first_place())
        return search.count(now, free)

    def _first_place(self) -> int:
        """Where the search for a new kind begins: with what was found for the kind next to it,
        first of all with what the size of the model suggests."""
        if not self._searches:
            return self._start
        nearest = min(self._searches, key=lambda kind: abs(kind - self._kind))
        return self._searches[nearest].place
