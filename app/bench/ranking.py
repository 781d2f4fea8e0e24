"""Which point of a sweep or a search is the best one under latency goals. No Qt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

from app.bench.goals import Goals
from app.bench.sweep import Point


class Objective(StrEnum):
    """What the best point has most or least of. At a price per hour, the highest throughput is the
    lowest cost per token."""

    THROUGHPUT = "throughput"
    GOODPUT = "goodput"
    MEMORY = "memory"

    @property
    def label(self) -> str:
        return {
            Objective.THROUGHPUT: "Throughput (lowest cost)",
            Objective.GOODPUT: "Goodput",
            Objective.MEMORY: "Lowest memory",
        }[self]

    def score(self, point: Point, goals: Goals) -> float:
        """The larger, the better; -inf where it is not known."""
        if self is Objective.GOODPUT:
            found = point.goodput(goals)
        elif self is Objective.MEMORY:
            used = memory_of(point)
            found = None if used is None else -used
        else:
            found = point.figures["output_tokens_per_s"] or 0.0
        return -math.inf if found is None else found


def memory_of(point: Point) -> float | None:
    """Bytes of the weights and of the KV cache in use at its peak; None for a server."""
    found: float | None = point.figures.get("memory_bytes")
    return found


def rank(
    point: Point, goals: Goals, objective: Objective = Objective.THROUGHPUT
) -> tuple[bool, float]:
    """The larger, the better: the objective of a point whose percentiles meet every goal, else how
    little it exceeds them. A request that failed met no goal. Goodput counts the requests that
    meet them, whatever the others do."""
    if not point.is_measured:
        return False, -math.inf
    excess = goals.excess(point.figures)
    if objective is Objective.GOODPUT:
        meets = bool(point.goodput(goals))
    else:
        meets = excess is not None and excess <= 1 and not point.figures["failed"]
    if meets:
        return True, objective.score(point, goals)
    return False, -math.inf if excess is None else -excess


def best_under(
    points: Sequence[Point], goals: Goals, objective: Objective = Objective.THROUGHPUT
) -> Point | None:
    """The best point under the goals; None where none meets them."""
    key = lambda point: rank(point, goals, objective)
    best = max(points, key=key, default=None)
    return best if best is not None and key(best)[0] else None


def users_under(points: Sequence[Point], goals: Goals) -> int | None:
    """The largest concurrency whose percentiles meet every goal: "users under the goal"."""
    found = [
        point.settings["concurrency"]
        for point in points
        if "concurrency" in point.settings and rank(point, goals)[0]
    ]
    return max(found, default=None)


def nearest(points: Sequence[Point], goals: Goals) -> Point | None:
    """The point that exceeds the goals least."""
    known = [point for point in points if point.is_measured]
    excess = {id(p): e for p in known if (e := goals.excess(p.figures)) is not None}
    return min((p for p in known if id(p) in excess), key=lambda p: excess[id(p)], default=None)


def pareto(points: Sequence[Point], cost: Callable[[Point], float | None]) -> list[Point]:
    """Measured points than which no other is as fast at as little cost, slowest first."""
    found: list[Point] = []
    known = [
        (point.figures["output_tokens_per_s"] or 0.0, least, point)
        for point in points
        if point.is_measured and (least := cost(point)) is not None
    ]
    lowest = math.inf
    for _, least, point in sorted(known, key=lambda one: (-one[0], one[1])):
        if least < lowest:
            lowest = least
            found.append(point)
    return found[::-1]
