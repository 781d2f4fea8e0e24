"""`Waterfall`: what each step adds to the ones before it.

    users |            24
          |      12   [++]     grey: what the step below had
          |  6  [++]  [  ]     coloured: what it adds, or takes away; amber: noise
          | [ ] [  ]  [  ]     hatched: left out
          +-naive-cont.-paged
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QBrush, QMouseEvent, QPainter, QPen

from engine.units import number
from widgets.plot.axis import Range, labelled_ticks, range_for
from widgets.plot.painted import NONE, PaintedPlot, paint_value_axis
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme

_TICKS = 30
_BAR = 0.62  # of the room of a step
_MOST_BAR = 96.0  # pixels
_LEAST = 4.0  # users: below it the ticks would have fractions


class Fall(NamedTuple):
    """`value`: None where it was not measured, for which `note` is shown. `below`: of the step that
    it adds to; None for the first one. `is_clear`: the difference is more than noise."""

    label: str
    value: float | None
    below: float | None = None
    is_kept: bool = True
    note: str = ""
    is_clear: bool = True


class Waterfall(PaintedPlot):
    """`chosen(index)`: a step was clicked, or pointed at with the arrow keys."""

    chosen = Signal(int)
    empty_text = "Run a ladder to see the gain of each technique."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.steps: tuple[Fall, ...] = ()
        self._unit = ""
        self.pointed.connect(self._on_pointed)

    def show_steps(self, steps: Sequence[Fall], unit: str) -> None:
        """`unit`: of the values, as the title of their axis."""
        self.steps, self._unit = tuple(steps), unit
        self.pointed_index = min(self.pointed_index, len(self.steps) - 1)
        self.request_redraw()

    @property
    def is_empty(self) -> bool:
        return not self.steps

    @property
    def num_items(self) -> int:
        return len(self.steps)

    def values_table(self) -> ValuesTable:
        rows = tuple((step.label, step.value, step.below) for step in self.steps)
        return ValuesTable(("", self._unit, "Below"), rows, (0, 0, 0))

    # Geometry -----------------------------------------------------------------------------------

    @property
    def y_range(self) -> Range:
        tops = [value for step in self.steps for value in (step.value, step.below)]
        most = max([top for top in tops if top is not None], default=1.0)
        return range_for(0.0, max(most, _LEAST), None, from_zero=True)

    @property
    def plot_rect(self) -> QRectF:
        line = self.line_height
        left = 4 * self.pen.metrics.horizontalAdvance("0") + SPACE_2
        area = QRectF(self.rect()).adjusted(left, 2 * line, -SPACE_3, -2 * line - 2 * SPACE_1)
        return area if area.height() > 1 else QRectF(left, 0, max(area.width(), 1), 1)

    def room(self, index: int) -> QRectF:
        """The column of a step, its label included."""
        plot = self.plot_rect
        width = plot.width() / max(1, len(self.steps))
        return QRectF(plot.left() + index * width, 0, width, self.height())

    def to_y(self, value: float) -> float:
        return self.plot_rect.bottom() - self.y_range.share(value) * self.plot_rect.height()

    def item_at(self, position: QPointF) -> int:
        found = [i for i in range(len(self.steps)) if self.room(i).contains(position)]
        return found[0] if found else NONE

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        self._choose(self.item_at(event.position()))

    def _on_pointed(self, index: int) -> None:
        if self.hasFocus():
            self._choose(index)

    def _choose(self, index: int) -> None:
        if index != NONE:
            self.chosen.emit(index)

    # Painting -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        plot, shown, table = self.plot_rect, self.y_range, theme()
        if any(step.value is not None for step in self.steps):  # else it has no scale yet
            marks = labelled_ticks(shown, plot.height(), max(_TICKS, 2 * self.line_height))
            whole = [mark for mark in marks if mark[0].is_integer()]  # no half users
            paint_value_axis(painter, plot, shown, whole, self.pen.font)
        self.pen.use(painter)
        painter.setPen(table.color("text_muted"))
        painter.drawText(QPointF(0, self.pen.metrics.ascent()), self._unit)
        for index, step in enumerate(self.steps):
            self._paint_step(painter, step, self.room(index), index == self.pointed_index)

    def _paint_step(
        self, painter: QPainter, step: Fall, room: QRectF, is_pointed: bool
    ) -> None:
        table, plot = theme(), self.plot_rect
        if is_pointed:
            area = QRectF(room.left(), plot.top(), room.width(), plot.height())
            painter.fillRect(area, table.color("raised"))
        width = min(_BAR * room.width(), _MOST_BAR)
        left = room.center().x() - width / 2
        center = Qt.AlignmentFlag.AlignHCenter
        if step.value is not None:
            below = 0.0 if step.below is None else step.below
            low, high = sorted((step.value, below))
            gains = step.value >= below
            color = "accent" if step.below is None else "success" if gains else "danger"
            color = color if step.is_clear else "warning"
            if step.below is not None:
                self._bar(painter, left, width, 0.0, low, QBrush(table.color("axis")))
            style = Qt.BrushStyle.SolidPattern if step.is_kept else Qt.BrushStyle.BDiagPattern
            self._bar(painter, left, width, low, high, QBrush(table.color(color), style))
            if low == high:  # it adds nothing: a line
                painter.setPen(QPen(table.color("text_muted"), 2))
                y = self.to_y(high)
                painter.drawLine(QPointF(left, y), QPointF(left + width, y))
            painter.setPen(table.color("text"))
            top = self.to_y(high) - self.line_height - SPACE_1
            place = QRectF(room.left(), top, room.width(), self.line_height)
            painter.drawText(place, center, number(step.value))
        else:
            painter.setPen(table.color("text_muted"))
            top = plot.bottom() - self.line_height - SPACE_1
            place = QRectF(room.left(), top, room.width(), self.line_height)
            painter.drawText(place, center, step.note)
        painter.setPen(table.color("text" if step.is_kept and step.value is not None
                                   else "text_muted"))  # fmt: skip
        below_axis = QRectF(room.left() + 2, plot.bottom() + SPACE_1, room.width() - 4,
                            2 * self.line_height)  # fmt: skip
        painter.drawText(below_axis, center | Qt.TextFlag.TextWordWrap, step.label)

    def _bar(
        self, painter: QPainter, left: float, width: float, low: float, high: float, brush: QBrush
    ) -> None:
        top = self.to_y(high)
        painter.fillRect(QRectF(left, top, width, self.to_y(low) - top), brush)
