"""`TimelineView`: a live Gantt chart of the engine's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSignalBlocker, QSize, Qt, Signal
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
from PySide6.QtWidgets import QScrollBar, QWidget

from engine.units import duration_text
from widgets.controls.keys import LocalKeys
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.plot.text import TextPen
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme
from widgets.timeline.history import StepHistory
from widgets.timeline.picture import BARS_HEIGHT, Scene, make_scene
from widgets.timeline.table import steps_table

PITCHES = (2, 3, 4, 6, 8, 12, 16, 24)
"""Zoom levels, in pixels per step."""
_FIRST_PITCH = 8
_LABEL_WIDTH = 132  # at the usual size of text
_MOST_LABEL = 0.3  # of the view's width
_DENSE = 0.78  # of the small text: names of rows that are close together
_CLICK = 3  # pixels: a press that moves less chooses a step


class _Drag(NamedTuple):
    """Where it began, and what was shown."""

    start: QPointF
    end: int
    below: int


class TimelineView(PaintedPlot):
    """Items are steps, by ordinal. `followed(bool)`: whether the newest step stays at the right
    edge; `chosen(ordinal)`: a click or Enter, NONE for no step; `moved`: other steps are shown, or
    the same at another place."""

    preferred = QSize(600, 240)
    least = QSize(_LABEL_WIDTH + 96, 80)
    followed = Signal(bool)
    chosen = Signal(int)
    moved = Signal()

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__("Step timeline", clock=clock, parent=parent)
        self.history = StepHistory()
        self.name: Callable[[str], str] = lambda request_id: request_id[:8]
        self._pinned: int | None = None  # the step after the last one shown, where not the newest
        self.pitch = _FIRST_PITCH
        self.chosen_index = NONE
        self._drag: _Drag | None = None
        self._scene: Scene | None = None
        self._below = 0  # requests below the last row; 0: the newest ones are seen
        self.bar = QScrollBar(Qt.Orientation.Vertical, self)
        self.bar.setAccessibleName("Requests")
        self.bar.hide()
        self.bar.valueChanged.connect(self._scroll_rows)
        LocalKeys(self, {"Esc": lambda: self.choose(NONE)}, lambda: self.chosen_index != NONE)
        self._make_pens()

    def text_font(self) -> QFont:
        return figure_font("small")

    def _make_pens(self) -> None:
        dense = figure_font("small")
        dense.setPointSizeF(_DENSE * dense.pointSizeF())
        self._dense_pen = TextPen(dense)

    def apply_theme(self) -> None:
        self._make_pens()
        super().apply_theme()

    @property
    def row_heights(self) -> tuple[int, ...]:
        """Pixels of a row: airy, close, and as close as names can be read."""
        line, dense = self.line_height, self._dense_pen.metrics
        return round(line) + 4, round(line), round(dense.ascent() + 0.25 * dense.descent())

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
        """New steps arrived. Cheap: drawn by the clock. A step that leaves the view is not pointed
        at any more."""
        oldest = self.history.first
        if self.follows:
            oldest = max(oldest, self.end - self.num_columns)
        if self.pointed_index != NONE and self.pointed_index < oldest:
            self.point_at(NONE)
        if self.chosen_index != NONE and self.chosen_index < self.history.first:
            self.choose(NONE)
        self.request_redraw()

    def clear(self) -> None:
        self.history.clear()
        self.follow()
        self.point_at(NONE)
        self.choose(NONE)
        self._below = 0
        self.redraw()

    def choose(self, ordinal: int) -> None:
        """Mark a step; NONE for none."""
        if ordinal != self.chosen_index:
            self.chosen_index = ordinal
            self.update()
            self.chosen.emit(ordinal)

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
            self._scene = self._make_scene(start, end)
        self._show_bar()
        super().redraw()
        self.moved.emit()

    def _make_scene(self, start: int, end: int) -> Scene:
        room = self._cells_rect().height()
        made = make_scene(
            self.history, start, end, self.pitch, room, self.row_heights, self._below
        )
        self._below = made.num_below
        return made

    def _show_bar(self) -> None:
        """A scroll bar, where there is no room for every request."""
        scene = self._scene
        hidden = scene.num_above + scene.num_below if scene is not None else 0
        with QSignalBlocker(self.bar):
            self.bar.setRange(0, hidden)
            self.bar.setPageStep(len(scene.numbers) if scene is not None else 1)
            self.bar.setValue(hidden - (scene.num_below if scene is not None else 0))
        self.bar.setVisible(hidden > 0)
        self.bar.setToolTip(f"{hidden:,} more requests")

    def _scroll_rows(self, value: int) -> None:
        self._below = self.bar.maximum() - value
        self.redraw()

    @property
    def scene(self) -> Scene | None:
        """What is drawn; None without steps."""
        return self._scene

    def paint(self, painter: QPainter) -> None:
        if self._scene is not None:
            self._paint_scene(painter, self._scene)

    def _paint_scene(self, painter: QPainter, scene: Scene) -> None:
        area, table = self._cells_rect(), theme()
        left, right = self.left(scene), self.label_width - SPACE_2
        painter.drawImage(left, area.top(), scene.cells)
        self._paint_spans(painter, scene, left)
        self.pen.use(painter)
        painter.setPen(table.color("text_muted"))
        bars_top = self.height() - BARS_HEIGHT
        painter.drawImage(left, bars_top, scene.bars)
        longest = duration_text(scene.longest)
        words = [f"max step {longest}", f"max {longest}", longest]
        fitting = [text for text in words if self.pen.width(text) <= right] or words[-1:]
        self.pen.right(painter, QRectF(0, bars_top, right, BARS_HEIGHT), fitting[0])
        self._paint_names(painter, scene, right)
        for ordinal, width in ((self.chosen_index, 2), (self.pointed_index, 1)):
            if scene.start <= ordinal < scene.end:
                x = left + (ordinal - scene.start) * self.pitch
                painter.setPen(QPen(table.color("accent"), width))
                painter.drawRect(QRect(x - 1, 0, max(2, self.pitch), self.height() - 1))

    def _paint_names(self, painter: QPainter, scene: Scene, width: int) -> None:
        is_dense = scene.row_height < round(self.line_height)
        pen = (self._dense_pen if is_dense else self.pen).use(painter)
        painter.setPen(theme().color("text"))
        for row, number in enumerate(scene.numbers):
            place = QRectF(0, row * scene.row_height, width, scene.row_height)
            if place.bottom() > self.height() - BARS_HEIGHT:
                break  # no room for one row: it would lie over the text below
            name = self.name(self.history.request_id(number))
            pen.right(painter, place, pen.elided(name, width))

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
        left, height = self.label_width, self.height() - BARS_HEIGHT - SPACE_1
        # room for the scroll bar, whether it is seen or not: columns keep their place
        width = self.width() - left - self.bar.sizeHint().width()
        return QRect(left, 0, max(0, width), max(0, height))

    @property
    def label_width(self) -> int:
        """Bounded, so that steps keep most of a narrow view."""
        return min(scaled(_LABEL_WIDTH), int(_MOST_LABEL * self.width()))

    def left(self, scene: Scene) -> int:
        """x of the first step: the newest one ends at the right edge."""
        area = self._cells_rect()
        return area.left() + area.width() - (scene.end - scene.start) * self.pitch

    def item_at(self, position: QPointF) -> int:
        if self._scene is None:
            return NONE
        column = int((position.x() - self.left(self._scene)) // self.pitch)
        ordinal = self._scene.start + column
        return ordinal if self._scene.start <= ordinal < self._scene.end else NONE

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        width, height = self.bar.sizeHint().width(), self._cells_rect().height()
        self.bar.setGeometry(self.width() - width, 0, width, height)
        self.redraw()

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._drag is not None:
            moved = event.position() - self._drag.start
            rows = round(moved.y() / self._scene.row_height) if self._scene else 0
            self._below = max(0, self._drag.below + rows)
            self.show_until(self._drag.end - round(moved.x() / self.pitch))
        super().mouseMoveEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        """Also with the focus: a click gives it, and the chosen step is what stays."""
        super().leaveEvent(event)
        self.point_at(NONE)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton:
            self._drag = _Drag(event.position(), self.end, self._below)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        drag, self._drag = self._drag, None
        if drag is not None and (event.position() - drag.start).manhattanLength() < _CLICK:
            self.choose(self.item_at(event.position()))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.follow()

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        notches = (delta.y() or delta.x()) / 120
        if event.position().x() < self.label_width and self.bar.maximum():
            self.bar.setValue(self.bar.value() - round(3 * notches))
        elif event.modifiers() & Qt.KeyboardModifier.ControlModifier:
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
        elif key in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            self.bar.setValue(self.bar.value() + (-1 if key == Qt.Key.Key_Up else 1))
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.choose(self.pointed_index)
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
