"""Two answers to a prompt in two columns: what is identical is muted, the first difference is
marked."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QTextBrowser,
    QVBoxLayout,
    QWidget,
)

from app.features.compare.export import figures, latency_words, pair_words
from app.features.compare.record import LEFT, RIGHT, Comparison, Pair
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import FittedColumns
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, theme, theme_notifier

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


_COLUMNS = ("Prompt", "Identical", "Left goes on", "Right goes on")
_GOES_ON_WIDTH = 150
_EXCERPT = 40


class PromptTable(QTableWidget):
    """`chosen(row)`: the prompt whose answers are to be shown."""

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self.setAccessibleName("Prompts and where the answers part")
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setProperty("padded", True)  # the cells begin where their headings do
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        FittedColumns(header, _widths)
        self.itemSelectionChanged.connect(self._on_selection)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    @property
    def chosen_row(self) -> int:
        """The chosen prompt; -1 for none."""
        rows = self.selectionModel().selectedRows()
        return rows[0].row() if rows else -1

    def show_pairs(self, pairs: Sequence[Pair]) -> None:
        """The prompts as they stand; the first is chosen where none was."""
        self.setRowCount(len(pairs))
        for row, pair in enumerate(pairs):
            for column, text in enumerate(_texts(pair)):
                self._put(row, column, text)
        if pairs and self.chosen_row < 0:
            self.selectRow(0)

    def _put(self, row: int, column: int, text: str) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self.setItem(row, column, item)
        if item.text() != text:
            item.setText(text)
            item.setToolTip(text)

    def _on_selection(self) -> None:
        if self.chosen_row >= 0:
            self.chosen.emit(self.chosen_row)

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)


def _widths() -> dict[int, int]:
    return dict.fromkeys((2, 3), scaled(_GOES_ON_WIDTH))


def _texts(pair: Pair) -> tuple[str, str, str, str]:
    prompt = " ".join(pair.prompt.shown.split())
    problems = [answer.problem for answer in pair.answers if answer is not None]
    if any(problems):
        return prompt, "–", next(filter(None, problems)), ""
    share = pair.equal_share
    if share is None:
        return prompt, "waiting" if not any(pair.answers) else "half", "", ""
    if pair.is_identical:
        return prompt, "all", "", ""
    left, right = (_excerpt(pair, side) for side in (LEFT, RIGHT))
    return prompt, f"{100 * share:.0f} %", left, right


def _excerpt(pair: Pair, side: int) -> str:
    """The text from the first difference on."""
    _, token, rest = pair.parts(side)
    text = " ".join((token + rest)[: 2 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + "…"
