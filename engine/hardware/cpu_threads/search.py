"""Finds the number of threads with which steps of one kind are fastest, while they run.

    steps   A A A A A A A | A A A A A A  B B B B B B  B B B B B B  A A A A A A | A A A ...
            as it is        a trial: B is the next count                         the better

Conditions change: the window draws, other programs begin, contexts grow. So trials go on, and only
what was measured in turns is compared. They are rare enough to cost at most a fiftieth of the time,
and become rarer while nothing changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

AS_FAST = 1.03
"""Fewer threads are taken where steps are not slower than this: other programs, and the window,
have the cores then."""
FASTER = 0.95
"""More threads are taken where steps take at most this part of the time."""
WARM_UP = 4  # steps before the first trial
SHORT_S = 0.010
"""Of shorter steps the first after a change is not counted: threads have to be woken."""
COST = 50
"""A trial that cost a second more than no trial is followed by so many seconds without one."""
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
_DOUBLED = 8
"""So often a pause becomes twice as long: by then it is the longest in any case."""
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
    """Two counts in turns, as A B B A: what changes evenly in the meantime affects both alike."""

    def __init__(self, here: int, other: int, is_short: bool) -> None:
        self.here, self.other = here, other
        block, self._skip = (6, 1) if is_short else (1, 0)
        once = [count for count in (here, other, other, here) for _ in range(block)]
        self._turns = once if is_short else once * 2
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
        now = self._next
        is_first = now == 0 or self._turns[now - 1] != self._turns[now]
        if not (self._skip and is_first):
            self._seconds[self._turns[now]].append(seconds)
        self._next += 1

    @property
    def ratio(self) -> float:
        """Time of a step with the other count over that with the present one."""
        return _mean(self._seconds[self.other]) / max(_mean(self._seconds[self.here]), 1e-9)

    @property
    def cost_s(self) -> float:
        """What the steps with the other count took longer."""
        usual = _mean(self._seconds[self.here])
        return sum(max(0.0, seconds - usual) for seconds in self._seconds[self.other])


def _mean(seconds: Sequence[float]) -> float:
    """Without the longest: one stray interruption decides nothing. Where interruptions are the
    rule, there is more than one."""
    kept = sorted(seconds)[:-1]
    return sum(kept) / len(kept)


class Search:
    """The best count for steps of one kind. counts: ascending; place: where to begin among them."""

    def __init__(self, counts: Sequence[int], place: int) -> None:
        self._counts = counts
        self.place = place
        self._here = self.best  # or what the last step was allowed to have, if that is less
        self._trial: Trial | None = None
        self._last_step = -math.inf
        self._is_down = True  # where the next trial looks first
        self._num_steps = 0
        self._mean: float | None = None
        self._mean_then: float | None = None  # at the last trial
        self._next_trial = -math.inf
        self._not_before = -math.inf  # for the cost of the last one
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
        if self._trial is None and self._num_steps >= WARM_UP and now >= self._next_trial:
            self._begin(now, most)
        return self._here if self._trial is None else self._trial.count

    def learn(self, count: int, seconds: float, now: float) -> None:
        """A step with `count` threads took so long."""
        self._last_step = now
        if self._trial is not None:
            if count == self._trial.count:
                self._trial.add(seconds)
                if self._trial.is_over:
                    self._decide(self._trial, now)
        elif count == self._here:
            self._num_steps += 1
            mean = seconds if self._mean is None else self._mean
            self._mean = mean + _WEIGHT * (seconds - mean)
            self._look_for_shift(now)

    def _look_for_shift(self, now: float) -> None:
        if self._mean is None or self._mean_then is None or self._num_steps < 2 / _WEIGHT:
            return
        if not 1 / SHIFT <= self._mean / self._mean_then <= SHIFT:
            self._mean_then = self._mean
            self._refused = 0
            self._next_trial = max(now, self._not_before)

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
        ratio, pause = trial.ratio, max(PAUSE_S, COST * trial.cost_s)
        self._not_before = now + pause
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
