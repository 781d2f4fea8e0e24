"""What a new conversation shows: what answers here, and what one could ask.

Where the room is low the cards are their titles alone, three in a row, so that all are seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QLabel,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from widgets.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_8, restyle

COLUMN_WIDTH = 640
_LINES_AROUND, _LINES_OF_ROW = 6, 5  # lines of text that title and margins take, and a row of cards
_LINES_OF_THREE = 30  # as wide as so many lines are high: room for three titles in a row


class EmptyState(QScrollArea):
    """`chosen(prompt)` when a suggestion is taken."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        content = QWidget()
        content.setProperty("bare", True)
        self._title, self._text = QLabel(), QLabel()
        self._title.setProperty("role", "figure")
        self._text.setProperty("role", "muted")
        self._text.setWordWrap(True)
        self._hint = QLabel("Try one of these, or write your own.")
        self._hint.setProperty("role", "small")
        self.cards: list[SuggestionCard] = []
        self.is_low, self._columns = False, 2
        self._grid = QGridLayout()
        self._grid.setSpacing(SPACE_2)
        inner = QWidget()
        inner.setMaximumWidth(COLUMN_WIDTH)
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        column.addWidget(self._title)
        column.addWidget(self._text)
        column.addSpacing(SPACE_4)
        column.addWidget(self._hint)
        column.addSpacing(SPACE_1)
        column.addLayout(self._grid)
        self._outer = outer = QGridLayout(content)
        outer.setColumnStretch(0, 1)
        outer.setColumnStretch(1, 1000)
        outer.setColumnStretch(2, 1)
        outer.setRowStretch(0, 2)
        outer.addWidget(inner, 1, 1)
        outer.setRowStretch(2, 3)
        self.setWidget(content)
        self.set_suggestions([])

    def set_title(self, title: str, text: str) -> None:
        self._title.setText(title)
        self._text.setText(text)
        self._text.setVisible(bool(text))

    def set_suggestions(self, suggestions: Sequence[tuple[str, str]]) -> None:
        """(title, prompt) of each card."""
        for card in self.cards:
            self._grid.removeWidget(card)
            card.hide()
            card.deleteLater()
        self.cards = [SuggestionCard(title, prompt) for title, prompt in suggestions]
        for card in self.cards:
            card.chosen.connect(self.chosen)
        self._lay_out()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._shape() != (self.is_low, self._columns):
            self._lay_out()

    def _shape(self) -> tuple[bool, int]:
        """Whether the room is low, and the cards of a row."""
        line, room = self.fontMetrics().height(), self.viewport().size()
        rows = -(-len(self.cards) // 2)
        is_low = room.height() < line * (_LINES_AROUND + _LINES_OF_ROW * rows)
        return is_low, 3 if is_low and room.width() >= line * _LINES_OF_THREE else 2

    def _lay_out(self) -> None:
        self.is_low, self._columns = self._shape()
        for number in range(3):
            is_used = number < self._columns
            self._grid.setColumnStretch(number, int(is_used))
            self._grid.setColumnMinimumWidth(number, 100 if is_used else 0)
        for number, card in enumerate(self.cards):
            card.set_low(self.is_low)
            self._grid.addWidget(card, *divmod(number, self._columns))
        above, below = (SPACE_2, SPACE_2) if self.is_low else (SPACE_8, SPACE_4)
        self._outer.setContentsMargins(SPACE_4, above, SPACE_4, below)
        self._hint.setVisible(bool(self.cards) and not self.is_low)


class SuggestionCard(QFrame):
    chosen = Signal(str)

    def __init__(self, title: str, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt
        self.setProperty("panel", True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(f"{title}: {prompt}")
        heading, self._text = QLabel(title), QLabel(prompt)
        text = self._text
        heading.setProperty("role", "title")
        text.setProperty("role", "muted")
        text.setTextFormat(Qt.TextFormat.PlainText)
        text.setWordWrap(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addWidget(heading)
        column.addWidget(text, 1, Qt.AlignmentFlag.AlignTop)

    def set_low(self, is_low: bool) -> None:
        """The title alone, or with the prompt."""
        self._text.setVisible(not is_low)
        self.setToolTip(self.prompt if is_low else "")

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.pos()):
            self.chosen.emit(self.prompt)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.chosen.emit(self.prompt)
        else:
            super().keyPressEvent(event)

    def event(self, event: QEvent) -> bool:
        lit = {QEvent.Type.Enter, QEvent.Type.FocusIn}
        if event.type() in lit | {QEvent.Type.Leave, QEvent.Type.FocusOut}:
            is_lit = event.type() in lit or self.hasFocus()
            restyle(self, bubble="user" if is_lit else None)
        return super().event(event)
