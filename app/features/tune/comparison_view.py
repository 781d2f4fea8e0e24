"""`CompareView`: which two ranges are compared, and their figures, in a table or in short."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QWidget

from app.features.tune.comparison import (
    Compared,
    Row,
    TimeRange,
    as_text,
    compare,
    in_brief,
    pause_text,
    ranges_of,
    why_not_compared,
)
from app.features.tune.comparison_table import CompareTable
from app.features.tune.verdict import State, judge
from engine.units import clock_text, duration_text
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import button, dressed, hbox, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.live.metric_store import MetricStore
from widgets.plot.marks import MarkLog, Span, SpanLog
from widgets.plot.series import Mark, MarkKind
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

SHOW_MS = 1000
LATEST, PICKED = "latest", "picked"
WIDE = 420
"""Pixels at 100 % text for the title beside the list of ranges and the buttons."""
HINT = "Change a setting, or select two ranges on a chart to compare them."
HINT_SECOND = "Range A is set. Drag across a chart to select range B."


class CompareView(FittedFrame):
    """Marks its ranges on the charts (`spans`). `now`: the charts' clock. `merged`: the headline's
    change, which may have several marks, and its ranges; None where `mark` is newer.
    `has_no_latest`: no change is to be shown as the latest one."""

    def __init__(
        self,
        store: MetricStore,
        marks: MarkLog,
        spans: SpanLog,
        now: Callable[[], float],
        merged: Callable[[Mark], Compared | None],
        has_no_latest: Callable[[], bool],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Range comparison")
        self._store, self._marks, self._spans, self._now = store, marks, spans, now
        self._merged, self._has_no_latest = merged, has_no_latest
        self._picked: list[TimeRange] = []
        self.rows: list[Row] = []
        self.ranges: tuple[TimeRange, TimeRange] | None = None
        self._is_low = self._is_narrow = False
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
        self.source.setMinimumWidth(1)  # it elides
        self._title = title_line("Comparison")
        self._head = hbox(
            self._title, self.source, (self.note, 1), self.clear_button,
            self.copy_button,
        )  # fmt: skip
        self.brief = wrapped("small")
        self.table = CompareTable()
        margins = SPACE_3, SPACE_2, SPACE_2, SPACE_2
        parts = self._head, self.brief, self.table
        self._layout = vbox(*parts, of=self, spacing=SPACE_1, margins=margins)

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
        """List the marks but trials, of which there are dozens, newest first; keep the
        selection."""
        chosen = self.source.currentData()
        self.source.clear()
        self.source.addItem("Latest change", LATEST)
        self.source.addItem("Selected ranges", PICKED)
        away = time.time() - self._now()
        for mark in reversed(self._marks.marks):
            if mark.kind is MarkKind.TRIAL:
                continue
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
        if is_latest and self._has_no_latest():
            return None
        if is_latest and (merged := self._merged(mark)) is not None:
            return merged
        ranges = ranges_of(mark, mark, self._marks.marks, self._store, now)
        return mark.text if is_latest else "", *ranges

    # Showing -----------------------------------------------------------------------------------

    @property
    def height_with_table(self) -> int:
        table, head = self.table.minimumSizeHint().height(), self._head.minimumSize().height()
        margins = self._layout.contentsMargins()
        return head + SPACE_1 + table + margins.top() + margins.bottom()

    def set_low(self, low: bool) -> None:
        """Medians in words instead of the table."""
        self._is_low = low
        self._show_parts()

    def fit(self) -> None:
        """A table with the columns for which there is room, else the medians in words."""
        self._title.setVisible(self.width() >= scaled(WIDE))
        self._is_narrow = not self.table.fit(self._layout.contentsRect().width())
        self._show_parts()

    def _show_parts(self) -> None:
        is_brief = self._is_low or self._is_narrow
        self.table.setVisible(self.ranges is not None and not is_brief)
        self.brief.setVisible(self.ranges is not None and is_brief)

    def refresh(self) -> None:
        """Update; while range B grows, once a second while visible."""
        what, *ranges = self._find() or ("",)
        found = self.ranges = (ranges[0], ranges[1]) if ranges else None
        self.rows = compare(self._store, *found) if found is not None else []
        verdicts = judge(self._store, *found) if found is not None else []
        self.table.show_rows(self.rows, {v.key for v in verdicts if v.state is State.CHANGED})
        self.copy_button.setEnabled(found is not None)
        self.clear_button.setVisible(bool(self._picked))
        self.note.set_text(self._words(what))
        self.brief.setText(in_brief(self.rows))
        self.fit()
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
        lengths = f"A {duration_text(a.seconds)} · B {duration_text(b.seconds)}"
        pause = "" if self.source.currentData() == PICKED else pause_text(self._store, b)
        parts = what, lengths, pause, why_not_compared(self.rows)
        words = " · ".join(filter(None, parts))
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
