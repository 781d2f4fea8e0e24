"""`TimelineView`: a live Gantt chart of the engine's steps."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from engine.units import duration_text
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, theme, ui_font
from widgets.timeline.history import StepHistory
from widgets.timeline.picture import BARS_HEIGHT, Scene, make_scene
from widgets.timeline.table import steps_table

PITCHES = (2, 3, 4, 6, 8, 12, 16, 24)
"""Zoom levels, in pixels per step."""
_FIRST_PITCH = 8
_LABEL_WIDTH = 132  # at the usual size of text, as the next two
_LABELS_FROM = 10  # pixels of a row in which a name can be read
_ABOVE_HEIGHT = 14  # of the line that counts requests without a row
_MOST_LABEL = 0.45  # of the view's width


class TimelineView(PaintedPlot):
    """Items are steps, by ordinal. `followed(bool)`: whether the newest step stays at the right
    edge."""

    preferred = QSize(600, 240)
    least = QSize(_LABEL_WIDTH + 96, 80)
    followed = Signal(bool)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__("Step timeline", clock=clock, parent=parent)
        self.history = StepHistory()
        self.name: Callable[[str], str] = lambda request_id: request_id[:8]
        self._pinned: int | None = None  # the step after the last one shown, where not the newest
        self.pitch = _FIRST_PITCH
        self._drag: tuple[float, int] | None = None
        self._scene: Scene | None = None

    def text_font(self) -> QFont:
        return ui_font("small")

    # What is shown -----------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        return self._pinned is None

    @property
    def end(self) -> int:
        """Ordinal after the last visible step."""
        if self._pinned is None:
            return self.history.end
        least = self.history.first + min(self.num_columns, self.history.end - self.history.first)
        return min(max(self._pinned, least), self.history.end)

    @property
    def num_columns(self) -> int:
        return max(1, self._cells_rect().width() // self.pitch)

    def values_table(self) -> ValuesTable:
        start = max(self.history.first, self.end - self.num_columns)
        return steps_table(self.history, start, self.end, self.name)

    def changed(self) -> None:
        """New steps arrived. Cheap: drawn by the clock."""
        if self.pointed_index != NONE and self.pointed_index < self.history.first:
            self.point_at(NONE)
        self.request_redraw()

    def clear(self) -> None:
        self.history.clear()
        self.follow()
        self.point_at(NONE)
        self.redraw()

    def follow(self) -> None:
        self._pin(None)

    def show_until(self, end: int) -> None:
        """Pause with step `end - 1` at the right edge; at the newest, follow."""
        self._pin(None if end >= self.history.end else end)

    def pause(self) -> None:
        self._pin(self.end)

    def _pin(self, end: int | None) -> None:
        was = self.follows
        self._pinned = end
        if was != self.follows:
            self.followed.emit(self.follows)
        self.redraw()

    def zoom(self, steps: int) -> None:
        """More (+) or less (-) pixels per step."""
        place = PITCHES.index(self.pitch) + steps
        self.pitch = PITCHES[min(max(place, 0), len(PITCHES) - 1)]
        self.redraw()

    # Drawing -----------------------------------------------------------------------------------

    def redraw(self) -> None:
        end = self.end
        start = max(self.history.first, end - self.num_columns)
        self._scene = None
        if end > start:
            room = self._cells_rect().height()
            self._scene = make_scene(self.history, start, end, self.pitch, room)
        super().redraw()

    def paint(self, painter: QPainter) -> None:
        if self._scene is not None:
            self._paint_scene(painter, self._scene)

    def _paint_scene(self, painter: QPainter, scene: Scene) -> None:
        area, table = self._cells_rect(), theme()
        left = self._left(scene)
        painter.drawImage(left, area.top(), scene.cells)
        self._paint_spans(painter, scene, left)
        self.pen.use(painter)
        painter.setPen(table.color("text_muted"))
        bars_top = self.height() - BARS_HEIGHT
        painter.drawImage(left, bars_top, scene.bars)
        beside = max(bars_top, area.top())  # of a low panel: below what may stand above
        scale = QRectF(0, beside, self._label_width - SPACE_2, self.height() - beside)
        self.pen.right(painter, scale, f"max step {duration_text(scene.longest)}")
        if scene.num_above:
            above = QRectF(0, 0, self._label_width - SPACE_2, area.top())
            self.pen.right(painter, above, f"{scene.num_above:,} more above")
        if scene.row_height >= scaled(_LABELS_FROM):
            painter.setPen(table.color("text"))
            for row, number in enumerate(scene.numbers):
                top = area.top() + row * scene.row_height
                place = QRectF(0, top, self._label_width - SPACE_2, scene.row_height)
                name = self.name(self.history.request_id(number))
                self.pen.right(painter, place, self.pen.elided(name, place.width()))
        if scene.start <= self.pointed_index < scene.end:
            x = left + (self.pointed_index - scene.start) * self.pitch
            painter.setPen(QPen(table.color("accent"), 1))
            width = max(1, self.pitch - 1)
            painter.drawRect(QRect(x - 1, area.top(), width + 1, self.height() - area.top() - 1))

    def _paint_spans(self, painter: QPainter, scene: Scene, left: int) -> None:
        """Waiting requests as thin lines."""
        table, top = theme(), self._cells_rect().top()
        rows = {number: row for row, number in enumerate(scene.numbers)}
        for span in scene.spans:
            row = rows.get(span.number)
            end = scene.end if span.end is None else min(span.end, scene.end)
            if row is None or end <= span.start:
                continue
            y = top + (row + 0.5) * scene.row_height
            x0 = left + (max(span.start, scene.start) - scene.start) * self.pitch
            x1 = left + (end - scene.start) * self.pitch - 1
            color = table.line_color("preempted" if span.is_preempted else "queued")
            painter.setPen(QPen(QColor(color), 2))
            painter.drawLine(QPointF(x0, y), QPointF(x1, y))

    # Geometry ----------------------------------------------------------------------------------

    def _cells_rect(self) -> QRect:
        has_more = self._scene is not None and self._scene.num_above
        top = scaled(_ABOVE_HEIGHT) if has_more else 0
        height = self.height() - top - BARS_HEIGHT - SPACE_1
        left = self._label_width
        return QRect(left, top, max(0, self.width() - left), max(0, height))

    @property
    def _label_width(self) -> int:
        """Bounded, so that steps keep most of a narrow view."""
        return min(scaled(_LABEL_WIDTH), int(_MOST_LABEL * self.width()))

    def _left(self, scene: Scene) -> int:
        """x of the first step: the newest one ends at the right edge."""
        area = self._cells_rect()
        return area.left() + area.width() - (scene.end - scene.start) * self.pitch

    def item_at(self, position: QPointF) -> int:
        if self._scene is None:
            return NONE
        column = int((position.x() - self._left(self._scene)) // self.pitch)
        ordinal = self._scene.start + column
        return ordinal if self._scene.start <= ordinal < self._scene.end else NONE

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.redraw()

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._drag is not None:
            start, end = self._drag
            self.show_until(end - round((event.position().x() - start) / self.pitch))
        super().mouseMoveEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton:
            self._drag = (event.position().x(), self.end)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        self._drag = None

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.follow()

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        notches = (delta.y() or delta.x()) / 120
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.zoom(1 if notches > 0 else -1)
        else:
            self.show_until(self.end - round(notches * max(1, self.num_columns // 8)))
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        page = self.num_columns
        if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._step_cursor(-1 if key == Qt.Key.Key_Left else 1)
        elif key in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown):
            self.show_until(self.end + (-page if key == Qt.Key.Key_PageUp else page))
        elif key == Qt.Key.Key_Home:
            self.show_until(self.history.first + page)
        elif key == Qt.Key.Key_End:
            self.follow()
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Minus):
            self.zoom(-1 if key == Qt.Key.Key_Minus else 1)
        else:
            super().keyPressEvent(event)

    def _step_cursor(self, step: int) -> None:
        """Move the cursor; pause, and scroll if it leaves the view."""
        if self.history.end == self.history.first:
            return
        start = self.end if self.pointed_index == NONE else self.pointed_index
        target = min(max(start + step, self.history.first), self.history.end - 1)
        self.pause()
        shown_from = self.end - self.num_columns
        if target >= self.end:
            self._pin(target + 1)
        elif target < shown_from:
            self._pin(target + self.num_columns)
        self.point_at(target)
