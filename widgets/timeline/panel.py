"""`TimelinePanel`: the step timeline with its legend and the pointed step."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from engine.snapshot import EngineSnapshot, Part, StepRecord
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import button, centered, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.controls.text import not_reported_text
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3
from widgets.timeline.latency_row import LatencyRow
from widgets.timeline.table import Name, batch_text, step_text, time_text
from widgets.timeline.view import TimelineView

EMPTY_TEXT = "Steps appear here when a reply is generated. Send a message."
HINT = "Hover over a step to see its batch; click to select it."
MORE_HINT = "Drag or scroll to go back in time. Ctrl+scroll to zoom."
EXPIRED = (
    "Step {index:,} has expired. The timeline keeps the last {capacity:,} steps of the open model."
)
LEGEND = (
    Swatch("queued", of("queued")),
    Swatch("cached", of("cached")),
    Swatch("prefill", of("prefill")),
    Swatch("decode", of("decode")),
    Swatch("accepted draft token", of("draft")),
    Swatch("preempted", of("preempted")),
    Swatch("resumed", lambda table: (table.value("preempted"), table.value("prefill"))),
    Swatch("idle slot", of("queued"), fill=Qt.BrushStyle.BDiagPattern),
)
LEGEND_FROM, LATENCIES_FROM = 180, 360
"""Pixels of the panel's height with room for the legend, and for the latencies above the
timeline."""


class TimelinePanel(QFrame):
    """The timeline, its legend and details. Takes every snapshot."""

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Step timeline")
        self.view = TimelineView(clock)
        self.view.pointed.connect(lambda ordinal: self._on_pointed())
        self.view.chosen.connect(lambda ordinal: self._on_pointed())
        self.view.followed.connect(self._show_following)
        self._clock = clock
        clock.beat.connect(self._on_beat)
        self._is_idle = False
        self._expired = ""  # why the step that was asked for is not shown
        self._explain: Callable[[StepRecord], str] = lambda step: ""
        self._build()
        self._show_following(True)
        self._show_text()

    def set_names(self, name: Name) -> None:
        """Request id to display name."""
        self.view.name = name

    def set_explain(self, explain: Callable[[StepRecord], str]) -> None:
        """`explain(step)`: its cost breakdown, as text."""
        self._explain = explain

    def _build(self) -> None:
        self.note = ElidedLine("text_muted")
        self.follow_button = button("", self._toggle_following)
        self.follow_button.setCheckable(True)
        values = "Table of visible steps (T)"
        table = IconButton("table", values, lambda: self.view.show_table())
        zoom_out = IconButton("minus", "Zoom out (-)", lambda: self.view.zoom(-1))
        zoom_in = IconButton("plus", "Zoom in (+)", lambda: self.view.zoom(1))
        self._empty = centered(EMPTY_TEXT)
        self.latencies = LatencyRow(self.view)
        self._shown = QWidget()
        vbox(self.latencies, (self.view, 1), of=self._shown, spacing=SPACE_1)
        self._stack = stack(self._empty, self._shown)
        self.legend = Swatches(LEGEND)
        self.line, self.batch = ElidedLine(), ElidedLine("text_muted")
        vbox(
            hbox((self.note, 1), table, zoom_out, zoom_in, self.follow_button, spacing=SPACE_1),
            (self._stack, 1), self.legend, self.line, self.batch,
            of=self, spacing=SPACE_1, margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.legend.setVisible(self.height() >= scaled(LEGEND_FROM))
        self.latencies.setVisible(self.height() >= scaled(LATENCIES_FROM))

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Add the new steps; text changes twice a second, the view by its clock."""
        words = not_reported_text(
            snapshot, "Steps", Part.STEPS, instead="See the charts and the request table."
        )
        self._empty.setText(words or EMPTY_TEXT)
        if words:
            return
        self.view.history.add(snapshot.steps, snapshot.requests)
        if self.view.history.end:
            self._stack.setCurrentWidget(self._shown)
        self.view.changed()
        self._is_idle = not snapshot.num_running + snapshot.num_waiting
        self._clock.take_snapshot()

    def _on_beat(self) -> None:
        if self.isVisible():
            self._show_text()

    def rest(self) -> None:
        """The model was closed: no snapshot follows."""
        self._is_idle = True
        self._show_text()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_text()  # not kept up to date while hidden

    def clear(self) -> None:
        self.view.clear()
        self._expired = ""
        self._stack.setCurrentWidget(self._empty)
        self._show_text()

    def show_step(self, index: int) -> None:
        """Point at the step with this engine index, centred where possible; say so if the timeline
        has dropped it."""
        ordinal = self.view.history.ordinal_of(index)
        if ordinal is None:
            self.view.point_at(NONE)
            self._expired = EXPIRED.format(index=index, capacity=self.view.history.capacity)
            self._show_text()
        else:
            self.view.show_until(ordinal + 1 + self.view.num_columns // 2)
            self.view.point_at(ordinal)

    # Words -------------------------------------------------------------------------------------

    def _on_pointed(self) -> None:
        self._expired = ""
        self._show_text()

    def _show_text(self) -> None:
        """Of the newest step, and of the one pointed at, else the chosen one."""
        history, at = self.view.history, self.view.pointed_index
        at = self.view.chosen_index if at == NONE else at
        if history.end == history.first:
            self.line.set_text(self._expired)
            for line in (self.note, self.batch):
                line.set_text("")
            return
        newest = step_text(history.record(history.end - 1))
        self.note.set_text(f"idle · last {newest}" if self._is_idle else newest)
        if not history.first <= at < history.end:
            self.line.set_text(self._expired or HINT)
            self.batch.set_text("" if self._expired else MORE_HINT)
        else:
            step = history.record(at)
            words = (step_text(step), time_text(step), self._explain(step))
            self.line.set_text(" · ".join(filter(None, words)))
            self.batch.set_text(batch_text(step, self.view.name))
        shown = f"{self.line.text()} {self.batch.text()}" if at != NONE else self.note.text()
        self.view.setAccessibleDescription(shown.strip())

    def _toggle_following(self) -> None:
        (self.view.pause if self.view.follows else self.view.follow)()
        self._show_following(self.view.follows)

    def _show_following(self, follows: bool) -> None:
        self.follow_button.setChecked(not follows)
        self.follow_button.setText("Pause" if follows else "Follow")
        self.follow_button.setToolTip(
            "Pause the timeline" if follows else "Follow the latest step (End)"
        )
