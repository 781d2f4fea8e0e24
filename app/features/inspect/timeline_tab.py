"""`TimelineTab`: the timeline on a full page, and the step that is chosen in it beside it."""

from __future__ import annotations

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QWidget

from app.features.inspect.slot import Slot
from app.features.inspect.step_state import StepState
from engine.snapshot import StepRecord
from widgets.controls.layouts import hbox
from widgets.theme.fonts import scaled

BESIDE_FROM, STATE_WIDTH, STATE_SHARE = 640, 340, 0.42
"""Pixels of the page's width with room beside the timeline, and of the step's width, at most this
share; in a narrower page the step is below, with this share of the height."""


class TimelineTab(QWidget):
    def __init__(self, timeline: Slot, state: StepState) -> None:
        super().__init__()
        self.state = state
        state.hide()
        self._sides = hbox((timeline, 1), state, of=self, spacing=0)

    def show_step(self, step: StepRecord | None) -> None:
        """None: no step is chosen."""
        if step is not None:
            self.state.show_step(step)
        self.state.setVisible(step is not None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        directions, is_wide = QBoxLayout.Direction, self.width() >= BESIDE_FROM
        self._sides.setDirection(directions.LeftToRight if is_wide else directions.TopToBottom)
        if is_wide:
            most = round(STATE_SHARE * self.width())
            self.state.setFixedWidth(min(scaled(STATE_WIDTH), most))
            self.state.setMinimumHeight(0)
            self.state.setMaximumHeight(16_777_215)
        else:
            self.state.setMinimumWidth(0)
            self.state.setMaximumWidth(16_777_215)
            self.state.setFixedHeight(round(STATE_SHARE * self.height()))
