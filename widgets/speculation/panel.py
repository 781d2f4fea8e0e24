"""`SpeculationPanel`: speed-up, acceptance rate and acceptance length of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from engine.snapshot import EngineSnapshot, Part, SpeculationSnapshot
from engine.units import duration_text, factor_text, percent_text, speculative_name
from widgets.controls.engine_time import EngineTime
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, Label, button, centered, dressed, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.text import not_reported_text
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import PaintedPlot
from widgets.plot.series import Series
from widgets.plot.table import ValuesTable
from widgets.plot.time_chart import TimeChart
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme

_WIDEST, _HIGHEST = 44, 240
_GAP = 4
_LEAST_FOR_TEXT = 34
_DRAFTED, _ACCEPTED = attrgetter("num_draft"), attrgetter("num_accepted")  # C: of 6,400 entries


class PositionBars(PaintedPlot):
    """One column per position: the outline is the number drafted, the filled part the number
    accepted, the text above it the acceptance rate."""

    preferred = QSize(220, 120)
    least = QSize(120, 64)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Acceptance per position", parent=parent)
        self._drafted: tuple[int, ...] = ()
        self._accepted: tuple[int, ...] = ()

    def show_counts(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        counts = tuple(drafted), tuple(accepted)
        if counts == (self._drafted, self._accepted):
            return
        self._drafted, self._accepted = counts
        text = "\n".join(
            f"Position {i}: {kept:,} of {made:,} accepted ({100 * kept / made:.0f} %)"
            for i, (made, kept) in enumerate(zip(*counts, strict=True), start=1)
            if made
        )
        self.setToolTip(text)
        self.setAccessibleDescription(text)
        self.update()

    def values_table(self) -> ValuesTable:
        """A row per draft position, from 1."""
        rows = tuple(
            (place, made, kept, 100 * kept / made if made else None)
            for place, (made, kept) in enumerate(zip(self._drafted, self._accepted, strict=True), 1)
        )
        headers = ("position", "drafted", "accepted", "acceptance rate (%)")
        return ValuesTable(headers, rows, (0, 0, 0, 1))

    # Painting ----------------------------------------------------------------------------------

    def bar_rect(self, index: int) -> QRectF:
        """The outline of a column."""
        count = max(1, len(self._drafted))
        pitch = min(_WIDEST + _GAP, self.width() / count)
        line = round(self.line_height)
        height = min(max(1.0, self.height() - 2.0 * (line + SPACE_1)), scaled(_HIGHEST))
        return QRectF(index * pitch, line + SPACE_1, pitch - _GAP, height)

    def paint(self, painter: QPainter) -> None:
        most = max(self._drafted, default=0)
        for index, (made, kept) in enumerate(zip(self._drafted, self._accepted, strict=True)):
            if made:
                self._paint_bar(painter, index, made / most, kept / made)

    def _paint_bar(self, painter: QPainter, index: int, reached: float, share: float) -> None:
        table, area = theme(), self.bar_rect(index)
        outline = area.adjusted(0, area.height() * (1 - reached), 0, 0)
        filled = outline.adjusted(0, outline.height() * (1 - share), 0, 0)
        painter.fillRect(outline, table.color("raised"))
        painter.fillRect(filled, table.line_color("draft"))
        painter.setPen(table.color("border_strong"))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(outline.adjusted(0.5, 0.5, -0.5, -0.5))
        painter.setPen(table.color("text_muted"))
        line = QRectF(area.left(), area.bottom() + SPACE_1, area.width(), self.line_height)
        self._centered(painter, line, f"{index + 1}")
        if area.width() >= _LEAST_FOR_TEXT:
            painter.setPen(table.color("text"))
            above = QRectF(area.left(), 0, area.width(), area.top() - SPACE_1)
            above.moveBottom(outline.top() - 2)
            self._centered(painter, above, f"{100 * share:.0f} %")

    def _centered(self, painter: QPainter, area: QRectF, text: str) -> None:
        width = self.pen.width(text)
        start = QRectF(area.center().x() - width / 2, area.top(), width, area.height())
        self.pen.left(painter, start, text)


FEWEST_PLAIN_STEPS = 5
"""Steps without drafts that a measured speed-up needs."""
REST_STEPS = 8
"""Steps without drafts after which adaptive speculation counts as paused."""
_CLEAR = 0.03  # a smaller change of speed counts as none


class Verdict(NamedTuple):
    """`tone`: "text", "success" or "warning", names of the theme."""

    text: str
    tone: str
    detail: str


def verdict(figures: SpeculationSnapshot) -> Verdict:
    """The measured speed-up, and what it is based on."""
    found = figures.speed_up
    if not figures.method:
        return Verdict(
            "Server-side speculation", "text",
            "Totals since the server started. This server reports neither the speed-up nor "
            "per-position acceptance.",
        )  # fmt: skip
    if figures.rest_steps >= REST_STEPS:
        last = f" Last measured: {factor_text(found.factor)}." if found is not None else ""
        return Verdict(
            "Speculation paused: no speed-up", "warning",
            f"No draft tokens for {figures.rest_steps:,} steps. Occasional probe steps check "
            f"whether to resume.{last}",
        )  # fmt: skip
    if not figures.rounds:
        return Verdict(
            "No draft tokens verified yet", "text", "Drafting starts with the next reply.",
        )  # fmt: skip
    if found is None or found.num_plain_steps < FEWEST_PLAIN_STEPS:
        seen = found.num_plain_steps if found is not None else 0
        return Verdict(
            "Measuring the speed-up", "text",
            f"One step in 64 runs without drafts as a baseline: {seen} of "
            f"{FEWEST_PLAIN_STEPS} so far.",
        )  # fmt: skip
    basis = (
        f"Measured on this workload: {found.num_drafted_steps:,} steps with drafts, "
        f"{found.num_plain_steps:,} without."
    )
    if found.factor > 1 + _CLEAR:
        return Verdict(f"Speed-up {factor_text(found.factor)}", "success", basis)
    if found.factor < 1 - _CLEAR:
        slower = f"Slower ({factor_text(found.factor)}): turn speculation off"
        return Verdict(slower, "warning", basis)
    return Verdict(f"No speed-up ({factor_text(found.factor)})", "text", basis)


def source(figures: SpeculationSnapshot) -> str:
    """ "draft model “draft”"."""
    method = speculative_name(figures.method)
    return f"{method} “{figures.draft_model}”" if figures.draft_model else method


def acceptance(figures: SpeculationSnapshot) -> str:
    """ "acceptance length 3.42 · 2,114 of 2,890 draft tokens accepted (73 %)"."""
    length, rate = figures.acceptance_length, figures.acceptance_rate
    accepted = f"{figures.accepted:,} of {figures.drafted:,} draft tokens accepted"
    parts = [
        "" if length is None else f"acceptance length {length:.2f}",
        "" if rate is None else f"{accepted} ({percent_text(rate)})",
    ]
    return " · ".join(filter(None, parts))


def times(figures: SpeculationSnapshot) -> str:
    """ "draft 1.9 ms, verify 12.4 ms per step"."""
    if not figures.draft_steps:
        return ""
    draft = duration_text(figures.draft_s / figures.draft_steps)
    verify = duration_text(figures.verify_s / figures.draft_steps)
    return f"draft {draft}, verify {verify} per step"


OFF_TEXT = (
    "Speculative decoding is off. A draft model, n-gram lookup or an EAGLE-3 head proposes tokens. "
    "The target model verifies them in one step: same output, fewer steps. This panel shows the "
    "acceptance rate and the speed-up."
)


class SpeculationPanel(QFrame):
    """`settings_wanted`: open the engine settings."""

    settings_wanted = Signal()

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Speculative decoding")
        self._time = EngineTime()
        self._clock = clock
        clock.beat.connect(self._on_beat)
        self._reported: SpeculationSnapshot | None = None  # a server's previous counts
        self._latest: SpeculationSnapshot | None = None
        self.chart = TimeChart(
            "Tokens per round", "",
            (
                Series("length", "acceptance length", "draft",
                       tip="Accepted draft tokens plus one target-model token, per round"),
                Series("drafted", "drafted", "other", dashed=True, tip="Draft tokens per round"),
            ),
            clock=clock, value_template="0.00", time_source=self._time.now,
            empty_text="Acceptance length appears after the first verified draft.",
        )  # fmt: skip
        self._build()
        self.clear()

    def _build(self) -> None:
        self.verdict = dressed(Label(wordWrap=True), role="title")
        self.detail = dressed(Label(wordWrap=True), role="small")
        self.source, self.acceptance, self.times = (ElidedLine("text_muted") for _ in range(3))
        left = vbox(
            self.verdict, self.detail, self.acceptance, self.times, self.source, STRETCH,
            spacing=SPACE_1,
        )  # fmt: skip
        heading = ElidedLine("text_muted")
        heading.set_text("Acceptance per position")
        self.positions = PositionBars()
        self._middle, self._figures, self._off = QWidget(), QWidget(), QWidget()
        vbox(heading, (self.positions, 1), of=self._middle, spacing=SPACE_1)
        hbox((left, 3), (self._middle, 2), (self.chart, 4), of=self._figures, spacing=SPACE_3)
        self._off_text = centered(OFF_TEXT)
        tip = "Open the engine settings"
        self.choose = button("Choose method", self.settings_wanted.emit, tip)
        # not aligned: a layout gives an aligned label the height of another width than it has
        middle = hbox(STRETCH, (self._off_text, 3), STRETCH)
        choose = (self.choose, 0, Qt.AlignmentFlag.AlignHCenter)
        vbox(STRETCH, middle, choose, STRETCH, of=self._off)
        self._stack = stack(self._off, self._figures)
        self._stack.setProperty("bare", True)
        area = scroll_area(self._stack, "Speculative decoding")  # a low panel scrolls
        area.setProperty("bare", True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        scroll_by_keys(area)
        vbox(area, of=self, margins=(SPACE_3, 0, SPACE_3, SPACE_2))

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take a snapshot; text changes at the beats of the clock, the chart by its clock."""
        self._time.synchronise(snapshot.time)
        figures = self._latest = snapshot.speculation
        words = not_reported_text(
            snapshot, "Speculation", Part.SPECULATION, instead="Enable it when starting the server."
        )
        self._off_text.setText(words or OFF_TEXT)
        self.choose.setVisible(not words)
        self._stack.setCurrentWidget(self._off if figures is None else self._figures)
        if figures is None:
            return
        if figures.method:
            self._add_point(snapshot)
        else:
            self._add_reported(snapshot.time, figures)
        self._clock.take_snapshot()

    def _on_beat(self) -> None:
        if self._latest is not None and self.isVisible():
            self._show(self._latest)

    def showEvent(self, event: QShowEvent) -> None:
        """What came while it was hidden: an idle engine sends no more."""
        super().showEvent(event)
        self._on_beat()

    def clear(self) -> None:
        self.chart.clear()
        self._reported = self._latest = None
        self._stack.setCurrentWidget(self._off)

    def _add_reported(self, now: float, figures: SpeculationSnapshot) -> None:
        """What a server counted since its previous report."""
        before, self._reported = self._reported, figures
        if before is None or before == figures:
            return
        rounds = figures.rounds - before.rounds
        if rounds > 0:
            accepted = figures.accepted - before.accepted
            self.chart.append("length", now, 1 + accepted / rounds)
            self.chart.append("drafted", now, (figures.drafted - before.drafted) / rounds)
        elif figures.told_length is not None:
            self.chart.append("length", now, figures.told_length)

    def _add_point(self, snapshot: EngineSnapshot) -> None:
        """The rounds since the last snapshot, as one point."""
        entries = [step.entries for step in snapshot.steps]
        drafts = list(map(_DRAFTED, chain.from_iterable(entries)))
        rounds = len(drafts) - drafts.count(0)
        if not rounds:
            return
        accepted = sum(map(_ACCEPTED, chain.from_iterable(entries)))
        self.chart.append("length", snapshot.time, 1 + accepted / rounds)
        self.chart.append("drafted", snapshot.time, sum(drafts) / rounds)

    def _show(self, figures: SpeculationSnapshot) -> None:
        found = verdict(figures)
        self.verdict.setText(found.text)
        restyle(self.verdict, tone=found.tone)
        self.detail.setText(found.detail)
        self.source.set_text(source(figures))
        self.acceptance.set_text(acceptance(figures))
        self.times.set_text(times(figures))
        self._middle.setVisible(bool(figures.method))
        self.positions.show_counts(figures.drafted_per_position, figures.accepted_per_position)
