"""`BottleneckPanel`: step time breakdown, and the potential gain of each setting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QFrame, QLabel, QStackedLayout, QWidget

from app.features.inspect.profile_view import ProfileView
from app.features.inspect.step_breakdown import (
    Chosen,
    StepBreakdown,
    StepTracker,
    counted_text,
    parts_of,
    peaks_text,
    split_text,
)
from app.features.inspect.what_if_table import (
    WhatIfTable,
    hint_of,
    is_enabled,
    value_of,
)
from engine.messages import PeaksMeasured, StepsProfiled
from engine.snapshot import EngineSnapshot, Part, StepRecord
from engine.telemetry.gain import GainEstimate, MeasuredGain, corrected
from engine.units import counted, duration_text
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, Label, button, centered, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.text import not_reported_text
from widgets.plot.parts_bar import PartsBar
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4

EMPTY_TEXT = "Send a message to see the step time breakdown."
NO_MODEL = "Open a model and send a message to see the step time breakdown."
NO_PEAKS = (
    "Peak memory bandwidth and compute are measured while the engine is idle. "
    "Stop running requests to measure them now."
)
MEASURING = "Measuring peak memory bandwidth and compute…"
NOT_RECORDED = "Peak memory bandwidth and compute were not recorded."
RECORDED = "Settings in a recording are read-only."
PROFILED_STEPS = 16
NOT_THERE = "No recent steps match this filter."
AGAIN_S, AGAIN_IF_BUSY_S = 600.0, 60.0
"""Peaks are measured again while the panel is seen and the engine idle, no more often than this:
what others do on the machine changes. Sooner where it was busy."""
CALM_MS = 10_000
"""Without a request, before that: between two requests of a load it would delay the next one."""
_INTERVAL_S, _UNSEEN_INTERVAL_S = 1.0, 5.0
_SIDE_BY_SIDE, _SIDE_BY_SIDE_IF_LOW = 1000, 720
"""Pixels: wider panels show parts and table side by side."""
_LOW = 400  # pixels of height
_FULL_REASONS = 1100, 480  # pixels of width and height with room for every reason in full
_AGAIN_MS = 2000  # after a measurement that the engine was too busy for
_PARTS_WIDTH = 420
_MOST_PARTS = 0.42  # of the panel's width


class BottleneckPanel(QFrame):
    """`measure_wanted`: measure the machine's peaks. `profile_wanted(num_steps)`: profile the next
    steps. `estimated`: potential gain per setting and
    value, as text; also while hidden. `applied(changes)`: apply these settings now.
    """

    measure_wanted = Signal()
    profile_wanted = Signal(int)
    estimated = Signal(object)  # dict[str, dict[Any, str]]
    applied = Signal(object)  # dict[str, Any]

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Step time breakdown")
        self.model = StepTracker()
        self._config: Any = None
        self._estimates: tuple[GainEstimate, ...] = ()
        self.measured: Callable[[GainEstimate], MeasuredGain | None] = lambda one: None
        """What a setting gained here when it was changed."""
        self._is_open = False  # a model is loaded
        self._is_idle = False
        self._asked = False
        self._is_live = True
        self._is_measuring = False
        self._why_not = ""
        self._not_reported = ""  # why a remote engine has nothing to show
        self._shown_at = float("-inf")
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_MS)
        self._again.timeout.connect(self._ask_if_unknown)
        self._measured_at = float("-inf")
        self._calm = QTimer(self, singleShot=True)
        self._calm.timeout.connect(self._measure_again)
        self._build()
        self._show_breakdown()

    def _build(self) -> None:
        self._empty = centered(NO_MODEL)
        self._left = self._make_left()
        self.table, self.why = WhatIfTable(), _wrapped()
        self.table.itemSelectionChanged.connect(self._show_why)
        self.table.applied.connect(self.applied)
        right = vbox((self.table, 1), self.why, spacing=SPACE_1)
        content, margins = dressed(QWidget(), bare=True), (SPACE_3, 0, SPACE_3, SPACE_2)
        self._sides = hbox(self._left, (right, 1), of=content, spacing=SPACE_4, margins=margins)
        self._area = scroll_area(content, "Step time breakdown")
        scroll_by_keys(self._area)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._area)
        self.profile = ProfileView()
        self.profile.closed.connect(self._close_profile)
        self._stack.addWidget(self.profile)

    def _make_left(self) -> QWidget:
        self.verdict = dressed(Label(wordWrap=True), role="title")
        self.note = ElidedLine("text_muted")
        self.counted, self.peaks_line = _wrapped(), _wrapped()
        self.chosen = dressed(
            QComboBox(), "Step filter",
            "Decode-only steps determine ITL; steps with prefill determine TTFT.",
        )  # fmt: skip
        self.chosen.addItems([kind.value.capitalize() for kind in Chosen])
        self.chosen.currentIndexChanged.connect(lambda index: self._show_breakdown())
        self.bar = PartsBar("Step time breakdown")
        self.measure = button(
            "Measure again", self._measure,
            "Measure peak memory bandwidth and compute (takes 1.5 s, requires an idle engine)",
        )  # fmt: skip
        self.profile_steps = button(
            "Profile steps", self._profile,
            f"Time, bytes and FLOPs per operation over the next {PROFILED_STEPS} steps",
        )  # fmt: skip
        self.profile_line = _wrapped()
        left = QWidget()
        vbox(
            self.verdict, hbox((self.note, 1), self.chosen), self.bar, self.counted,
            hbox((self.peaks_line, 1), self.measure),
            hbox((self.profile_line, 1), self.profile_steps), STRETCH, of=left, spacing=SPACE_1,
        )  # fmt: skip
        return left

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        width, height = (scaled(length) for length in _FULL_REASONS)
        self.table.set_wrapped(self.width() >= width and self.height() >= height)
        is_low = self.height() < scaled(_LOW)
        wide = self.width() >= scaled(_SIDE_BY_SIDE_IF_LOW if is_low else _SIDE_BY_SIDE)
        parts = min(scaled(_PARTS_WIDTH), round(_MOST_PARTS * self.width()))
        directions = QBoxLayout.Direction
        self._sides.setDirection(directions.LeftToRight if wide else directions.TopToBottom)
        self._left.setMaximumWidth(parts if wide else 16_777_215)
        self._left.setMinimumWidth(parts if wide else 0)

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take the new steps; text changes once a second."""
        self._not_reported = not_reported_text(
            snapshot, "Steps", Part.STEPS, instead="Use an engine that reports step times."
        )
        if self._not_reported:
            self._show_breakdown()
            return
        had_steps, had_peaks = self.model.has_steps, self.model.peaks is not None
        self.model.update(snapshot)
        if had_peaks and self.model.peaks is None:  # other devices have other peaks
            self._asked = False
        if had_steps and not self.model.has_steps:  # show the change at once
            self._shown_at = float("-inf")
        self._config = snapshot.config
        self._is_idle = not snapshot.requests
        self._ask_if_unknown()
        interval = _INTERVAL_S if self.isVisible() else _UNSEEN_INTERVAL_S
        if snapshot.time - self._shown_at >= interval or (self._is_idle and snapshot.steps):
            self._shown_at = snapshot.time
            breakdown = self.model.breakdown()
            self._renew(breakdown)
            self._show_breakdown(breakdown)

    def show_peaks(self, event: PeaksMeasured) -> None:
        self._is_measuring = False
        self.measure.setEnabled(self._is_live)
        if event.peaks is None:
            self._asked = False  # asked again when the engine rests
            self._again.start()
            self._why_not = f"Peak bandwidth and compute not measured: {event.why_not}"
            self.peaks_line.setText(self._why_not)
        else:
            self._why_not = ""
            self.model.peaks = event.peaks
            self._renew(self.model.breakdown())
            self._ask_if_unknown()  # an idle engine sends no snapshot
        self._show_breakdown()

    def _profile(self) -> None:
        self.profile_steps.setEnabled(False)
        self.profile_line.setText("Profiling the next steps…")
        self.profile_wanted.emit(PROFILED_STEPS)

    def show_profile(self, event: StepsProfiled) -> None:
        self.profile_steps.setEnabled(True)
        peaks = self.model.peaks
        why_not = event.why_not or ("The peaks are not measured." if peaks is None else "")
        self.profile_line.setText(f"Not profiled: {why_not}" if why_not else "")
        if event.profiles and peaks is not None:
            self.profile.show_profile(event, peaks)
            self._stack.setCurrentWidget(self.profile)

    def _close_profile(self) -> None:
        self._stack.setCurrentWidget(self._area)
        self._show_breakdown()

    def open_model(self) -> None:
        self._is_measuring, self._why_not = False, ""
        self._shown_at = float("-inf")
        self.peaks_line.setText("")
        self._reset(is_open=True)

    def close_model(self) -> None:
        self._reset(is_open=False)

    def _reset(self, *, is_open: bool) -> None:
        self._again.stop()
        self._calm.stop()
        self.profile_steps.setEnabled(True)
        self.profile_line.setText("")
        self._stack.setCurrentWidget(self._area)
        self.model.clear()
        self._estimates = ()
        self._is_open, self._asked, self._is_idle, self._not_reported = is_open, False, False, ""
        self._show_breakdown()

    def set_recorded(self) -> None:
        """Show a recording: measuring and applying are off."""
        self._is_live = False
        self.measure.hide()
        self.profile_steps.hide()
        self.table.refuse = lambda name, value: RECORDED

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._ask_if_unknown()
        breakdown = self.model.breakdown()
        self._renew(breakdown)  # a hidden panel renews them less often than its steps change
        self._show_breakdown(breakdown)

    def _ask_if_unknown(self) -> None:
        peaks = self.model.peaks
        if not self._may_ask:
            self._calm.stop()
        elif peaks is None and not self._asked:
            self._measure()
        elif peaks is not None and not self._calm.isActive():
            again = AGAIN_IF_BUSY_S if peaks.is_disturbed else AGAIN_S
            left_ms = 1e3 * (self._measured_at + again - time.monotonic())
            self._calm.start(round(max(CALM_MS, left_ms)))

    @property
    def _may_ask(self) -> bool:
        return self._is_idle and self.isVisible() and not self._is_measuring

    def _measure_again(self) -> None:
        if self._may_ask:
            self._measure()

    def _measure(self) -> None:
        if self._is_live:
            self._asked = self._is_measuring = True
            self._measured_at = time.monotonic()
            self.measure.setEnabled(False)
            self.peaks_line.setText(MEASURING)
            self.measure_wanted.emit()
            self._show_breakdown()

    # Showing -----------------------------------------------------------------------------------

    def _renew(self, breakdown: StepBreakdown | None) -> None:
        """New estimates, from all steps: the table and the settings show the same."""
        made = breakdown.estimates if breakdown is not None else ()
        self._estimates = tuple(corrected(one, self.measured(one)) for one in made)
        words: dict[str, dict[Any, str]] = {}
        for one in self._estimates:
            if not is_enabled(one, self._config):
                value = value_of(one, self._config)
                words.setdefault(one.setting, {})[value] = hint_of(one)
        self.estimated.emit(words)

    def step_text(self, step: StepRecord) -> str:
        """ "weights 71 %, KV 9 %" of one step; "" without peaks."""
        split = self.model.split(step)
        return "" if split is None else split_text(split)

    def _show_breakdown(self, of_all: StepBreakdown | None = None) -> None:
        """`of_all`: the breakdown of all steps, where already computed."""
        if not self.isVisible() or self._stack.currentWidget() is self.profile:
            return
        chosen = list(Chosen)[self.chosen.currentIndex()]
        breakdown = of_all if of_all and chosen is Chosen.ALL else self.model.breakdown(chosen)
        if breakdown is None and not (self.model.has_steps and self.model.peaks):
            self._empty.setText(self._why_empty())
            self._stack.setCurrentWidget(self._empty)
            return
        self._stack.setCurrentWidget(self._area)
        self.table.show_estimates(self._estimates, self._config)
        self._show_why()
        if breakdown is None:
            self.verdict.setText(NOT_THERE)
            self.note.set_text("")
            self.counted.setText("")
            self.bar.show_parts([])
            return
        self.verdict.setText(breakdown.verdict[:1].upper() + breakdown.verdict[1:])
        self.note.set_text(
            f"{counted(breakdown.num_steps, 'step')}, "
            f"mean {duration_text(breakdown.split.total)}, median {duration_text(breakdown.median)}"
        )
        if self.model.peaks is not None and not self._is_measuring:
            self.peaks_line.setText(peaks_text(self.model.peaks, breakdown.speed))
        self.bar.show_parts(parts_of(breakdown.split))
        self.counted.setText(counted_text(breakdown))

    def _show_why(self) -> None:
        self.why.setText(self.table.why())

    def _why_empty(self) -> str:
        if not self._is_open:
            return NO_MODEL
        if self._not_reported:
            return self._not_reported
        if self.model.has_steps:
            waits = MEASURING if self._is_measuring else NO_PEAKS
            return (self._why_not or waits) if self._is_live else NOT_RECORDED
        return EMPTY_TEXT


def _wrapped() -> QLabel:
    return dressed(Label(wordWrap=True), role="small")
