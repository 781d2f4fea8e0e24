"""`LatencyView`: the gaps of one reply as bars, and the cause of the one pointed at."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from engine.snapshot import StepRecord
from widgets.controls.buttons import ButtonRows
from widgets.controls.layouts import button, vbox, wrapped
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.latency.causes import Cause
from widgets.latency.chart import (
    CAUSE_COLORS,
    NONE,
    STAGE_COLORS,
    LatencyChart,
    Name,
    first_token_text,
    gap_text,
    gaps_text,
)
from widgets.latency.reply import ReplyLatency, Stage
from widgets.theme.theme import SPACE_1, theme_notifier

CHART_HEIGHT = 160
_STAGES = {
    Stage.QUEUE: "queued", Stage.PREFILL: "prefill", Stage.BOTH: "queue and prefill",
    Stage.WAIT: "waiting",
}  # fmt: skip
_CAUSES = {
    Cause.NONE: "decode",
    Cause.CONTINUED: "continued",
    Cause.RELOAD: "reload",
    Cause.REBUILD: "cache rebuild",
    Cause.PREEMPTED: "preempted",
    Cause.BETWEEN: "no step",
    Cause.PREFILL: "prefill",
    Cause.DRAFT: "drafting",
    Cause.MODEL: "slow step",
    Cause.HOST: "slow step",
    Cause.BATCH: "larger batch",
    Cause.UNKNOWN: "slow step",
}
CAPTION = "Top: time to first token, by stage. Below: gaps between tokens."
HINT = "Hover over a gap or use the arrow keys. T: table of values."


def legend(latency: ReplyLatency) -> list[Swatch]:
    """The colours that the chart of this reply shows."""
    stages = [(STAGE_COLORS[s.stage], _STAGES[s.stage]) for s in latency.stretches]
    causes = set(latency.causes)
    shown = [*stages, *((CAUSE_COLORS[c], _CAUSES[c]) for c in Cause if c in causes)]
    names: dict[str, dict[str, None]] = {}
    for color, name in shown:
        names.setdefault(color, {})[name] = None
    return [Swatch(", ".join(each), of(color)) for color, each in names.items()]


class LatencyView(QWidget):
    """As wide as its room. `step_wanted(index of a step)`: show it in the timeline."""

    step_wanted = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.name: Name = lambda request_id: request_id[:8]
        self._latency: ReplyLatency | None = None
        self.gaps, self.line = wrapped("muted"), wrapped()
        self.line.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.chart = LatencyChart()
        self.chart.setFixedHeight(CHART_HEIGHT)
        self.chart.pointed.connect(lambda index: self._show_gap())
        self.legend = Swatches((), wraps=True)
        self.show_step = button("Show step in timeline", self._ask_for_step, kind="link")
        tip = "Show all phases and gaps in a table (T)"
        self.show_table = button("Table of values…", self.chart.show_table, tip, "link")
        buttons = ButtonRows((self.show_table, self.show_step))
        caption = wrapped("small", CAPTION)
        vbox(self.gaps, caption, self.chart, self.legend, self.line, buttons, of=self)
        theme_notifier().changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        """The next gap's sentence must not move the buttons."""
        self.line.setMinimumHeight(2 * self.line.fontMetrics().lineSpacing() + SPACE_1)

    def show_latency(self, latency: ReplyLatency) -> None:
        self._latency = latency
        self.gaps.setText(gaps_text(latency))
        self.legend.set_swatches(legend(latency))
        self.chart.show_latency(latency)
        self._show_gap()

    def _show_gap(self) -> None:
        latency, index = self._latency, self.chart.pointed_index
        if latency is None:
            return
        if index == NONE:
            self.line.setText(HINT if latency.gaps else "")
            self.show_step.setEnabled(False)
        else:
            self.line.setText(gap_text(latency, index, self.name))
            self.show_step.setEnabled(self._step is not None)
        texts = (first_token_text(latency), self.gaps.text(), self.line.text())
        self.chart.setAccessibleDescription(" ".join(texts))

    @property
    def _step(self) -> StepRecord | None:
        """The last step of the gap pointed at."""
        latency, index = self._latency, self.chart.pointed_index
        steps = () if latency is None or index == NONE else latency.gaps[index].steps
        return steps[-1] if steps else None

    def _ask_for_step(self) -> None:
        if (step := self._step) is not None:
            self.step_wanted.emit(step.index)

