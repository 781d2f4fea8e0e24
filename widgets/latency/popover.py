"""`LatencyPopover`: the latency breakdown of one request, at the button below a table of them."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from widgets.controls.layouts import wrapped
from widgets.controls.popover import Popover
from widgets.latency.chart import first_token_text
from widgets.latency.reply import ReplyLatency
from widgets.latency.view import LatencyView
from widgets.theme.fonts import scaled

WIDTH = 560


class LatencyPopover(Popover):
    """`step_wanted(index of a step)`: show it in the timeline."""

    step_wanted = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "Request latency")
        self.title.setTextFormat(Qt.TextFormat.PlainText)
        self.first_token, self.view = wrapped(), LatencyView()
        self.view.step_wanted.connect(self._on_step)
        self.column.addWidget(self.first_token)
        self.column.addWidget(self.view)

    def show_latency(self, latency: ReplyLatency, of: str) -> None:
        self.title.setText(f"Latency: {of}")
        self.first_token.setText(first_token_text(latency))
        self.view.show_latency(latency)
        self.view.setFixedWidth(min(scaled(WIDTH), self.window().width() * 3 // 4))

    def first_field(self) -> QWidget:
        return self.view.chart

    def _on_step(self, index: int) -> None:
        self.hide()
        self.step_wanted.emit(index)
