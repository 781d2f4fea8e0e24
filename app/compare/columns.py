"""Two answers to a prompt in two columns: what is identical is muted, the first difference is
marked."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QTextBrowser,
    QVBoxLayout,
    QWidget,
)

from app.compare.export import figures, latency_words, pair_words
from app.compare.record import LEFT, RIGHT, Comparison, Pair
from widgets.elided_line import ElidedLine
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, theme, theme_notifier

_EMPTY = "The answer stands here as soon as it is there."
_LINE_HEIGHT = 125


class AnswerColumn(QFrame):
    """One side: what answers, its figures, and its answer to the prompt that is chosen."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self._side = side
        self._pair: Pair | None = None
        self.name = ElidedLine()
        self.name.setAccessibleName("What answers on this side")
        self.values: dict[str, QLabel] = {}
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(SPACE_2)
        self._grid.setVerticalSpacing(1)
        self.text = QTextBrowser()
        self.text.setProperty("bare", True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        where = "left" if side == LEFT else "right"
        self.text.setAccessibleName(f"Answer of the {where} side")
        self.text.setPlaceholderText(_EMPTY)
        self.text.document().setDocumentMargin(0)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addWidget(self.name)
        column.addLayout(self._grid)
        column.addWidget(self.text, 1)
        theme_notifier().changed.connect(self._show_text)

    def show_side(self, name: str, comparison: Comparison | None) -> None:
        """The precision and what was measured of it."""
        self.name.set_text(name)
        for place, row in enumerate(figures(comparison) if comparison is not None else ()):
            self._value(row[0], place).setText(row[1 + self._side])

    def show_pair(self, pair: Pair | None) -> None:
        self._pair = pair
        self._show_text()

    def _value(self, name: str, place: int) -> QLabel:
        if name not in self.values:
            title, value = QLabel(name), QLabel()
            title.setProperty("role", "small")
            value.setFont(figure_font())
            value.setAccessibleName(name)
            self._grid.addWidget(title, 0, place)
            self._grid.addWidget(value, 1, place)
            self._grid.setColumnStretch(place, 1)
            self.values[name] = value
        return self.values[name]

    def _show_text(self) -> None:
        pair, colors = self._pair, theme()
        self.text.clear()
        answer = pair.answers[self._side] if pair is not None else None
        if pair is None or answer is None:
            return
        cursor = QTextCursor(self.text.document())
        spacing = QTextBlockFormat()
        kind = QTextBlockFormat.LineHeightTypes.ProportionalHeight
        spacing.setLineHeight(_LINE_HEIGHT, kind.value)
        cursor.setBlockFormat(spacing)
        same, token, rest = pair.parts(self._side)
        is_compared = pair.both is not None
        cursor.insertText(same, _look("text_muted" if is_compared else "text"))
        if token:
            marked = _look("accent_text")
            marked.setBackground(colors.color("accent"))
            marked.setToolTip(f"The first difference: {token!r}")
            cursor.insertText(token, marked)
        cursor.insertText(rest, _look("text"))
        if answer.problem:
            cursor.insertText(("\n" if answer.text else "") + answer.problem, _look("danger"))


class Columns(QWidget):
    """Both sides, and in a line between them and the prompts where the answers part."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = (AnswerColumn(LEFT), AnswerColumn(RIGHT))
        self.line = ElidedLine("text_muted")
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        for side in self.sides:
            row.addWidget(side, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        column.addWidget(self.line)
        column.addLayout(row, 1)

    def show_comparison(self, names: Sequence[str], comparison: Comparison | None) -> None:
        for side, name in zip(self.sides, names, strict=True):
            side.show_side(name, comparison)

    def show_pair(self, pair: Pair | None) -> None:
        """A prompt's answers; none before one is chosen."""
        words = (pair_words(pair), latency_words(pair)) if pair is not None else ()
        self.line.set_text(" ".join(filter(None, words)))
        for side in self.sides:
            side.show_pair(pair)


def _look(color: str) -> QTextCharFormat:
    made = QTextCharFormat()
    made.setForeground(theme().color(color))
    return made
