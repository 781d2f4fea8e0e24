"""Users under the goals: a search for the largest load that meets them. No Qt.

    1  2  3  4  6  8  12 ...     loads in steps of a third to a half
    +     +        -             growing steps up from the start, until one misses
                +                then by halves
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from app.bench.goals import Goals
from app.bench.ranking import rank
from app.bench.report import LATENCIES, STATISTICS
from app.bench.sweep import Point, Search, Trial

USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DOUBT = 2.0
"""Ratio to a goal above which a miss is one without another run."""
_RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")


def users_search(goals: Goals, start: int, rounds: int = 1) -> Search:
    """The largest load that meets the goals: from the point at `start` in growing steps, then by
    halves; that one `rounds` times. A narrow miss is run again: two of three runs decide."""

    def search(points: Sequence[Point]) -> Iterator[Trial]:
        low, high, at, step = -1, len(points), start, 1
        while high - low > 1:
            yield from _decided(points[at], goals)
            meets = rank(points[at], goals)[0]
            low, high = (at, high) if meets else (low, at)
            if low < 0:
                at = max(0, high - step)
            elif high == len(points):
                at = min(high - 1, low + step)
            else:
                at = (low + high) // 2
            step *= 2
        best = points[max(low, 0)]
        for _ in range(rounds - len(best.rounds)):
            yield Trial(best)
        use_medians(best)

    return search


def _decided(point: Point, goals: Goals) -> Iterator[Trial]:
    meets = lambda figures: (goals.excess(figures) or 0.0) <= 1
    yield Trial(point)
    if not point.is_measured or not 1 < (goals.excess(point.figures) or 0.0) < DOUBT:
        return
    yield Trial(point)
    if meets(point.rounds[-1]):
        yield Trial(point)
    use_medians(point)


def use_medians(point: Point) -> None:
    """Latencies and rates are the medians of the rounds, in place of pooled ones: a run that
    something else disturbed does not decide."""
    if len(point.rounds) < 2:
        return
    for _, key in LATENCIES:
        for name in STATISTICS:
            point.figures[key][name] = _median(point.samples(key, name))
    for key in _RATES:
        point.figures[key] = _median(point.samples(key))


def _median(samples: Sequence[float]) -> float | None:
    return statistics.median(samples) if samples else None
