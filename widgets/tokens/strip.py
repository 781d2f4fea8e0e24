"""`TokenStrip`: the tokens of a reply in rows, coloured.

row 0   | The | quick | br | own |
row 1   | fox | ↵ |                  a token that breaks the line is the last of its row
row 2   | ...
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QFont,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, mono_font, theme, theme_notifier
from widgets.tokens.paint import PAINTS, PaintBy
from widgets.tokens.record import Origin, TokenRecord, shown, token_text


class Place(NamedTuple):
    """Place of a token: its row, left edge and width in pixels."""

    row: int
    left: float
    width: float


def flow(widths: Sequence[float], breaks: Sequence[bool], room: float) -> list[Place]:
    """Places of all tokens in rows of `room` pixels; a wider token gets a whole row. `breaks`:
    tokens that end a row."""
    places: list[Place] = []
    row, left = 0, 0.0
    for width, ends_row in zip(widths, breaks, strict=True):
        width = min(width, room)
        if left and left + width > room:
            row, left = row + 1, 0.0
        places.append(Place(row, left, width))
        left += width
        if ends_row:
            row, left = row + 1, 0.0
    return places


NONE = -1
_PAD = 4  # around all tokens, for the frame of the focus
_GAP = 1  # between two backgrounds
_MOST_SHAPED = 4096


class TokenStrip(QWidget):
    """`pointed(index)`: the token under the mouse or the keyboard cursor. A click pins it until
    another click."""

    pointed = Signal(int)
    moved = Signal(QRect)  # of the token that the keyboard moved to
    activated = Signal()  # Enter, on a token

    def __init__(self) -> None:
        super().__init__()
        self.records: Sequence[TokenRecord] = ()
        self._places: list[Place] = []
        self._sizes: tuple[list[float], list[bool]] = ([], [])
        self._by_width: dict[int, list[Place]] = {}
        self._paint_by = PAINTS[0]
        self.pointed_token = NONE
        self.is_held = False
        self._take_font()
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Reply tokens")
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        theme_notifier().changed.connect(self._theme_changed)

    # Content -----------------------------------------------------------------------------------

    def show_tokens(self, records: Sequence[TokenRecord]) -> None:
        """Show another reply; the least probable token is selected."""
        self.records, self.is_held = records, False
        self._measure()
        self._arrange()
        self.pointed_token = NONE
        if records:
            self.point_at(min(range(len(records)), key=lambda i: records[i].logprob))

    def paint_by(self, paint: PaintBy) -> None:
        has_changed = paint.shows_rejected != self._paint_by.shows_rejected
        self._paint_by = paint
        if has_changed:
            self._measure()
        self._arrange()

    def point_at(self, index: int) -> None:
        if index != self.pointed_token:
            self._update_token(self.pointed_token)
            self._update_token(index)
            self.pointed_token = index
            words = token_text(self.records, index) if index != NONE else ""
            self.setAccessibleDescription(words)
            self.pointed.emit(index)

    # Geometry ----------------------------------------------------------------------------------

    def rect_of(self, index: int) -> QRectF:
        place = self._places[index]
        top = _PAD + place.row * self._row_height
        return QRectF(_PAD + place.left, top, place.width, self._row_height)

    def token_at(self, point: QPointF) -> int:
        row = int((point.y() - _PAD) // self._row_height)
        hits = (i for i in self._in_rows(row, row) if self.rect_of(i).contains(point))
        return next(hits, NONE)

    def _in_rows(self, first: int, last: int) -> range:
        row_of = lambda place: place.row
        start = bisect_left(self._places, first, key=row_of)
        return range(start, bisect_right(self._places, last, key=row_of))

    def heightForWidth(self, width: int) -> int:
        return self._height(self._flowed(width))

    def sizeHint(self) -> QSize:
        return QSize(480, self._height(self._places))

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self._row_height + 2 * _PAD)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _measure(self) -> None:
        advance = QFontMetricsF(self._pen.font).horizontalAdvance
        character = advance("m")  # of a fixed-width font: only other scripts are measured
        texts = [shown(record.text) for record in self.records]
        widths = [len(t) * character if t.isascii() else advance(t) for t in texts]
        for i, record in enumerate(self.records):
            if before := self._struck(record):
                widths[i] += advance(before)
        breaks = [record.text.endswith("\n") for record in self.records]
        self._sizes = ([width + _GAP + 2 for width in widths], breaks)
        self._by_width.clear()

    def _flowed(self, width: int) -> list[Place]:
        """The places at `width` pixels, cached: layouts ask for the same widths repeatedly."""
        if width not in self._by_width:
            self._by_width[width] = flow(*self._sizes, max(1, width - 2 * _PAD))
        return self._by_width[width]

    def _arrange(self) -> None:
        self._places = self._flowed(self.width())
        self.updateGeometry()
        self.update()

    def _update_token(self, index: int) -> None:
        if 0 <= index < len(self._places):
            self.update(self.rect_of(index).toAlignedRect().adjusted(-2, -2, 2, 2))

    def _height(self, places: list[Place]) -> int:
        rows = places[-1].row + 1 if places else 1
        return rows * self._row_height + 2 * _PAD

    # Painting ----------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self._pen.use(painter)
        area = event.rect()
        painter.fillRect(area, theme().color("panel"))
        top = (area.top() - _PAD) // self._row_height
        bottom = (area.bottom() - _PAD) // self._row_height
        for index in self._in_rows(top, bottom):
            self._paint_token(painter, index)
        if self.hasFocus():
            painter.setPen(QPen(theme().color("accent"), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))
        painter.end()

    def _paint_token(self, painter: QPainter, index: int) -> None:
        record, table = self.records[index], theme()
        area = self.rect_of(index).adjusted(0, 1, -_GAP, -1)
        background = self._paint_by.background(record, table)
        if background is not None:
            painter.fillRect(area, background)
        place = area.adjusted(1, 0, 0, 0)
        before = self._struck(record)
        if before:
            place = self._paint_struck(painter, place, before)
        painter.setPen(table.color("text"))
        self._pen.left(painter, place, self._pen.elided(shown(record.text), place.width()))
        if record.is_unlikely:  # also visible without colours
            below = QRectF(area.left(), area.bottom() - 2, area.width(), 2)
            painter.fillRect(below, table.line_color("preempted"))
        if record.origin is Origin.CHOSEN:
            self._frame(painter, area, "text_muted", Qt.PenStyle.DashLine)
        if index == self.pointed_token:
            self._frame(painter, area, "accent" if self.is_held else "text", Qt.PenStyle.SolidLine)

    def _struck(self, record: TokenRecord) -> str:
        """Rejected drafts before a token, where shown."""
        if not self._paint_by.shows_rejected:
            return ""
        return "".join(shown(text) for text in record.rejected)

    def _paint_struck(self, painter: QPainter, area: QRectF, text: str) -> QRectF:
        """Paint rejected drafts at the left of `area`; returns the rest of it."""
        painter.setPen(theme().color("text_muted"))
        text = self._pen.elided(text, area.width())
        self._pen.left(painter, area, text)
        width = self._pen.width(text)
        middle = round(area.center().y()) + 1.5
        painter.drawLine(QPointF(area.left(), middle), QPointF(area.left() + width, middle))
        return area.adjusted(width, 0, 0, 0)

    def _frame(self, painter: QPainter, area: QRectF, color: str, style: Qt.PenStyle) -> None:
        painter.setPen(QPen(theme().color(color), 1, style))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(area.adjusted(-0.5, -0.5, 0.5, 0.5))

    def _take_font(self) -> None:
        font = mono_font()
        font.setFeature(QFont.Tag("calt"), 0)  # signs of code stay what they are
        self._pen = TextPen(font, _MOST_SHAPED)
        self._row_height = self.fontMetrics().height() + 2 * SPACE_1

    def _theme_changed(self) -> None:
        self._take_font()
        self._measure()
        self._arrange()

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self.token_at(event.position())
        if index != NONE and not self.is_held:  # beside the tokens nothing changes
            self.point_at(index)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.token_at(event.position())
        self.is_held = index != NONE and not (self.is_held and index == self.pointed_token)
        if index != NONE:
            self.point_at(index)
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        target = self._target(Qt.Key(event.key()), event.modifiers())
        if target != NONE:
            self.is_held = True
            self.point_at(target)
            self.moved.emit(self.rect_of(target).toAlignedRect())
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.pointed_token != NONE:
            self.is_held = True
            self.activated.emit()
        else:
            super().keyPressEvent(event)

    def _target(self, key: Qt.Key, modifiers: Qt.KeyboardModifier) -> int:
        """The token that a key moves to, or NONE."""
        here, last = self.pointed_token, len(self.records) - 1
        if last < 0:
            return NONE
        if modifiers & Qt.KeyboardModifier.ControlModifier:
            unlikely = [i for i, record in enumerate(self.records) if record.is_unlikely]
            if key == Qt.Key.Key_Left:
                return max((i for i in unlikely if i < here), default=here)
            if key == Qt.Key.Key_Right:
                return min((i for i in unlikely if i > here), default=here)
        match key:
            case Qt.Key.Key_Left:
                return max(0, here - 1)
            case Qt.Key.Key_Right:
                return min(last, here + 1)
            case Qt.Key.Key_Home:
                return 0
            case Qt.Key.Key_End:
                return last
            case Qt.Key.Key_Up | Qt.Key.Key_Down if here != NONE:
                down = self._row_height if key == Qt.Key.Key_Down else -self._row_height
                return self._nearest(self.rect_of(here).center() + QPointF(0, down), here)
        return NONE

    def _nearest(self, point: QPointF, here: int) -> int:
        """The token of the row at `point` nearest to it; `here` outside all rows."""
        row = int((point.y() - _PAD) // self._row_height)
        tokens = self._in_rows(row, row)
        if point.y() < _PAD or not tokens:
            return here
        return min(tokens, key=lambda i: abs(self.rect_of(i).center().x() - point.x()))
