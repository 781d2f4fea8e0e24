"""A sweep as a table, and its exports: JSON, CSV, HTML. No Qt."""

from __future__ import annotations

import csv
import html
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from app.bench.differences import as_dict as differences_as_dict
from app.bench.differences import differences, has_interval
from app.bench.engine_changes import baseline
from app.bench.export import html_page, write
from app.bench.goals import FIGURES, NAMES
from app.bench.ranking import pareto, users_under
from app.bench.record import BenchResult
from app.bench.sweep import COLUMNS, ENGINE, Point, axis_title, figure_of, level_of, value_words
from app.storage.intervals import ONE_RUN
from engine.units import NOTHING, change_text, counted, duration_text, rate_text

CHANGE = "change"


class Line(NamedTuple):
    """A row. is_change: of engines, from the first one at the same load to the row above."""

    point: Point
    texts: list[str]
    is_change: bool = False


def lines(result: BenchResult) -> list[Line]:
    found = []
    for point in result.points:
        found.append(Line(point, cells(point, result)))
        base = baseline(point, result.points)
        if base is not None and base.is_measured and point.is_measured:
            texts, _ = change_cells(point, base, result)
            texts[result.axes.index(ENGINE)] = CHANGE
            found.append(Line(point, texts, is_change=True))
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
        base = baseline(point, result.points)
        changes = {} if base is None else differences_as_dict(differences(base, point))
        points.append({
            "settings": point.settings, **point.figures, "goodput": point.goodput(result.goals),
            "interval_95": intervals, "change": changes, "error": point.error or None,
            "rounds": point.rounds, "predicted": point.predicted or None,
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


def interval_text(result: BenchResult) -> str:
    """What ± and goodput mean in the table; "" where it has neither."""
    texts = []
    if any(len(point.rounds) > 1 for point in result.points):
        texts.append("±: 95 % confidence interval over the repetitions.")
    if result.goals.limits:
        texts.append("Goodput: requests per second that meet every goal.")
    return " ".join(texts)


def failures_text(result: BenchResult) -> str:
    """The first point that failed and why, and how many others did; "" if none did."""
    failed = [point for point in result.points if point.error]
    if not failed:
        return ""
    first = f"{failed[0].label} failed: {failed[0].error}"
    return f"{first} {counted(len(failed) - 1, 'more point')} failed." if failed[1:] else first


def heads(result: BenchResult) -> list[str]:
    titles = [f"{title} ({unit})" for _, _, title, unit in result.columns]
    predicted = predicted_heads(result) if _has_predictions(result) else []
    return [*map(axis_title, result.axes), *predicted, *titles, "Goodput (req/s)"]


def cells(point: Point, result: BenchResult) -> list[str]:
    """The row of a point: "47.1 ±1.2" with its 95 % interval; "45.0 (error -4.5 %)" as
    predicted, with the prediction's error."""
    row = [value_words(name, value) for name, value in point.settings.items()]
    if _has_predictions(result):
        row += [text for _, text in predictions(point, result)]
    for key, statistic, _, _ in result.columns:
        row.append(_cell(figure_of(point, key, statistic), point.interval(key, statistic)))
    return [*row, _cell(point.goodput(result.goals), None)]


def change_cells(point: Point, before: Point, result: BenchResult) -> tuple[list[str], str]:
    """As `cells`: the changes from an earlier run of the point, "+4.1 % ±1.2" with the 95 %
    interval; and why they have none, or ""."""
    row = [value_words(name, value) for name, value in point.settings.items()]
    if _has_predictions(result):
        row += [NOTHING for _ in predicted_heads(result)]
    found = differences(before, point, result.columns)
    row += [NOTHING if one is None else str(one) for one in found]
    return [*row, NOTHING], "" if has_interval(found) else ONE_RUN


def _has_predictions(result: BenchResult) -> bool:
    return any(point.predicted for point in result.points)


def _predicted_figures(result: BenchResult) -> list[tuple[str, str, str, str]]:
    """Key, statistic, title and unit."""
    goal, percent = result.goal_shown, f"p{result.goals.percentile}"
    return [
        ("output_tokens_per_s", "", "output", "tok/s"),
        (FIGURES[goal], percent, f"{NAMES[goal]} {percent}", "ms"),
    ]


def predicted_heads(result: BenchResult) -> list[str]:
    return [f"Predicted {title} ({unit})" for _, _, title, unit in _predicted_figures(result)]


def predictions(point: Point, result: BenchResult) -> list[tuple[str, str]]:
    """Of each predicted figure its title, and its value with the error against the measured one."""
    found = []
    for key, statistic, title, _ in _predicted_figures(result):
        level = level_of(point.predicted, key, statistic) if point.predicted else None
        measured, text = figure_of(point, key, statistic), _cell(level, None)
        if level is not None and measured:
            text += f" (error {change_text(level / measured - 1)})"
        found.append((f"Predicted {title}", text))
    return found


def _cell(value: float | None, half: float | None) -> str:
    if value is None:
        return NOTHING
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" + ("" if half is None else f" ±{half:,.{digits}f}")


def as_text(result: BenchResult) -> str:
    """The table, then the answer and failures."""
    rows = [heads(result), *(line.texts for line in lines(result))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    told = [
        "   ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    told += filter(None, [interval_text(result)])
    told += [f"{p.label} failed: {p.error}" for p in result.points if p.error]
    has_answer = bool(result.goals.limits) or ENGINE in result.axes
    return "\n".join([*told, "", result.answer if has_answer else result.machine]).rstrip()


def as_csv(result: BenchResult) -> str:
    """One line per point; plain numbers, and the half width of each 95 % interval. Of engines also
    the changes from the first one, as fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [".".join(filter(None, (key, statistic))) for key, statistic, _, _ in COLUMNS]
    has_changes = ENGINE in result.axes
    ends: tuple[str, ...] = ("", ".interval_95")
    if has_changes:
        ends = (*ends, ".change", ".change_interval_95")
    both = [name + end for name in names for end in ends]
    own = _predicted_figures(result) if _has_predictions(result) else []
    more = [".".join(filter(None, (key, statistic, "predicted"))) for key, statistic, _, _ in own]
    writer.writerow([*result.axes, *both, "goodput", *more, "error"])
    for point in result.points:
        row: list[Any] = list(point.settings.values())
        base = baseline(point, result.points)
        changes = differences(base or Point({}), point)
        for (key, statistic, _, _), change in zip(COLUMNS, changes, strict=True):
            row += [figure_of(point, key, statistic), point.interval(key, statistic)]
            if has_changes:
                row += change or (None, None)
        row.append(point.goodput(result.goals))
        for key, statistic, _, _ in own:
            known = point.predicted
            row.append(level_of(known, key, statistic) if known else None)
        writer.writerow([*row, point.error])
    return out.getvalue()


def as_html(result: BenchResult) -> str:
    """One self-contained page: answer, table, a chart of throughput against latency, and the data
    as JSON."""
    return html_page(
        f"{result.model}, {result.work}", f"{result.created} · {result.precision}",
        " ".join(filter(None, (result.answer, interval_text(result)))), _svg(result),
        [heads(result), *(line.texts for line in lines(result))],
        as_dict(result),
    )  # fmt: skip


_WIDTH, _HEIGHT, _MARGIN = 640, 300, 50


def _svg(result: BenchResult) -> str:
    """Throughput (right) against ITL at the percentile of the goals (up)."""
    tail = result.goals.tail
    found = [
        (rate, level, point.label)
        for point in result.points
        if (rate := figure_of(point, "output_tokens_per_s", "")) is not None
        if (level := figure_of(point, "itl_ms", tail)) is not None
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
        f'{rate_text(high_x)}</text><text x="{_MARGIN}" y="{_MARGIN - 12}">ITL {tail}, up to '
        f"{duration_text(high_y / 1000)}</text></svg>"
    )


def export(result: BenchResult, file: Path) -> None:
    """Write `file` in the format of its extension. Raises ReportError; then an existing file is
    unchanged."""
    write(file, {
        ".html": lambda: as_html(result), ".csv": lambda: as_csv(result),
        ".json": lambda: json.dumps(as_dict(result), indent=2) + "\n",
    })  # fmt: skip
