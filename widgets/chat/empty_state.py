"""What a new conversation shows: what answers here, and what one could ask."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
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
        self._grid = QGridLayout()
        self._grid.setSpacing(SPACE_2)
        for number in (0, 1):
            self._grid.setColumnStretch(number, 1)
            self._grid.setColumnMinimumWidth(number, 100)
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
        outer = QGridLayout(content)
        outer.setContentsMargins(SPACE_4, SPACE_8, SPACE_4, SPACE_4)
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
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for number, (title, prompt) in enumerate(suggestions):
            card = SuggestionCard(title, prompt)
            card.chosen.connect(self.chosen)
            self._grid.addWidget(card, number // 2, number % 2)
        self._hint.setVisible(bool(suggestions))

    @property
    def cards(self) -> list[SuggestionCard]:
        items = [self._grid.itemAt(position) for position in range(self._grid.count())]
        widgets = [item.widget() for item in items if item is not None]
        return [widget for widget in widgets if isinstance(widget, SuggestionCard)]


class SuggestionCard(QFrame):
    chosen = Signal(str)

    def __init__(self, title: str, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt
        self.setProperty("panel", True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(f"{title}: {prompt}")
        heading, text = QLabel(title), QLabel(prompt)
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
