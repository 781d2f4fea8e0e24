"""The tuner: which points of a grid to run, to find the best one under goals in few runs. No Qt, no
torch.

    start     the points that a prediction ranks first, and the middle of each axis
    climb     from the best so far along one axis after the other, cheap changes first (live, cache
              rebuild, reload), until a pass over the axes finds nothing better
    confirm   what the measured noise leaves among the best runs again, until one remains
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.bench.goals import Goals
from app.bench.ranking import Objective, best_under, rank
from app.bench.sweep import LOADS, Axis, Point, Trial
from engine.config import SETTINGS, Change

GUESSES = 3
"""Points that a prediction ranks first, run before the climb."""
SHARE = 4
"""A search runs one in so many points of the grid, or a few of a small one."""
FEWEST = 8
USUAL_NOISE = 0.03
"""Relative standard deviation of a run's throughput, before repetitions show it; it counts as much
as `_PRIOR` repetitions."""
_PRIOR = 2
_SLOW = 0.8
"""Of the best point's requests per second: a run that can no longer reach it ends early."""
_CONTENDERS = 4
_REPEATS = 6
"""Runs of a point after which it is not run again."""

Place = tuple[int, ...]
"""A point by its position on each axis."""


def most_trials(num_points: int) -> int:
    return min(num_points, max(FEWEST, -(-num_points // SHARE)))


def noise_of(points: Sequence[Point]) -> float:
    """Relative standard deviation of throughput from run to run, pooled over repeated points."""
    squares, freedom = _PRIOR * USUAL_NOISE**2, _PRIOR
    for point in points:
        rates = point.samples("output_tokens_per_s")
        if len(rates) > 1:
            squares += statistics.variance(rates) / statistics.fmean(rates) ** 2 * (len(rates) - 1)
            freedom += len(rates) - 1
    return math.sqrt(squares / freedom)


@dataclass(slots=True)
class Tuner:
    """A `Search` of at most `most` runs over the points of `axes`, in their order. `guess`: the
    points from the best to the worst as predicted; fewer or none where it is unknown."""

    axes: Sequence[Axis]
    goals: Goals
    most: int
    guess: Callable[[Sequence[Point]], Sequence[Point]] = lambda points: ()
    objective: Objective = Objective.THROUGHPUT
    _noise: float = USUAL_NOISE

    def __call__(self, points: Sequence[Point]) -> Iterator[Trial]:
        """The next run, chosen by the figures of those before."""
        left = self.most
        for trial in self._trials(points):
            if left == 0:
                return
            yield trial
            left -= 1
            self._noise = noise_of(points)

    def _trials(self, points: Sequence[Point]) -> Iterator[Trial]:
        first = [*self.guess(points)[:GUESSES], points[self._index(self._middle)]]
        for point in first:
            if not point.figures and not point.error:
                yield self._trial(point, points)
        passed: set[Place] = set()
        while True:
            while (before := self._best_place(points)) not in passed:
                passed.add(before)
                for number in self._cheap_first:
                    for step in (1, -1):
                        yield from self._walk(points, number, step)
            again = self._in_doubt(points)
            if again is None:
                return
            yield Trial(again)

    def _walk(self, points: Sequence[Point], number: int, step: int) -> Iterator[Trial]:
        """From the best point along an axis, until a value is worse. Values without an order are
        all tried."""
        best = place = self._best_place(points)
        values = self.axes[number].values
        is_ordered = all(isinstance(value, int | float) for value in values)
        while 0 <= place[number] + step < len(values):
            place = (*place[:number], place[number] + step, *place[number + 1 :])
            point = points[self._index(place)]
            if not point.figures and not point.error:
                yield self._trial(point, points)
            if is_ordered and self._hope(point) < self._hope(points[self._index(best)]):
                return

    def _trial(self, point: Point, points: Sequence[Point]) -> Trial:
        """Ends early once it cannot come near the best one."""
        best = best_under(points, self.goals, self.objective)
        if best is None or self.objective is Objective.MEMORY:  # a slow one may be small
            return Trial(point)
        return Trial(point, _SLOW * best.figures["requests_per_s"])

    def _hope(self, point: Point) -> tuple[bool, float]:
        """As `rank`, with goals that are looser by the noise."""
        meets, value = self._rank(point)
        if not meets and value >= -1 - self._margin(point):
            return True, self.objective.score(point, self.goals)
        return meets, value

    def _rank(self, point: Point) -> tuple[bool, float]:
        return rank(point, self.goals, self.objective)

    def _margin(self, point: Point) -> float:
        """Relative uncertainty of a point's figures."""
        return self._noise / math.sqrt(max(1, len(point.rounds)))

    def _in_doubt(self, points: Sequence[Point]) -> Point | None:
        """The point to run again: the one with the fewest runs among those that may be the best;
        None where that is known."""
        meets, most = max(map(self._rank, points))
        hopes = {id(point): self._hope(point) for point in points}
        found = []
        for point in sorted(points, key=lambda point: hopes[id(point)], reverse=True):
            own, value = hopes[id(point)]
            margin = 2 * self._margin(point) * abs(most)
            if point.is_measured and own >= meets and value >= most - margin:
                found.append(point)
        least = min(found[:_CONTENDERS], key=lambda point: len(point.rounds), default=None)
        if least is None or len(least.rounds) >= (_REPEATS if len(found) > 1 else 2):
            return None
        return least

    def _best_place(self, points: Sequence[Point]) -> Place:
        index = max(range(len(points)), key=lambda i: self._hope(points[i]))
        if not points[index].is_measured:
            return self._middle
        place = []
        for axis in reversed(self.axes):
            index, at = divmod(index, len(axis.values))
            place.append(at)
        return tuple(reversed(place))

    def _index(self, place: Place) -> int:
        index = 0
        for at, axis in zip(place, self.axes, strict=True):
            index = index * len(axis.values) + at
        return index

    @property
    def _middle(self) -> Place:
        return tuple(len(axis.values) // 2 for axis in self.axes)

    @property
    def _cheap_first(self) -> list[int]:
        order = list(Change)
        costs = [
            -1 if axis.name in LOADS else order.index(SETTINGS[axis.name].change)
            for axis in self.axes
        ]
        return sorted(range(len(costs)), key=lambda number: costs[number])
