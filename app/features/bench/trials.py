"""Trials as points of a Pareto chart: throughput against latency or memory. No Qt."""

from __future__ import annotations

from collections.abc import Callable

from app.bench.goals import FIGURES, NAMES
from app.bench.point_table import predictions
from app.bench.ranking import memory_of, pareto
from app.bench.record import BenchResult
from app.bench.sweep import Point, axis_title, figure_of, value_words
from engine.units import bytes_text, duration_text, rate_text
from widgets.plot.pareto_plot import Dot

MIB = 2**20


def latency_of(result: BenchResult) -> Callable[[Point], float | None]:
    """Milliseconds at the percentile of the goals."""
    key, statistic = FIGURES[result.goal_shown], f"p{result.goals.percentile}"
    return lambda point: figure_of(point, key, statistic)


def dots_of(
    result: BenchResult, cost: Callable[[Point], float | None]
) -> tuple[list[Point], list[Dot]]:
    """The measured points that have a cost, and their dots."""
    best = result.best
    front = {id(point) for point in pareto(result.points, cost)}
    points, dots = [], []
    for point in result.points:
        level = cost(point) if point.is_measured else None
        if level is None:
            continue
        points.append(point)
        rate = point.figures["output_tokens_per_s"] or 0.0
        dots.append(Dot(rate, level, explained(point, result), id(point) in front, point is best))
    return points, dots


def explained(point: Point, result: BenchResult) -> tuple[str, ...]:
    """Its settings, and its figures."""
    lines = [f"{axis_title(n)} {value_words(n, v)}" for n, v in point.settings.items()]
    figures, statistic = point.figures, f"p{result.goals.percentile}"
    lines.append(f"Output {rate_text(figures['output_tokens_per_s'])}")
    lines += [
        f"{NAMES[name]} {statistic} {duration_text(level / 1000)}"
        for name in ("ttft", "itl")
        if (level := figure_of(point, FIGURES[name], statistic)) is not None
    ]
    if point.predicted:
        lines += [f"{title} {text}" for title, text in predictions(point, result)]
    if (rate := point.goodput(result.goals)) is not None:
        lines.append(f"Goodput {rate_text(rate, 'req/s')}")
    if (used := memory_of(point)) is not None:
        lines.append(f"Memory {bytes_text(used)}")
    if len(point.rounds) > 1:
        lines.append(f"{len(point.rounds)} runs")
    return tuple(lines)


def memory_mib(point: Point) -> float | None:
    used = memory_of(point)
    return None if used is None else used / MIB
