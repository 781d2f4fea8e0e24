"""`EmptyState`: the model and suggested prompts of a new chat.

In a low window the cards have one line of their prompt, then their titles alone, three in a row, so
that all fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QEnterEvent, QFocusEvent, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)

from widgets.controls.kept_focus import tab_through
from widgets.controls.layouts import dressed, label, vbox
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.fonts import scaled
from widgets.theme.theme import (
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_8,
    restyle,
    theme_notifier,
)

COLUMN_WIDTH = 640
"""At the default text size."""
_MARGINS, _LOW_MARGINS = (SPACE_8, SPACE_4), (SPACE_2, SPACE_2)  # above and below
_LINES_OF_THREE = 30  # width, in line heights, that fits three titles in a row
_WHOLE_PROMPT = 3  # lines


class Shape(NamedTuple):
    """Lines of the prompt on a card, and cards per row."""

    lines: int
    columns: int


class EmptyState(QScrollArea):
    """`chosen(prompt)`: a suggestion was clicked."""

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__(widgetResizable=True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumHeight(1)  # in a low window the composer comes first
        content = dressed(QWidget(), bare=True)
        self._title, self._text = label(role="figure"), label(role="muted")
        self._text.setWordWrap(True)
        self._hint = label("Try one of these, or type your own.", "small")
        self.cards: list[SuggestionCard] = []
        self.shape = Shape(_WHOLE_PROMPT, 2)
        self._grid = QGridLayout()
        self._grid.setSpacing(SPACE_2)
        inner = QWidget()
        self._inner = inner
        parts = (self._title, self._text, SPACE_4, self._hint, SPACE_1, self._grid)
        self._column = vbox(*parts, of=inner, spacing=SPACE_1)
        self._offer: QWidget | None = None
        self._outer = outer = QGridLayout(content)
        outer.setColumnStretch(0, 1)
        outer.setColumnStretch(1, 1000)
        outer.setColumnStretch(2, 1)
        outer.setRowStretch(0, 2)
        outer.addWidget(inner, 1, 1)
        outer.setRowStretch(2, 3)
        self.setWidget(content)
        self.set_suggestions([])
        theme_notifier().changed.connect(self._follow_text_size)
        self._follow_text_size()

    def _follow_text_size(self) -> None:
        self._inner.setMaximumWidth(scaled(COLUMN_WIDTH))
        self._fit()

    def set_title(self, title: str, text: str) -> None:
        self._title.setText(title)
        self._text.setText(text)
        self._text.setVisible(bool(text))
        self._fit()

    def set_suggestions(self, suggestions: Sequence[tuple[str, str]]) -> None:
        """(title, prompt) of each card."""
        for card in self.cards:
            card.hide()
            card.deleteLater()
        self.cards = [SuggestionCard(title, prompt) for title, prompt in suggestions]
        for card in self.cards:
            card.chosen.connect(self.chosen)
        self._lay_out()

    def add_offer(self, card: QWidget) -> None:
        """A card below the suggestions; whoever made it hides it."""
        self._offer = card
        self._column.addSpacing(SPACE_4)
        self._column.addWidget(card)

    @property
    def is_low(self) -> bool:
        """Whether the prompts do not fit in full."""
        return self.shape.lines < _WHOLE_PROMPT

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        if self._best_shape() != self.shape:
            self._lay_out()

    def _best_shape(self) -> Shape:
        """The first shape that fits, else the last."""
        room = self.viewport().size()
        few = 3 if room.width() >= self.fontMetrics().height() * _LINES_OF_THREE else 2
        shapes = [Shape(_WHOLE_PROMPT, 2), Shape(1, 2), Shape(1, few), Shape(0, few)]
        fitting = (shape for shape in shapes if self._height_of(shape) <= room.height())
        return next(fitting, shapes[-1])

    def _height_of(self, shape: Shape) -> int:
        line = self.fontMetrics().height()
        rows = -(-len(self.cards) // shape.columns)
        card = (1 + shape.lines) * line + 2 * SPACE_2 + SPACE_1 * (shape.lines > 0) + 2
        is_low = shape.lines < _WHOLE_PROMPT
        above, below = _LOW_MARGINS if is_low else _MARGINS
        height = above + below + SPACE_4 + 2 * SPACE_1 + self._title.sizeHint().height()
        if self._text.text():
            width = min(scaled(COLUMN_WIDTH), self.viewport().width() - 2 * SPACE_4)
            height += SPACE_1 + max(line, self._text.heightForWidth(max(1, width)))
        if self._offer is not None and not self._offer.isHidden():
            height += SPACE_4 + self._offer.sizeHint().height()
        if not is_low:
            height += SPACE_1 + self._hint.sizeHint().height()
        return height + rows * card + max(0, rows - 1) * SPACE_2

    def _lay_out(self) -> None:
        self.shape = self._best_shape()
        for number in range(3):
            is_used = number < self.shape.columns
            self._grid.setColumnStretch(number, int(is_used))
            self._grid.setColumnMinimumWidth(number, 100 if is_used else 0)
        for number, card in enumerate(self.cards):
            card.set_lines(self.shape.lines)
            self._grid.addWidget(card, *divmod(number, self.shape.columns))
        offered = [] if self._offer is None else self._offer.findChildren(QPushButton)
        tab_through(self, *self.cards, *offered)
        above, below = _LOW_MARGINS if self.is_low else _MARGINS
        self._outer.setContentsMargins(SPACE_4, above, SPACE_4, below)
        self._hint.setVisible(bool(self.cards) and not self.is_low)


class SuggestionCard(QFrame):
    chosen = Signal(str)

    def __init__(self, title: str, prompt: str) -> None:
        super().__init__()
        self.title, self.prompt = title, prompt
        self.setProperty("panel", True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(f"{title}: {prompt}")
        heading = title_line(title, hugs=False)
        text = QLabel(prompt, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._text = dressed(text, role="muted")
        self._line = ElidedLine("text_muted")
        self._line.set_text(prompt)
        for line in (heading, self._line):
            line.setToolTip("")  # the card's tooltip has both
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        parts = (heading, (self._text, 1, Qt.AlignmentFlag.AlignTop), self._line)
        vbox(*parts, of=self, spacing=SPACE_1, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_2))
        self.set_lines(_WHOLE_PROMPT)

    def set_lines(self, count: int) -> None:
        """Show the whole prompt below the title (None), one line, or none."""
        is_whole = count >= _WHOLE_PROMPT
        self._text.setVisible(is_whole)
        self._line.setVisible(not is_whole and count > 0)
        self.setToolTip("" if is_whole else f"{self.title}\n{self.prompt}")

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.pos()):
            self.chosen.emit(self.prompt)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.chosen.emit(self.prompt)
        else:
            super().keyPressEvent(event)

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self._light(True)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._light(self.hasFocus())

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self._light(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._light(False)

    def _light(self, is_lit: bool) -> None:
        restyle(self, bubble="user" if is_lit else None)
