"""The thread count of each step on the CPU, found while steps run.

All threads of a matmul wait for the slowest: where another program occupies a core for a time slice
(a few ms to 100), all of them stall. Next to one program that never sleeps, Qwen3-0.6B in bfloat16
on two cores takes 109 ms per token with two threads and 52 with one; alone it takes 29 and 47. For
a small model waking the threads costs more than they gain. The tokens do not depend on the count.

    steps   A A A A A A A | A A A A A A  B B B B B B  B B B B B B  A A A A A A | A A A ...
            as it is        a trial: B is the next count                         the better

Conditions change: the window draws, other programs start, contexts grow. So trials go on, and only
alternating measurements are compared. Trials cost at most a fiftieth of the steps' time and become
rarer while nothing changes.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.hardware.idle_cores import FIRST_S, FreeCores, Used
from engine.snapshot import ThreadFigures, ThreadsOf

if TYPE_CHECKING:
    from engine.config import EngineConfig

Progress = Callable[[str, int, int], None]

LARGE = 32
"""Tokens of a step that is computed with all threads that have a core: there is enough to do for
each of them, and steps differ too much in length to be compared."""
BYTES_PER_THREAD = 32 * 2**20
"""Of weights, which one thread reads in about 4 ms: where a search begins."""
AS_FAST = 1.03
"""Fewer threads are taken where steps are not slower than this: other programs, and the window,
have the cores then."""
FASTER = 0.95
"""More threads are taken where steps take at most this part of the time."""
WARM_UP = 4  # steps before the first trial
SHORT_S = 0.010
"""Of shorter steps the first after a change is not counted: threads have to be woken."""
COST = 50
"""After a trial that cost a second more than no trial, steps of so many seconds come without one: a
pause between two replies pays for nothing."""
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
_DOUBLED = 8  # so often a pause becomes twice as long: by then it is the longest in any case
IDLE_S = 2.0
"""Without a step for so long, what a trial has of the time before is no comparison any more."""
SHIFT = 1.5
"""Steps so many times as long, or as short, as at the last trial: conditions have changed."""
_WEIGHT = 0.1  # of the last step in the running mean


def counts(most: int) -> tuple[int, ...]:
    """The numbers that are tried: powers of two, and `most`."""
    powers = (1 << n for n in range(most.bit_length()))
    return (*(n for n in powers if n < most), most)


class Trial:
    """A comparison of two counts, alternating as A B B A so that a steady drift affects both
    equally."""

    def __init__(self, here: int, other: int, is_short: bool) -> None:
        self.here, self.other = here, other
        self._skip = is_short
        turns = (here, other, other, here)
        self._turns = [n for n in turns for _ in range(6)] if is_short else [*turns, *turns]
        self._seconds: dict[int, list[float]] = {here: [], other: []}
        self._next = 0

    @property
    def count(self) -> int:
        """Threads of the next step."""
        return self._turns[self._next]

    @property
    def is_over(self) -> bool:
        return self._next == len(self._turns)

    def add(self, seconds: float) -> None:
        """The duration of a step with `count` threads."""
        is_first = self._next == 0 or self._turns[self._next - 1] != self.count
        if not (self._skip and is_first):
            self._seconds[self.count].append(seconds)
        self._next += 1

    @property
    def ratio(self) -> float:
        """Time of a step with the other count over that with the present one."""
        return _mean(self._seconds[self.other]) / max(_mean(self._seconds[self.here]), 1e-9)

    @property
    def cost_s(self) -> float:
        """The extra time of the steps with the other count."""
        usual = _mean(self._seconds[self.here])
        return sum(max(0.0, seconds - usual) for seconds in self._seconds[self.other])


def _mean(seconds: Sequence[float]) -> float:
    """Without the longest: one stray interruption decides nothing. Where interruptions are the
    rule, there is more than one."""
    kept = sorted(seconds)[:-1]
    return sum(kept) / len(kept)


class Search:
    """Searches the best count for steps of one kind. counts: ascending; place: the index to start
    at."""

    def __init__(self, counts: Sequence[int], place: int) -> None:
        self._counts = counts
        self.place = place
        self._here = self.best  # or what the last step was allowed to have, if that is less
        self._trial: Trial | None = None
        self._last_step = -math.inf
        self._spent = 0.0  # seconds of steps
        self._is_down = True  # where the next trial looks first
        self._num_steps = 0
        self._mean: float | None = None
        self._mean_then: float | None = None  # at the last trial
        self._next_trial = -math.inf
        self._not_before = 0.0  # seconds of steps: for the cost of the last one
        self._refused = 0

    @property
    def best(self) -> int:
        return self._counts[self.place]

    def count(self, now: float, most: int) -> int:
        """Threads of the next step, at most `most`. Where the best are more, `most` is compared
        with fewer: others may keep a core for good."""
        self._here = min(self.best, most)
        trial = self._trial
        if trial is not None and (
            trial.here != self._here or trial.other > most or now - self._last_step > IDLE_S
        ):
            self._trial = None
        is_due = now >= self._next_trial and self._spent >= self._not_before
        if self._trial is None and self._num_steps >= WARM_UP and is_due:
            self._begin(now, most)
        return self._here if self._trial is None else self._trial.count

    def learn(self, count: int, seconds: float, now: float) -> None:
        """Record the duration of a step with `count` threads."""
        self._last_step = now
        self._spent += seconds
        if self._trial is not None:
            if count == self._trial.count:
                self._trial.add(seconds)
                if self._trial.is_over:
                    self._decide(self._trial, now)
        elif count == self._here:
            self._num_steps += 1
            mean = seconds if self._mean is None else self._mean
            self._mean = mean + _WEIGHT * (seconds - mean)
            then = self._mean_then
            if then is None or self._num_steps < 2 / _WEIGHT:
                return
            if not 1 / SHIFT <= self._mean / then <= SHIFT:
                self._mean_then = self._mean
                self._refused = 0
                self._next_trial = now

    def _begin(self, now: float, most: int) -> None:
        fewer = bisect_left(self._counts, self._here)
        for is_down in (self._is_down, not self._is_down):
            place = fewer - 1 if is_down else self.place + 1
            if 0 <= place < len(self._counts) and self._counts[place] <= most:
                self._is_down = is_down
                is_short = (self._mean or 0.0) < SHORT_S
                self._trial = Trial(self._here, self._counts[place], is_short)
                return
        self._next_trial = now + PAUSE_S

    def _decide(self, trial: Trial, now: float) -> None:
        self._trial = None
        ratio, paid = trial.ratio, COST * trial.cost_s
        pause = max(PAUSE_S, paid)
        self._not_before = self._spent + paid
        if ratio <= (AS_FAST if trial.other < trial.here else FASTER):
            self.place = self._counts.index(trial.other)
            self._refused = 0
            self._num_steps = 0
            self._mean = self._mean_then = None
            is_last = self.place in (0, len(self._counts) - 1)
            self._next_trial = now + pause if is_last else now
            return
        self._is_down = not self._is_down
        self._mean_then = self._mean
        longest = max(LONGEST_PAUSE_S, pause)
        self._next_trial = now + min(longest, pause * 2 ** min(self._refused, _DOUBLED))
        self._refused += 1


def while_loading(
    progress: Progress,
    most: int,
    *,
    free: FreeCores | None = None,
    apply: Callable[[int], None] = torch.set_num_threads,
    wait: Callable[[float], None] = time.sleep,
) -> Progress:
    """`progress`, that takes as many threads as others leave cores for, now and at every call. A
    tenth of a second is spent on looking first: beside one busy program on two cores the starter
    model, whose kernels are measured while it loads, took 7 to 15 s with two threads, and 2 to 7
    like this. free, apply, wait: replaced in tests."""
    if most == 1:
        apply(1)
        return progress
    free = free or FreeCores(most)
    used = 0

    def told(stage: str, done: int, total: int) -> None:
        adapt()
        progress(stage, done, total)

    def adapt() -> None:
        nonlocal used
        count = free.count(time.perf_counter())
        if count != used:
            apply(count)
            used = count

    wait(FIRST_S)
    adapt()
    return told


class StepThreads:
    """The thread counts of an engine's steps. Does nothing where a GPU computes everything.

    config: with num_threads resolved. weights_bytes: read by the CPU per step; None: the CPU
    computes nothing. clock: the engine's. num_cores, read, running (see `FreeCores`), apply (sets
    the count for the calling thread): replaced in tests.
    """

    def __init__(
        self,
        config: EngineConfig,
        weights_bytes: int | None,
        clock: Callable[[], float],
        *,
        num_cores: int | None = None,
        read: Callable[[], Used] | None = None,
        running: Callable[[], int | None] | None = None,
        apply: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        self._apply = apply
        self._most = 0 if weights_bytes is None else config.num_threads or 1
        self._free = FreeCores(
            self._most, clock, num_cores=num_cores, read=read, running=running
        )
        self._used = 0
        self._counts = counts(self._most)
        wanted = min(self._most, -(-(weights_bytes or 0) // BYTES_PER_THREAD))
        self._start = bisect_left(self._counts, wanted)
        self._searches: dict[int, Search] = {}
        self._kind = 0  # of the step that runs: its tokens' bit length; 0: not compared
        self.update(config)

    def update(self, config: EngineConfig) -> None:
        """Apply live settings."""
        self._is_adaptive = config.adaptive_threads and self._most > 1
        self.rest()

    def rest(self) -> None:
        """Set the full thread count, for computations between steps."""
        self._kind = 0
        self._set(self._most)

    def begin(self, num_tokens: int, now: float, *, is_timed: bool = True) -> int:
        """Set and return the thread count for a step of `num_tokens` tokens; 0 on a GPU. is_timed:
        whether the time for `ended` belongs to this step only; otherwise no trial runs."""
        count = self._count(num_tokens, now, is_timed) if self._is_adaptive else self._most
        self._set(count)  # another engine of this thread may have set its own
        return count

    def ended(self, seconds: float, now: float) -> None:
        """Record the duration of the step that `begin` was called for."""
        search = self._searches.get(self._kind)
        if search is not None and self._is_adaptive:
            search.learn(self._used, seconds, now)

    def figures(self) -> ThreadFigures | None:
        """The results for the window; None on a GPU."""
        if not self._most:
            return None
        if not self._is_adaptive:
            return ThreadFigures(self._most, self._used, self._most, None)
        free = self._free.latest
        found = tuple(
            ThreadsOf(1 << (kind - 1), (1 << kind) - 1, min(self._searches[kind].best, free))
            for kind in sorted(self._searches)
        )
        return ThreadFigures(self._most, self._used, free, self._free.latest_others, found)

    def _set(self, count: int) -> None:
        self._used = count
        if count:
            self._apply(count)

    def _count(self, num_tokens: int, now: float, is_timed: bool) -> int:
        if num_tokens >= LARGE:  # long enough for a closer look
            self._kind = 0
            return self._free.count_now(now)
        free = self._free.count(now)
        if not is_timed:
            self._kind = 0
            return free
        self._kind = num_tokens.bit_length()
        if self._kind not in self._searches:
            # begin with what was found for the kind next to it, or suits the model's size
            nearest = min(self._searches, key=lambda kind: abs(kind - self._kind), default=None)
            place = self._start if nearest is None else self._searches[nearest].place
            self._searches[self._kind] = Search(self._counts, place)
        return self._searches[self._kind].count(now, free)
