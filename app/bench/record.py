"""A sweep as a stored run, its table, and its exports: JSON, CSV, HTML. No Qt."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from app.bench.export import html_page, write
from app.bench.goals import Goals
from app.bench.ranking import Objective, best_under, memory_of, nearest, pareto, users_under
from app.bench.sweep import LOADS, Point
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State
from engine.config import SETTINGS
from engine.units import bytes_text, duration_text, rate_text, setting_text

NO_GOALS = Goals()
COLUMNS = (
    ("ttft_ms", "p50", "TTFT p50", "ms"), ("ttft_ms", "p99", "TTFT p99", "ms"),
    ("itl_ms", "p50", "ITL p50", "ms"), ("itl_ms", "p99", "ITL p99", "ms"),
    ("e2e_ms", "p50", "E2E p50", "ms"),
    ("output_tokens_per_s", "", "Output", "tok/s"), ("requests_per_s", "", "Requests", "req/s"),
)  # fmt: skip
"""Figure, statistic, title and unit. A p99 of under 100 samples is a maximum."""
AXES = {"concurrency": "Concurrency", "request_rate": "Request rate"}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A sweep with what it ran. `work`: workload and arrivals in words; `state` of the run."""

    model: str
    precision: str
    work: str
    points: tuple[Point, ...]
    goals: Goals = NO_GOALS
    state: State = State.DONE
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    rounds: int = 1
    objective: Objective = Objective.THROUGHPUT

    @property
    def best(self) -> Point | None:
        """The best point under the goals."""
        return best_under(self.points, self.goals, self.objective) if self.goals.limits else None

    @property
    def axes(self) -> list[str]:
        return list(self.points[0].settings) if self.points else []


def axis_title(name: str) -> str:
    return AXES.get(name) or SETTINGS[name].label


def setting_words(point: Point) -> str:
    """ "Concurrency 8, Max running requests 4"."""
    return ", ".join(f"{axis_title(n)} {value_words(n, v)}" for n, v in point.settings.items())


def value_words(axis: str, value: Any) -> str:
    """A load is a number; settings that are fractions are shown in percent."""
    return f"{value:,g}" if axis in LOADS else setting_text(value)


def figure_of(point: Point, key: str, statistic: str) -> float | None:
    """A figure of `COLUMNS`; of a p99 without enough samples the maximum."""
    if not point.is_measured:
        return None
    found = point.figures[key]
    if not statistic:
        return None if found is None else float(found)
    level = found[statistic]
    return found["max"] if level is None else level


_BEST = {
    Objective.THROUGHPUT: "is the fastest that meets",
    Objective.GOODPUT: "has the highest goodput under",
    Objective.MEMORY: "uses the least memory that meets",
}


def answer(
    points: Sequence[Point], goals: Goals, objective: Objective = Objective.THROUGHPUT
) -> str:
    """Which point meets the goals, in a sentence; the nearest one where none does."""
    if not any(point.is_measured for point in points):
        return ""
    if not goals.limits:
        return "Set a goal to see which point meets it."
    best = best_under(points, goals, objective)
    if best is None:
        near = nearest(points, goals)
        closest = f" Nearest: {setting_words(near)} ({goals.missed(near.figures)})." if near else ""
        return f"No point meets {goals}.{closest}"
    users = users_under(points, goals)
    rate = best.goodput(goals)
    parts = [rate_text(best.figures["output_tokens_per_s"]), f"goodput {rate_text(rate, 'req/s')}"]
    if objective is Objective.MEMORY and (used := memory_of(best)) is not None:
        parts.insert(0, bytes_text(used))
    text = f"{setting_words(best)} {_BEST[objective]} {goals}: {', '.join(parts)}."
    return text if users is None else f"{text} Users under the goal: {users}."


def to_run(result: BenchResult) -> RunRecord:
    """The run of a sweep; its figures are those of the best point under the goals, else of the
    one with the highest throughput."""
    points = result.points
    best = best_under(points, result.goals, result.objective) or max(
        (point for point in points if point.is_measured),
        key=lambda point: point.figures["output_tokens_per_s"], default=None,
    )  # fmt: skip
    sides = () if best is None else (RunSide(setting_words(best), figures_of_side(best)),)
    failed = next((point.error for point in points if point.error), "")
    state = State.FAILED if best is None and failed else result.state
    details = {
        "work": result.work, "answer": answer(points, result.goals, result.objective),
        "rounds": result.rounds, "goals": msgspec.to_builtins(result.goals),
        "objective": result.objective.value,
        "points": msgspec.to_builtins(list(points)),
    }  # fmt: skip
    return RunRecord(
        "", Kind.BENCH, result.model, result.precision, result.created, sides, state,
        cause=failed if state is State.FAILED else "", name=f"{result.model}, {result.work}",
        details=details,
    )  # fmt: skip


def from_run(run: RunRecord) -> BenchResult:
    """The sweep that `to_run` stored. Raises ValueError for damaged details."""
    details = run.details
    try:
        points = msgspec.convert(details["points"], tuple[Point, ...])
        goals = msgspec.convert(details["goals"], Goals)
        objective = Objective(details.get("objective", Objective.THROUGHPUT))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a sweep: {error!r}") from error
    work, rounds = str(details.get("work", "")), int(details.get("rounds", 1))
    return BenchResult(
        run.model, run.precision, work, points, goals, run.state, run.created, rounds,
        objective,
    )


