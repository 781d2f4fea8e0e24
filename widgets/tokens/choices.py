"""`TokenChoices`: the alternatives at one place of a reply, as bars."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.plot.text import TextPen
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, mono_font, theme, theme_notifier
from widgets.tokens.record import Alternative, TokenRecord, percent, quoted

NONE = -1
_TEXT_WIDTH, _FIGURE_WIDTH, _WRITTEN_WIDTH = 160, 76, 68
"""Pixels at the default text size."""
_WRITTEN = "sampled"


class TokenChoices(QWidget):
    """One row per choice: text, probability bar, figure. `selected(row)`: click or arrow keys;
    `activated(row)`: double click or Enter."""

    selected = Signal(int)
    activated = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = 5
        self._record: TokenRecord | None = None
        self._choices: Sequence[Alternative] = ()
        self.row = NONE
        self._take_fonts()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Alternatives")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self._theme_changed)

    def show_token(self, record: TokenRecord | None) -> None:
        """The choices at the place of `record`; the most probable alternative is selected."""
        self._record = record
        self._choices = record.choices if record is not None else ()
        own = record.token_id if record is not None else None
        others = (row for row, one in enumerate(self._choices) if one.token_id != own)
        self.select(next(others, len(self._choices) - 1))

    def set_num_rows(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.setMinimumHeight(self.sizeHint().height())

    @property
    def choice(self) -> Alternative | None:
        return self._choices[self.row] if self.row != NONE else None

    def select(self, row: int) -> None:
        self.row = row
        texts = [f"{quoted(c.text)} {percent(c.probability)}" for c in self._choices]
        here = f"Selected: {texts[row]}. " if row != NONE else ""
        self.setAccessibleDescription(here + "All: " + ", ".join(texts))
        self.selected.emit(row)
        self.update()

    # Geometry ----------------------------------------------------------------------------------

    def sizeHint(self) -> QSize:
        return QSize(480, max(1, self._num_rows) * self._row_height + 2)

    def minimumSizeHint(self) -> QSize:
        return QSize(240, self.sizeHint().height())

    def row_rect(self, row: int) -> QRectF:
        return QRectF(1, 1 + row * self._row_height, self.width() - 2, self._row_height)

    def row_at(self, y: float) -> int:
        row = int((y - 1) // self._row_height)
        return row if 0 <= row < len(self._choices) else NONE

    # Painting ----------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), theme().color("panel"))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for row, choice in enumerate(self._choices):
            self._paint_row(painter, row, choice)
        painter.end()

    def _paint_row(self, painter: QPainter, row: int, choice: Alternative) -> None:
        table, area = theme(), self.row_rect(row)
        if row == self.row:
            painter.setPen(QPen(table.color("accent"), 1) if self.hasFocus() else Qt.PenStyle.NoPen)
            painter.setBrush(table.color("pressed"))
            painter.drawRoundedRect(area.adjusted(0.5, 0.5, -0.5, -0.5), SPACE_1, SPACE_1)
        inner = area.adjusted(SPACE_2, 0, -SPACE_2, 0)
        painter.setPen(table.color("text"))
        for_text, for_figure = scaled(_TEXT_WIDTH), scaled(_FIGURE_WIDTH)
        text = QRectF(inner.left(), inner.top(), for_text, inner.height())
        pen = self._text.use(painter)
        pen.left(painter, text, pen.elided(quoted(choice.text), for_text - SPACE_2))
        left = inner.left() + for_text
        room = inner.width() - for_text - for_figure - scaled(_WRITTEN_WIDTH)
        bar = QRectF(left, inner.center().y() - 5, max(1.0, room * choice.probability), 10)
        is_written = self._record is not None and choice.token_id == self._record.token_id
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(table.color("tokens_out" if is_written else "other"))
        painter.drawRect(bar)
        pen = self._figure.use(painter)
        painter.setPen(table.color("text"))
        figure = QRectF(left + room, inner.top(), for_figure, inner.height())
        pen.right(painter, figure, percent(choice.probability))
        if is_written:
            painter.setPen(table.color("text_muted"))
            pen.right(painter, inner, _WRITTEN)

    def _take_fonts(self) -> None:
        self._text, self._figure = TextPen(mono_font()), TextPen(figure_font())
        self._row_height = QFontMetrics(figure_font()).height() + SPACE_2

    def _theme_changed(self) -> None:
        self._take_fonts()
        self.updateGeometry()
        self.update()

    # Mouse and keyboard ------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        row = self.row_at(event.position().y())
        if row != NONE:
            self.select(row)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        row = self.row_at(event.position().y())
        if row != NONE:
            self.activated.emit(row)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._choices) - 1
        if event.key() == Qt.Key.Key_Up and last >= 0:
            self.select(max(0, self.row - 1))
        elif event.key() == Qt.Key.Key_Down and last >= 0:
            self.select(min(last, self.row + 1))
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.row != NONE:
            self.activated.emit(self.row)
        else:
            super().keyPressEvent(event)
