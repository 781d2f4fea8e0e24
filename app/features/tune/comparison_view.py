"""The figures of two ranges, a metric a line.

        p50                  p99                 samples
        A    B    change     A    B    change    A    B
TTFT    84   151  +80 %      120  –    –         212  64
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QFont, QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QFrame, QGridLayout, QLabel, QWidget

from app.features.tune.comparison import (
    BETTER,
    Compared,
    Row,
    TimeRange,
    around,
    as_text,
    compare,
    exact,
    in_brief,
    tone,
    values_of,
    why_not_compared,
)
from app.features.tune.verdict import State, judge
from engine.snapshot.metrics import METRICS, Metric
from engine.units import clock_text, duration_text, figure
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine, title_line
from widgets.live.figures import reservations
from widgets.live.metric_store import MetricStore
from widgets.live.statistics import Figures
from widgets.plot.marks import MarkLog, Span, SpanLog
from widgets.plot.series import FEWEST_FOR_P99, Mark, MarkKind
from widgets.theme.theme import (
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_6,
    figure_font,
    restyle,
    theme_notifier,
)

_GROUPS = {"p50": (3, 4, 5), "p99": (7, 8, 9), "samples": (11, 12)}
"""The grid's columns of each group; a spacer is before each."""
_COLUMNS = [(column, group) for group, columns in _GROUPS.items() for column in columns]
_HEADS = ("A", "B", "change", "A", "B", "change", "A", "B")
_CHANGES = (2, 5)
MOST_WIDTH = 900


class CompareTable(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Metrics of ranges A and B")
        self.cells: dict[str, list[QLabel]] = {}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, SPACE_1, 0)
        self._grid.setHorizontalSpacing(SPACE_3)
        self._grid.setVerticalSpacing(1)
        for group, columns in _GROUPS.items():
            label = _small(group, Qt.AlignmentFlag.AlignHCenter)
            self._grid.addWidget(label, 0, columns[0], 1, len(columns))
            self._grid.setColumnMinimumWidth(columns[0] - 1, SPACE_6 - SPACE_3)
        for (column, _), text in zip(_COLUMNS, _HEADS, strict=True):
            self._grid.addWidget(_small(text, Qt.AlignmentFlag.AlignRight), 1, column)
            self._grid.setColumnStretch(column, 1)
        for line, key in enumerate(BETTER, 2):
            self._make_line(line, METRICS[key])
        self.setMaximumWidth(MOST_WIDTH)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _make_line(self, line: int, metric: Metric) -> None:
        name = dressed(QLabel(metric.title), tip=metric.description)
        self._grid.addWidget(name, line, 0)
        self._grid.addWidget(dressed(QLabel(metric.unit), role="small"), line, 1)
        cells = self.cells.setdefault(metric.key, [])
        for (column, group), head in zip(_COLUMNS, _HEADS, strict=True):
            cell = dressed(QLabel(), f"{metric.title} {group} {head}")
            cell.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self._grid.addWidget(cell, line, column)
            cells.append(cell)

    def _take_fonts(self) -> None:
        for cells in self.cells.values():
            for index, cell in enumerate(cells):
                weight = QFont.Weight.DemiBold if index in _CHANGES else QFont.Weight.Normal
                cell.setFont(figure_font("body", weight))

    def show_rows(self, rows: Sequence[Row], claimed: Collection[str]) -> None:
        """claimed: the metrics whose change is more than their spread."""
        for row in rows:
            cells = self.cells[row.metric.key]
            for cell, text in zip(cells, values_of(row), strict=True):
                if cell.text() != text:
                    cell.setText(text)
            for index, share in zip(_CHANGES, (row.p50_change, row.p99_change), strict=True):
                role = tone(row.metric, share, row.metric.key in claimed)
                if cells[index].property("role") != role:
                    restyle(cells[index], role=role)
                cells[index].setToolTip(role.capitalize())
            for index, figures in ((3, row.a), (4, row.b)):
                cells[index].setToolTip(_why_no_p99(figures))
            for index, figures in ((6, row.a), (7, row.b)):
                is_firm = not (figures.is_few or figures.is_busy_machine)
                role = "" if is_firm else "warning"
                if (cells[index].property("role") or "") != role:
                    restyle(cells[index], role=role)
                cells[index].setToolTip("" if is_firm else reservations(figures))


def _small(text: str, alignment: Qt.AlignmentFlag) -> QLabel:
    return dressed(QLabel(text, alignment=alignment), role="small")


def _why_no_p99(figures: Figures) -> str:
    if figures.p99 is not None or figures.largest is None:
        return ""
    return (
        f"p99 requires {FEWEST_FOR_P99} samples ({figures.num_samples} so far); maximum: "
        f"{figure(figures.largest)}"
    )


SHOW_MS = 1000
LATEST, PICKED = "latest", "picked"
HINT = "Change a setting, or select two ranges on a chart to compare them."
HINT_SECOND = "Range A is set. Drag across a chart to select range B."


