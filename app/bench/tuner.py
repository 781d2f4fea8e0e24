"""The tuner: which points of a grid to run, to find the best one under goals in few runs. No Qt, no
torch.

    start     the points that a prediction ranks first, and the middle of each axis
    climb     from the best so far along one axis after the other, cheap changes first (live, cache
              rebuild, reload), until a pass over the axes finds nothing better
    restart   while nothing meets the goals: climb from the point farthest from all measured ones
    confirm   what the measured noise leaves among the best runs again, until one remains
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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


def noise_of(every: Iterable[Sequence[float]], usual: float = USUAL_NOISE) -> float:
    """Relative standard deviation of throughput from run to run: of the rates of each repeated
    point, pooled with the `usual` one."""
    squares, freedom = _PRIOR * usual**2, _PRIOR
    for rates in every:
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
            self._noise = noise_of(point.samples("output_tokens_per_s") for point in points)

    def _trials(self, points: Sequence[Point]) -> Iterator[Trial]:
        first = [*self.guess(points)[:GUESSES], points[self._index(self._middle)]]
        for point in first:
            if not point.figures and not point.error:
                yield self._trial(point, points)
        passed: set[Place] = set()
        while True:
            yield from self._climb(points, self._best_place(points), passed)
            while not any(self._hope(point)[0] for point in points):
                farthest = self._farthest(points)
                if farthest is None:
                    return
                yield self._trial(points[self._index(farthest)], points)
                yield from self._climb(points, farthest, passed)
            again = self._in_doubt(points)
            if again is None:
                return
            yield Trial(again)

    def _climb(self, points: Sequence[Point], best: Place, passed: set[Place]) -> Iterator[Trial]:
        while best not in passed:
            passed.add(best)
            for number in self._cheap_first:
                for step in (1, -1):
                    best = yield from self._walk(points, best, number, step)

    def _walk(
        self, points: Sequence[Point], start: Place, number: int, step: int
    ) -> Generator[Trial, None, Place]:
        """From a point along an axis, until a value is worse; returns the best place. Values
        without an order are all tried."""
        hope = lambda place: self._hope(points[self._index(place)])
        best = place = start
        values = self.axes[number].values
        is_ordered = all(isinstance(value, int | float) for value in values)
        while 0 <= place[number] + step < len(values):
            place = (*place[:number], place[number] + step, *place[number + 1 :])
            point = points[self._index(place)]
            if not point.figures and not point.error:
                yield self._trial(point, points)
            if hope(place) > hope(best):
                best = place
            elif is_ordered and hope(place) < hope(start):
                break
        return best

    def _farthest(self, points: Sequence[Point]) -> Place | None:
        """The place without a run whose nearest one with a run is farthest, in lengths of the
        axes; None where all ran."""
        places = list(itertools.product(*(range(len(axis.values)) for axis in self.axes)))
        ran = [p for p in places if (point := points[self._index(p)]).figures or point.error]
        distance = lambda one, other: sum(
            abs(a - b) / max(1, len(axis.values) - 1)
            for a, b, axis in zip(one, other, self.axes, strict=True)
        )
        left = [place for place in places if place not in ran]
        return max(left, key=lambda p: min(distance(p, other) for other in ran), default=None)

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
