"""`LatencyPopover`: the latency breakdown of one reply."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QWidget

from widgets.controls.layouts import STRETCH, button, hbox, label
from widgets.controls.popover import Popover
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.latency.chart import NONE, LatencyChart, Name, first_token_text, gap_text, gaps_text
from widgets.latency.reply import ReplyLatency
from widgets.theme.theme import SPACE_1

WIDTH, CHART_HEIGHT = 560, 160
LEGEND = (
    Swatch("waiting", of("queued")),
    Swatch("prefill", of("prefill")),
    Swatch("decode", of("decode")),
    Swatch("larger batch", of("running")),
    Swatch("preempted", of("preempted")),
    Swatch("cache rebuild, reload", of("badge_rebuild")),
    Swatch("slow step", of("p99")),
)
HINT = "Hover over a gap or use the arrow keys. T: table of values."


class LatencyPopover(Popover):
    """`step_wanted(index of a step)`: show it in the timeline."""

    step_wanted = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "Request latency")
        self.name: Name = lambda request_id: request_id[:8]
        self._latency: ReplyLatency | None = None
        self.title.setTextFormat(Qt.TextFormat.PlainText)
        self.first_token, self.gaps, self.line = QLabel(), label(role="muted"), QLabel()
        self.chart = LatencyChart()
        self.chart.setFixedSize(WIDTH, CHART_HEIGHT)
        self.chart.pointed.connect(lambda index: self._show_gap())
        self.show_step = button("Show step in timeline", self._ask_for_step)
        tip = "Show all phases and gaps in a table (T)"
        self.show_table = button("Table of values…", self.chart.show_table, tip)
        for line in (self.first_token, self.gaps, self.line):
            line.setWordWrap(True)
            line.setFixedWidth(WIDTH)
        self.line.setMinimumHeight(2 * self.line.fontMetrics().height() + SPACE_1)
        for widget in (self.first_token, self.gaps, self.chart, Swatches(LEGEND), self.line):
            self.column.addWidget(widget)
        self.column.addLayout(hbox(self.show_table, STRETCH, self.show_step, spacing=-1))

    def show_latency(self, latency: ReplyLatency, of: str = "this reply") -> None:
        self._latency = latency
        self.title.setText(f"Latency: {of}")
        self.first_token.setText(first_token_text(latency))
        self.gaps.setText(gaps_text(latency))
        self.chart.show_latency(latency)
        self._show_gap()

    def first_field(self) -> QWidget:
        return self.chart

    def _show_gap(self) -> None:
        latency, index = self._latency, self.chart.pointed_index
        if latency is None:
            return
        if index == NONE:
            self.line.setText(HINT if latency.gaps else "")
            self.show_step.setEnabled(False)
        else:
            self.line.setText(gap_text(latency, index, self.name))
            self.show_step.setEnabled(bool(latency.gaps[index].steps))
        self.chart.setAccessibleDescription(
            " ".join(line.text() for line in (self.first_token, self.gaps, self.line))
        )

    def _ask_for_step(self) -> None:
        latency, index = self._latency, self.chart.pointed_index
        if latency is not None and index != NONE and latency.gaps[index].steps:
            self.hide()
            self.step_wanted.emit(latency.gaps[index].steps[-1].index)
