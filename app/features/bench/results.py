"""Results of a sweep: the answer, a table of points, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFont, QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QWidget

from app.bench.goals import NAMES
from app.bench.point_table import (
    cells,
    change_cells,
    failures_text,
    heads,
    interval_text,
    lines,
)
from app.bench.ranking import nearest
from app.bench.record import BenchResult
from app.bench.sweep import ENGINE, NO_SETTINGS, Point, axis_title, figure_of
from app.features.bench.apply_bar import ApplyBar
from app.features.bench.form import Mode
from app.features.bench.trials import dots_of, latency_of, memory_mib
from engine.units import setting_text
from widgets.controls.combo import ElidedCombo
from widgets.controls.figure_table import FigureRow, FigureTable
from widgets.controls.layouts import dressed, hbox, label, stack, vbox, wrapped
from widgets.controls.lines import ElidedLine
from widgets.plot.curve_plot import Curve, CurvePlot
from widgets.plot.pareto_plot import ParetoPlot
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, ui_font

CHARTS = (("itl", "ITL"), ("ttft", "TTFT"), ("e2el", "E2E"))
AGAINST, PERCENTILES, TIMELINE = "throughput", "percentiles", "timeline"
LATENCY, MEMORY = "pareto latency", "pareto memory"
LEAST_STACKED = 420
_KEYS = {"itl": "itl_ms", "ttft": "ttft_ms", "e2el": "e2e_ms"}
ENGINE_CHANGE = "Change from the first engine at the same load, with its 95 % confidence interval"
CHANGE = "Change from the earlier run, with its 95 % confidence interval over the repetitions"
EMPTY = {
    Mode.SWEEP: "A sweep measures the workload at each value and shows the fastest one that meets "
    "your goals. Choose Max running requests as the sweep and an ITL goal, then press Run.",
    Mode.TUNE: "A search measures some combinations of settings and shows the best one that meets "
    "your goals. Choose the settings to vary and an ITL goal, then press Run.",
}


class ResultsView(QFrame):
    """`goals_moved(Goals)`: a line was dragged."""

    goals_moved = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.result: BenchResult | None = None
        self._other: BenchResult | None = None
        self._empty = EMPTY[Mode.SWEEP]
        self.answer = wrapped("", self._empty)
        self.answer.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.table: FigureTable[Point] = FigureTable("Points")
        self.model = self.table.figures
        self.table.picked.connect(self._draw)
        self.kind = dressed(ElidedCombo(), "Chart")
        for name, title in CHARTS:
            self.kind.addItem(f"{title} at each point", name)
        self.kind.addItem("Throughput against ITL", AGAINST)
        self.kind.addItem("Pareto front: latency", LATENCY)
        self.kind.addItem("Pareto front: memory", MEMORY)
        self.kind.addItem("ITL percentiles", PERCENTILES)
        self.kind.addItem("Request timeline", TIMELINE)
        self.kind.currentIndexChanged.connect(lambda _: self._draw())
        self.plot = CurvePlot("Curves of the sweep")
        self.plot.goal_moved.connect(self._on_goal)
        self.pareto = ParetoPlot("Pareto front")
        self.pareto.chosen.connect(self._on_dot)
        self._dotted: list[Point] = []
        self._plots = stack(self.plot, self.pareto)
        self.earlier = dressed(ElidedCombo(), "Compare with an earlier run")
        self.earlier.setMinimumContentsLength(20)
        right = QWidget()
        self.interval = ElidedLine("text_muted")
        vbox(hbox(self.kind, (self.interval, 1)), (self._plots, 1), of=right)
        split = self._split = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        split.addWidget(self.table)
        split.addWidget(right)
        policy = split.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        split.setSizePolicy(policy)
        split.setStretchFactor(0, 2)
        split.setStretchFactor(1, 3)
        self._is_divided = False  # by the user
        split.splitterMoved.connect(lambda *_: setattr(self, "_is_divided", True))
        self.bar = ApplyBar(
            lambda: self._settings(self.chosen), label("Compare with", "muted"), self.earlier
        )
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(self.answer, (split, 1), self.bar, of=self, margins=margins)
        self.show_result(None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The table above the chart, for all its columns; beside it in a low window."""
        super().resizeEvent(event)
        sides = Qt.Orientation
        is_low = self.height() < scaled(LEAST_STACKED)
        wanted = sides.Horizontal if is_low else sides.Vertical
        self.table.limit_height(not is_low)
        if wanted is not self._split.orientation():
            self._split.setOrientation(wanted)
            self._is_divided = False
        self._divide()

    def _divide(self) -> None:
        """All rows of the table, up to half of the height; side by side half each."""
        if self._is_divided:
            return
        split = self._split
        is_beside = split.orientation() is Qt.Orientation.Horizontal
        room = (split.width() if is_beside else split.height()) - split.handleWidth()
        rows = room // 2 if is_beside else min(room // 2, self.table.maximumHeight())
        split.setSizes([rows, room - rows])

    def show_result(self, result: BenchResult | None) -> None:
        self.result = result
        words = self._empty
        if result is not None:
            words = " ".join(filter(None, (result.answer, failures_text(result))))
        self.answer.setText(words)
        told = [f"{result.work}.", interval_text(result)] if result is not None else []
        self.interval.set_text(" ".join(told).rstrip())
        self._fill()
        self._draw()

    def show_mode(self, mode: Mode) -> None:
        """What to do before the first run of a sweep or a search."""
        self._empty = EMPTY.get(mode, self._empty)
        if self.result is None:
            self.answer.setText(self._empty)

    def show_earlier(self, other: BenchResult | None) -> None:
        self._other = other
        self.show_result(self.result)

    def offer_earlier(self, titles: Sequence[str]) -> None:
        with QSignalBlocker(self.earlier):
            chosen = self.earlier.currentText()
            self.earlier.clear()
            self.earlier.addItems(list(titles))
            self.earlier.setCurrentIndex(max(0, self.earlier.findText(chosen)))

    def _fill(self) -> None:
        result, other = self.result, self._other
        self._split.setVisible(result is not None)  # no empty table and chart before a run
        if result is None:
            self.table.show_rows((), ())
            return
        best = result.best
        mark = lambda point: "best" if point is best else "failed" if point.error else ""
        rows = [
            FigureRow(p, texts, "muted" if is_change else mark(p),
                      ENGINE_CHANGE if is_change else p.error)
            for p, texts, is_change in lines(result)
        ]
        headings = heads(result)
        if other is not None and other.axes == result.axes:
            headings = ["Run", *headings]
            rows = [row._replace(texts=["this", *row.texts]) for row in rows]
            rows += [FigureRow(p, ["earlier", *cells(p, result)], "muted", p.error)
                     for p in other.points]  # fmt: skip
            at = {p.label: p for p in other.points if p.is_measured}
            for point in result.points:
                if point.is_measured and point.label in at:
                    texts, why = change_cells(point, at[point.label], result)
                    title = f"change, {why}" if why else "change"
                    rows.append(FigureRow(point, [title, *texts], "", CHANGE))
        self.table.show_rows(headings, rows)
        self._divide()
        if best is not None and self.table.chosen is None:
            self.table.reveal(best)

    @property
    def chosen(self) -> Point | None:
        """The selected point, else the best one, else the one nearest to the goals, else the first
        that is measured."""
        result = self.result
        if self._is_selected:
            return self.table.chosen
        if result is None:
            return None
        near = result.best or nearest(result.points, result.goals)
        return near or next((point for point in result.points if point.is_measured), None)

    @property
    def _is_selected(self) -> bool:
        point = self.table.chosen
        return point is not None and point.is_measured

    @property
    def _is_nearest(self) -> bool:
        """Whether no point meets the goals and none is selected."""
        result = self.result
        has_goals = result is not None and bool(result.goals.limits)
        return result is not None and has_goals and not result.best and not self._is_selected

    # Applying -----------------------------------------------------------------------------------

    def _settings(self, point: Point | None) -> dict[str, Any]:
        settings = point.settings if point is not None else {}
        return {name: value for name, value in settings.items() if name not in NO_SETTINGS}

    def _on_dot(self, index: int) -> None:
        """A click applies; the row of the point is selected."""
        point = self._dotted[index]
        self.table.choose(point)
        self.bar.apply_wanted.emit(self._settings(point))

    # Curves -------------------------------------------------------------------------------------

    def _draw(self) -> None:
        result, kind = self.result, self.kind.currentData()
        is_pareto = kind in (LATENCY, MEMORY)
        self._plots.setCurrentWidget(self.pareto if is_pareto else self.plot)
        self.bar.refresh(has_result=result is not None, is_nearest=self._is_nearest)
        if is_pareto:
            self._draw_pareto(result, kind)
        elif result is None:
            self.plot.show_curves((), ("", ""))
        elif kind == PERCENTILES:
            self._draw_percentiles(result)
        elif kind == TIMELINE:
            self._draw_timeline()
        elif kind == AGAINST:
            self._draw_against(result)
        else:
            self._draw_points(result, kind)

    def _draw_pareto(self, result: BenchResult | None, kind: str) -> None:
        if result is None:
            self.pareto.show_dots((), ("", ""))
            return
        cost = memory_mib if kind == MEMORY else latency_of(result)
        self._dotted, dots = dots_of(result, cost)
        name, goal, title = result.goal_shown, None, "Memory (MiB)"
        if kind == LATENCY:
            goal = getattr(result.goals, name)
            title = f"{NAMES[name]} p{result.goals.percentile} (ms)"
        self.pareto.show_dots(dots, ("Output (tok/s)", title), goal)

    def show_kind(self, kind: str) -> None:
        self.kind.setCurrentIndex(self.kind.findData(kind))

    def _draw_points(self, result: BenchResult, kind: str) -> None:
        places = [", ".join(setting_text(v) for v in p.settings.values()) for p in result.points]
        is_line = ENGINE not in result.axes  # there is nothing between two engines
        tail = result.goals.tail
        curves = [
            Curve(name, color, _levels(result.points, places, _KEYS[kind], name), is_line=is_line)
            for name, color in (("p50", "p50"), (tail, "p99"))
        ]
        if self._other is not None:
            found = _levels(self._other.points, places, _KEYS[kind], tail)
            curves.append(Curve(f"{tail}, earlier", "other", found, is_line=is_line))
        title = " × ".join(map(axis_title, result.axes))
        self.plot.show_curves(curves, (title, "ms"), places, getattr(result.goals, kind))

    def _draw_against(self, result: BenchResult) -> None:
        curves, tail = [], result.goals.tail
        both = (tail, "p99", result), (f"{tail}, earlier", "other", self._other)
        for title, color, some in both:
            found = [
                (rate, level, None)
                for point in (some.points if some is not None else ())
                if (rate := figure_of(point, "output_tokens_per_s", "")) is not None
                if (level := figure_of(point, "itl_ms", tail)) is not None
            ]
            is_line = ENGINE not in result.axes
            curves.append(Curve(title, color, tuple(sorted(found)), is_line=is_line))
        axes = ("Output (tok/s)", "ITL (ms)")
        self.plot.show_curves(curves, axes, goal=result.goals.itl)

    def _draw_percentiles(self, result: BenchResult) -> None:
        point = self.chosen
        curve = point.curves.get("itl", []) if point is not None else []
        step = 100 / max(len(curve) - 1, 1)
        found = tuple((step * place, y, None) for place, y in enumerate(curve))
        name = setting_text(next(iter(point.settings.values()))) if point is not None else ""
        curves = [Curve(f"ITL at {name}", "p99", found)]
        self.plot.show_curves(curves, ("Percentile", "ms"), goal=result.goals.itl)

    def _draw_timeline(self) -> None:
        """When each request began, and after how long its first token and its end came."""
        point = self.chosen
        lines = point.requests if point is not None else []
        curves = [
            Curve("first token", "prefill",
                  tuple(sorted((r.start / 1e3, r.ttft, None) for r in lines)), is_line=False),
            Curve("end", "decode",
                  tuple(sorted((r.start / 1e3, r.e2el, None) for r in lines)), is_line=False),
        ]  # fmt: skip
        self.plot.show_curves(curves, ("Arrival (s)", "ms after arrival"))

    def _on_goal(self, value: float) -> None:
        kind = self.kind.currentData()
        name = kind if kind in _KEYS else "itl"
        if self.result is not None:
            change: dict[str, Any] = {name: value}
            self.goals_moved.emit(replace(self.result.goals, **change))


def _levels(
    points: Sequence[Point], places: Sequence[str], key: str, name: str
) -> tuple[tuple[float, float, float | None], ...]:
    found = []
    for point in points:
        place = ", ".join(setting_text(v) for v in point.settings.values())
        level = figure_of(point, key, name)
        if level is not None and place in places:
            found.append((float(places.index(place)), level, point.interval(key, name)))
    return tuple(sorted(found))