class CompareView(QFrame):
    """Marks its ranges on the charts (`spans`). `now`: the charts' clock. `merged`: the headline's
    change, which may have several marks, and its ranges; None where `mark` is newer."""

    def __init__(
        self,
        store: MetricStore,
        marks: MarkLog,
        spans: SpanLog,
        now: Callable[[], float],
        merged: Callable[[Mark], Compared | None],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Range comparison")
        self._store, self._marks, self._spans, self._now = store, marks, spans, now
        self._merged = merged
        self._picked: list[TimeRange] = []
        self.rows: list[Row] = []
        self.ranges: tuple[TimeRange, TimeRange] | None = None
        self._is_brief = False
        self._build()
        self._timer = QTimer(self, singleShot=True, interval=SHOW_MS)
        self._timer.timeout.connect(self.refresh)
        marks.changed.connect(self._on_marks)
        self._on_marks()

    def _build(self) -> None:
        self.source = dressed(
            ElidedCombo(), "Compared ranges",
            "Before and after a change, or two ranges selected on the charts.\n"
            "Keyboard: Enter starts or ends a range, arrow keys move the cursor.",
        )  # fmt: skip
        self.source.setMinimumContentsLength(18)
        self.source.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        self.source.activated.connect(lambda: self.refresh())
        self.note = ElidedLine("text_muted")
        self.copy_button = button("Copy", self.copy, "Copy the comparison as a table", "flat")
        self.clear_button = button(
            "Clear ranges", self.clear, "Remove the ranges from the charts", "flat"
        )
        head = hbox(
            title_line("Comparison"), SPACE_1, self.source, (self.note, 1), self.clear_button,
            self.copy_button,
        )  # fmt: skip
        self.brief = ElidedLine()
        self.table = CompareTable()
        margins = SPACE_3, SPACE_2, SPACE_2, SPACE_2
        vbox(head, self.brief, self.table, of=self, spacing=SPACE_1, margins=margins)

    # What the user does ------------------------------------------------------------------------

    def pick(self, start: float, end: float) -> None:
        """A dragged range: A, then B; a third starts over."""
        if len(self._picked) == 2:
            self._picked.clear()
        self._picked.append(TimeRange(start, end))
        if len(self._picked) == 2:
            self._picked.sort()
        self._choose(PICKED)

    def clear(self) -> None:
        self._picked.clear()
        self._choose(LATEST)

    def copy(self) -> None:
        if self.ranges is not None:
            QGuiApplication.clipboard().setText(as_text(self.rows, *self.ranges))

    # Choosing ----------------------------------------------------------------------------------

    def _choose(self, source: object) -> None:
        for index in range(self.source.count()):
            if self.source.itemData(index) == source:
                self.source.setCurrentIndex(index)
        self.refresh()

    def _on_marks(self) -> None:
        """List the marks, newest first; keep the selection."""
        chosen = self.source.currentData()
        self.source.clear()
        self.source.addItem("Latest change", LATEST)
        self.source.addItem("Selected ranges", PICKED)
        away = time.time() - self._now()
        for mark in reversed(self._marks.marks):
            clock = clock_text(mark.time + away)
            self.source.addItem(f"{clock}  {mark.text}", mark)
        self._choose(chosen if chosen is not None else LATEST)

    @property
    def _mark(self) -> Mark | None:
        chosen = self.source.currentData()
        if isinstance(chosen, Mark):
            return chosen
        changes = [mark for mark in self._marks.marks if mark.kind is not MarkKind.LOAD]
        return changes[-1] if changes else None

    def _find(self) -> Compared | None:
        source = self.source.currentData()
        if source == PICKED:
            return ("", self._picked[0], self._picked[1]) if len(self._picked) == 2 else None
        mark, now = self._mark, self._now()
        if mark is None or self._store.began > now:
            return None
        is_latest = source == LATEST
        if is_latest and (merged := self._merged(mark)) is not None:
            return merged
        marks = [exact(one, self._store) for one in self._marks.marks]
        ranges = around(exact(mark, self._store), marks, self._store.began, now)
        return mark.text if is_latest else "", *ranges

    # Showing -----------------------------------------------------------------------------------

    def set_brief(self, brief: bool) -> None:
        """Medians in one line instead of the table."""
        if brief != self._is_brief:
            self._is_brief = brief
            self.refresh()

    def refresh(self) -> None:
        """Update; while range B grows, once a second while visible."""
        what, *ranges = self._find() or ("",)
        found = self.ranges = (ranges[0], ranges[1]) if ranges else None
        self.rows = compare(self._store, *found) if found is not None else []
        self.table.setVisible(found is not None and not self._is_brief)
        verdicts = judge(self._store, *found) if found is not None else []
        self.table.show_rows(self.rows, {v.key for v in verdicts if v.state is State.CHANGED})
        self.copy_button.setEnabled(found is not None)
        self.clear_button.setVisible(bool(self._picked))
        self.note.set_text(self._words(what))
        self.brief.setVisible(found is not None and self._is_brief)
        self.brief.set_text(in_brief(self.rows))
        self._show_spans()
        if self.isVisible() and found is not None and self._grows(found[1]):
            self._timer.start()

    def _grows(self, b: TimeRange) -> bool:
        return self.source.currentData() != PICKED and b.end >= self._now() - SHOW_MS / 1e3

    def _words(self, what: str) -> str:
        """what: the change between the ranges, where the list does not show it."""
        if self.ranges is None:
            return HINT_SECOND if self._picked else HINT
        a, b = self.ranges
        words = f"A {duration_text(a.seconds)} · B {duration_text(b.seconds)}"
        words = " · ".join(filter(None, (what, words, why_not_compared(self.rows))))
        if a.start < self._store.complete_since:
            words = f"{words} · range A starts before the oldest data"
        return words

    def _show_spans(self) -> None:
        found = (self.ranges or tuple(self._picked)) if self.isVisible() else ()
        names = (("A", "text_muted"), ("B", "accent"))
        self._spans.show(
            *(
                Span(label, stretch.start, stretch.end, color)
                for (label, color), stretch in zip(names, found, strict=False)
            )
        )

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._spans.show()