def figures_of_side(point: Point) -> dict[str, Measured]:
    figures = point.figures
    found: dict[str, Measured] = {}
    for key, of in (("ttft", "ttft_ms"), ("itl", "itl_ms")):
        if (value := figures[of]["p50"]) is not None:
            samples = tuple(1e-3 * sample for sample in point.samples(of, "p50"))
            found[key] = Measured(1e-3 * value, samples)
    if (rate := figures["total_tokens_per_s"]) is not None:
        found["total_tokens_per_s"] = Measured(rate, tuple(point.samples("total_tokens_per_s")))
    return found


def as_dict(result: BenchResult) -> dict[str, Any]:
    """As `bench --sweep --json` writes it."""
    points = []
    for point in result.points:
        intervals = {
            f"{key}.{statistic}" if statistic else key: half
            for key, statistic, _, _ in COLUMNS
            if (half := point.interval(key, statistic)) is not None
        }
        points.append({
            "settings": point.settings, **point.figures, "goodput": point.goodput(result.goals),
            "interval_95": intervals, "error": point.error or None, "rounds": point.rounds,
        })  # fmt: skip
    best, by_excess = result.best, lambda point: result.goals.excess(point.figures)
    return {
        "model_name": result.model, "precision": result.precision, "work": result.work,
        "created": result.created, "state": result.state.value,
        "goals": msgspec.to_builtins(result.goals), "objective": result.objective.value,
        "best": best.settings if best else None,
        "users_under_goal": users_under(result.points, result.goals),
        "pareto": [point.settings for point in pareto(result.points, by_excess)],
        "points": points,
    }  # fmt: skip


def heads(result: BenchResult) -> list[str]:
    titles = [f"{title} ({unit})" for _, _, title, unit in COLUMNS]
    return [*map(axis_title, result.axes), *titles, "Goodput (req/s)"]


def cells(point: Point, goals: Goals) -> list[str]:
    """The row of a point: "47.1 ±1.2" with its 95 % interval."""
    row = [value_words(name, value) for name, value in point.settings.items()]
    for key, statistic, _, _ in COLUMNS:
        row.append(_cell(figure_of(point, key, statistic), point.interval(key, statistic)))
    return [*row, _cell(point.goodput(goals), None)]


def _cell(value: float | None, half: float | None) -> str:
    if value is None:
        return "–"
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" + ("" if half is None else f" ±{half:,.{digits}f}")


def as_text(result: BenchResult) -> str:
    """The table, then the answer and failures."""
    rows = [heads(result), *(cells(point, result.goals) for point in result.points)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "   ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines += [f"{setting_words(p)} failed: {p.error}" for p in result.points if p.error]
    found = answer(result.points, result.goals, result.objective) if result.goals.limits else ""
    return "\n".join([*lines, "", found]).rstrip()


def as_csv(result: BenchResult) -> str:
    """One line per point; plain numbers, and the half width of each 95 % interval."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [".".join(filter(None, (key, statistic))) for key, statistic, _, _ in COLUMNS]
    both = [name for one in names for name in (one, f"{one}.interval_95")]
    writer.writerow([*result.axes, *both, "goodput", "error"])
    for point in result.points:
        row: list[Any] = list(point.settings.values())
        for key, statistic, _, _ in COLUMNS:
            row += [figure_of(point, key, statistic), point.interval(key, statistic)]
        writer.writerow([*row, point.goodput(result.goals), point.error])
    return out.getvalue()


def as_html(result: BenchResult) -> str:
    """One self-contained page: answer, table, a chart of throughput against latency, and the data
    as JSON."""
    return html_page(
        f"{result.model}, {result.work}", f"{result.created} · {result.precision}",
        answer(result.points, result.goals, result.objective), _svg(result),
        [heads(result), *(cells(point, result.goals) for point in result.points)],
        as_dict(result),
    )  # fmt: skip


_WIDTH, _HEIGHT, _MARGIN = 640, 300, 50


def _svg(result: BenchResult) -> str:
    """Throughput (right) against ITL p99 (up)."""
    found = [
        (rate, level, setting_words(point))
        for point in result.points
        if (rate := figure_of(point, "output_tokens_per_s", "")) is not None
        if (level := figure_of(point, "itl_ms", "p99")) is not None
    ]
    if not found:
        return ""
    goal = result.goals.itl
    high_x = 1.05 * max(x for x, _, _ in found)
    high_y = 1.05 * max(*(y for _, y, _ in found), goal or 0.0, 1e-9)
    at_x = lambda x: _MARGIN + x / high_x * (_WIDTH - 2 * _MARGIN)
    at_y = lambda y: _HEIGHT - _MARGIN - y / high_y * (_HEIGHT - 2 * _MARGIN)
    dots = "".join(
        f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="4" fill="#0072b2"><title>'
        f"{html.escape(words)}: {rate_text(x)}, {duration_text(y / 1000)}</title></circle>"
        for x, y, words in found
    )
    line = "" if goal is None else (
        f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{at_y(goal):.1f}" '
        f'y2="{at_y(goal):.1f}" stroke="#d55e00" stroke-dasharray="4 3"/>'
    )
    bottom = _HEIGHT - _MARGIN
    axes = f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="#888"/>'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{axes}{line}{dots}'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 20}" text-anchor="end">Output, up to '
        f'{rate_text(high_x)}</text><text x="{_MARGIN}" y="{_MARGIN - 12}">ITL p99, up to '
        f"{duration_text(high_y / 1000)}</text></svg>"
    )


def export(result: BenchResult, file: Path) -> None:
    """Write `file` in the format of its extension. Raises ReportError; then an existing file is
    unchanged."""
    write(file, {
        ".html": lambda: as_html(result), ".csv": lambda: as_csv(result),
        ".json": lambda: json.dumps(as_dict(result), indent=2) + "\n",
    })  # fmt: skip
