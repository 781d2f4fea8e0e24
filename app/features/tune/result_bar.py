"""`ResultBar`: the last change, what it did, and how sure that is.

    Max running requests 16 → 3: TTFT p50 63 ms → 3.15 s (50× longer)  Figures  Changes
    ITL: no clear change (under 5 %) · 99 % confidence · 212 → 34 requests completed in 60 s → 41 s
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QWidget

from app.bench.doubt import busy_text
from app.features.tune.changes import Change, ChangeHistory, Choices
from app.features.tune.changes_popover import ChangesPopover
from app.features.tune.comparison import REACH_S, Compared, TimeRange, pause_text, ranges_of
from app.features.tune.forecast import NOTHING, Forecast, Headline
from app.features.tune.verdict import CONFIDENCE, State, Verdict, headline, judge
from engine.units import clock_text, duration_text
from widgets.controls.layouts import Label, button, hbox, vbox, wrapped
from widgets.controls.text import set_key_tip
from widgets.live.metric_store import MetricStore
from widgets.plot.marks import MarkLog
from widgets.plot.series import Mark
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

SHOW_MS = 1000
LEAST_MEASURED_S = 10.0
"""Since a change, before its prediction is compared with what came."""
WIDE = 520
"""Pixels at 100 % text for words and buttons side by side."""
HINT = "Change a setting under load: the result appears here."


class ResultBar(QFrame):
    """`now`: the charts' clock. `figures`: its button shows and hides the table of figures.
    `judged`: the verdicts on the newest change, each time they are made. `keep_wanted(change,
    result, verdicts)`: keep them as a run."""

    judged = Signal(object)  # list[Verdict]
    awaits_changed = Signal()  # see `awaits_lesson`
    keep_wanted = Signal(str, str, object)

    def __init__(
        self,
        store: MetricStore,
        marks: MarkLog,
        now: Callable[[], float],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Result of the last change")
        self._store, self._marks, self._now = store, marks, now
        self.changes = ChangeHistory()
        self.verdicts: list[Verdict] = []
        self.seconds = 0.0  # of the range after the change that they judge
        self.text = HINT
        self.forecast: Callable[[], Forecast | None] = lambda: None
        """Of the settings that were applied last."""
        self._kept: Change | None = None
        self._quiet: Choices | None = None
        self._earlier: Change | None = None  # than the lesson: it would be read as its result
        self._is_lesson = False  # changes are a lesson's
        self.is_setup = False  # and only prepare its measurement: they have no result
        self._line = Label(wordWrap=True, textFormat=Qt.TextFormat.RichText)
        self.detail = wrapped("small")
        self.figures = button("Metrics", lambda: None, kind="flat")
        self.figures.setCheckable(True)
        set_key_tip(self.figures, "Latency and throughput of both ranges", "tune.figures")
        self.list = ChangesPopover(self.changes, self)
        self.list_button = button("Changes", self.show_list, kind="flat")
        set_key_tip(self.list_button, "All changes; restore earlier settings", "tune.changes")
        self.keep = button("Save", self.keep_as_run, "Save the result on the Runs page", "flat")
        words = vbox(self._line, self.detail, spacing=SPACE_1 // 2)
        margins = SPACE_3, SPACE_2, SPACE_2, SPACE_2
        buttons = hbox(self.figures, self.list_button, self.keep)
        self._row = hbox((words, 1), buttons, of=self, margins=margins)
        self._timer = QTimer(self, interval=SHOW_MS)
        self._timer.timeout.connect(self.refresh)
        theme_notifier().changed.connect(self._write)
        self.refresh()

    # The history --------------------------------------------------------------------------------

    def opened(self, title: str, chosen: Choices) -> None:
        """A model was opened: the history starts anew."""
        self.changes.open(self._now(), _clock(), f"Opened {title}", chosen)
        self.refresh()

    def changed(self, text: str, chosen: Choices) -> None:
        """Settings took effect: the newest mark says when."""
        self.refresh()  # the result of the change before is final
        is_back, self._quiet = self._quiet is not None and dict(chosen) == self._quiet, None
        self.changes.add(
            self._marks.marks[-1].time, _clock(), text, chosen,
            is_quiet=is_back or self.is_setup, is_lesson=is_back or self._is_lesson,
        )  # fmt: skip
        self.refresh()
        if self._is_lesson:
            self.awaits_changed.emit()

    def begin_lesson(self) -> None:
        """From now on changes are a lesson's; hide the result until it has made its own."""
        self.refresh()  # the result of the change before is final
        self._is_lesson = self.is_setup = True
        self._earlier = self.changes.latest
        self.refresh()
        self.awaits_changed.emit()

    def end_lesson(self, chosen: Choices) -> None:
        """The next change, to the settings `chosen`, puts back those from before the lesson: it
        has no result, and the one before it is shown."""
        self._is_lesson = self.is_setup = False
        self._earlier = None
        self._quiet = dict(chosen)
        self.refresh()
        self.awaits_changed.emit()

    @property
    def awaits_lesson(self) -> bool:
        """Whether a lesson has yet to make its change: no result is shown."""
        return self._is_lesson and self.changes.latest is self._earlier

    @property
    def _latest(self) -> Change | None:
        return None if self.awaits_lesson else self.changes.latest

    def merged(self, mark: Mark) -> Compared | None:
        """The headline's change and its ranges if no change is newer than `mark`, else None."""
        latest = self._latest
        if latest is None or self.changes.entries[-1].at != mark.time:
            return None
        ranges = self._ranges(latest)
        return None if ranges is None else (latest.title, *ranges)

    def show_list(self) -> None:
        self.list.toggle_at(self.list_button)

    def keep_as_run(self) -> None:
        if self.keep.isEnabled():
            self.keep_wanted.emit(self._what, self._result, list(self.verdicts))

    def show_kept(self) -> None:
        """The result was kept; the next change can be."""
        self._kept = self._latest
        self.refresh()

    # Showing ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Once a second while visible and the range after the change may grow."""
        if (forecast := self.forecast()) is not None:
            self.changes.keep_forecast(forecast)
        latest = self._latest
        ranges = self._ranges(latest) if latest is not None else None
        self.verdicts = judge(self._store, *ranges) if ranges is not None else []
        self.seconds = ranges[1].seconds if ranges is not None else 0.0
        self.judged.emit(self.verdicts)
        self._show(latest, ranges)
        self._write()
        # not by the range: the store may have no data of it yet
        grows = latest is not None and self._now() <= latest.at + REACH_S + SHOW_MS / 1e3
        if grows and self.isVisible():
            self._timer.start()
        else:
            self._timer.stop()

    def so_far(self) -> list[Verdict]:
        """What is measured since the newest mark, as the range before a change."""
        marks, now = self._marks.marks, self._now()
        start = max(marks[-1].time if marks else -math.inf, self._store.began)
        return judge(self._store, (min(start, now), now), (now, now))

    def _ranges(self, change: Change) -> tuple[TimeRange, TimeRange] | None:
        """Before its first step, and after its last."""
        now = self._now()
        if self._store.began > now:
            return None
        first, last = (Mark(at, change.text) for at in (change.since, change.at))
        return ranges_of(first, last, self._marks.marks, self._store, now)

    def _show(self, latest: Change | None, ranges: tuple[TimeRange, TimeRange] | None) -> None:
        self._claims, self._otherwise = list[Verdict](), ""
        if ranges is not None:
            self._claims, self._otherwise = headline(self.verdicts, self.seconds)
        self._what = latest.title if latest is not None else ""
        words = self._result = ", ".join(
            filter(None, (*(v.words for v in self._claims), self._otherwise))
        )
        self.text = ": ".join(filter(None, (self._what, words))) or HINT
        details = ""
        if latest is not None and ranges is not None:
            latest.result = words
            self.list.show_result()
            details = self._confidence(latest, ranges)
        self.detail.setText(details)
        self.detail.setVisible(bool(self.detail.text()))
        self.list_button.setEnabled(bool(self.changes.entries))
        is_kept = latest is not None and latest is self._kept
        self.keep.setText("Saved" if is_kept else "Save")
        self.keep.setEnabled(
            not is_kept and any(v.before.count and v.after.count for v in self.verdicts)
        )

    def _confidence(self, latest: Change, ranges: tuple[TimeRange, TimeRange]) -> str:
        a, b = ranges
        before, after = (self._store.completed(*stretch) for stretch in ranges)
        parts = list[str]()
        if self._claims:
            parts += [
                v.words for v in self.verdicts if v.state is not State.CHANGED and not v.is_open
            ]
            parts.append(CONFIDENCE)
        parts.append(
            f"{before:,} → {after:,} requests completed in {duration_text(a.seconds)} → "
            f"{duration_text(b.seconds)}"
        )
        parts.append(pause_text(self._store, b))
        if latest.forecast is not None:
            found = Headline.of(self._store, *b) if b.seconds >= LEAST_MEASURED_S else NOTHING
            parts.append(latest.forecast.outcome(found))
        parts.append(busy_text(max(self._store.other_cores(*stretch) for stretch in ranges)))
        return " · ".join(filter(None, parts))

    def _write(self) -> None:
        self._line.setText(self._rich(self._claims))
        self._line.setAccessibleName(self.text)

    def _rich(self, claims: Sequence[Verdict]) -> str:
        if not self._what:
            return f'<span style="color:{theme().color("text_muted").name()}">{HINT}</span>'
        spans = [
            f'<span style="color:{theme().color("success" if v.is_better else "danger").name()}">'
            f"{html.escape(v.words)}</span>"
            for v in claims
        ]  # fmt: skip
        words = ", ".join(filter(None, (*spans, html.escape(self._otherwise))))
        return f"<b>{html.escape(self._what)}{': ' if words else ''}{words}</b>"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        directions = QBoxLayout.Direction
        is_wide = self.width() >= scaled(WIDE)
        self._row.setDirection(directions.LeftToRight if is_wide else directions.TopToBottom)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()


def _clock() -> str:
    return clock_text(time.time())
