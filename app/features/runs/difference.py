"""Sides of runs as columns of one table, and their changes from the first. No Qt."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.storage import intervals
from app.storage.report_metrics import RUN_METRICS, Form, Metric, measured_text
from app.storage.run_records import Kind, Measured, RunRecord, RunSide
from engine.units import NOTHING, factor_text, points_text

LITTLE = 0.005
"""Relative change below which a figure that is not repeated counts as equal."""
LARGE = 10
"""Larger changes are factors: "498×"."""
LITTLE_POINTS = 0.0005
"""The same of a share, absolute."""
_SHARES = (Form.SHARE, Form.CLOSE_SHARE, Form.CHANGE)
PAIRS = (Kind.COMPARE, Kind.CHANGE)
"""Both of their sides are columns beside other runs."""
_ONCE = "perplexity_change"
"""The table has its own changes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of every column; None where it was not measured."""

    metric: Metric
    values: tuple[Measured | None, ...]

    def change(self, place: int) -> float | None:
        """From the first column: relative, of shares absolute."""
        first, value = self.values[0], self.values[place]
        if not place or first is None or value is None:
            return None
        if self.metric.form in _SHARES:
            return value.value - first.value
        return value.value / first.value - 1 if first.value else None

    def spread(self, place: int) -> float | None:
        """Half of the 95 % interval of the change; None where a side was run once."""
        first, value = self.values[0], self.values[place]
        return None if first is None or value is None else spread_of(first, value)

    def tone(self, place: int) -> str:
        """ "better", "worse"; "" for no clear change, and for metrics that do not lead."""
        change = self.change(place)
        if change is None or not self.metric.is_leading:
            return ""
        least = LITTLE_POINTS if self.metric.form in _SHARES else LITTLE
        if self.metric.is_repeated:
            spread = self.spread(place)
            least = math.inf if spread is None else spread
        if abs(change) <= least:
            return ""
        return "better" if change * self.metric.better > 0 else "worse"

    def texts(self) -> list[str]:
        """A value, and after the first column its change."""
        cells = []
        for place, value in enumerate(self.values):
            cells.append(measured_text(self.metric, value))
            if place:
                cells.append(self._change_text(place))
        return cells

    def _change_text(self, place: int) -> str:
        change = self.change(place)
        if change is None:
            return NOTHING
        if self.metric.form in _SHARES:
            return points_text(100 * change)
        spread = self.spread(place) if self.metric.is_repeated else None
        if change < LARGE:
            return str(intervals.Difference(change, spread))
        known = "" if spread is None else f"±{spread:.1f}"
        return f"{factor_text(1 + change)} {intervals.spread_text(spread, known, change)}".rstrip()


def spread_of(first: Measured, second: Measured) -> float | None:
    """Half of the 95 % confidence interval of their relative difference, over the repeats; None for
    one run of either."""
    half = intervals.half_of_difference(first.samples, second.samples)
    return None if half is None or not first.value else half / abs(first.value)


@dataclass(frozen=True, slots=True)
class Difference:
    """`titles`: of the columns; `cautions`: why they are hard to compare."""

    titles: tuple[str, ...]
    sides: tuple[RunSide, ...]
    rows: tuple[Row, ...]
    cautions: tuple[str, ...] = ()

    @property
    def heads(self) -> list[str]:
        heads = ["", *self.titles[:1]]
        for title in self.titles[1:]:
            heads += [title, "change"]
        return heads

    def as_markdown(self) -> str:
        lines = [self.heads, ["---", *["---:"] * (len(self.heads) - 1)]]
        lines += [[row.metric.label, *row.texts()] for row in self.rows]
        return "".join(f"| {' | '.join(_cell(x) for x in line)} |\n" for line in lines)

    def as_csv(self) -> str:
        """Plain numbers, fractions from 0 to 1; spreads are relative."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [part for title in self.titles for part in (title, f"{title}: spread")]
        writer.writerow(["metric", "unit", *heads])
        for row in self.rows:
            cells = [
                part
                for value in row.values
                for part in (("", "") if value is None else (value.value, value.spread or ""))
            ]
            writer.writerow([row.metric.key, row.metric.unit, *cells])
        return out.getvalue()


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def difference(runs: Sequence[RunRecord], cautions: Sequence[str] = ()) -> Difference:
    """Of one run: its sides. Of several, oldest first: their last sides, of `PAIRS` both."""
    columns: list[tuple[str, RunSide]] = []
    if len(runs) == 1:
        columns = [(side.title, side) for side in runs[0].sides]
    else:
        for run in sorted(runs, key=lambda run: run.created):
            shown = run.sides if run.kind in PAIRS else run.sides[-1:]
            columns += [(_title(run, side), side) for side in shown]
    sides = tuple(side for _, side in columns)
    rows = tuple(
        Row(metric, values)
        for metric in RUN_METRICS
        if metric.key != _ONCE
        if any(values := tuple(side.figures.get(metric.key) for side in sides))
    )
    return Difference(tuple(title for title, _ in columns), sides, rows, tuple(cautions))


def _title(run: RunRecord, side: RunSide) -> str:
    if run.kind in PAIRS:
        of = run.model if run.kind is Kind.COMPARE else run.title
        return ", ".join(filter(None, (of, side.title)))
    return run.title
