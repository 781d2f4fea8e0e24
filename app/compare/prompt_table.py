"""The prompts of a comparison: how far the answers to each are identical, and where they part."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from app.compare.record import LEFT, RIGHT, Pair
from widgets.fonts import scaled
from widgets.plain_table import FittedColumns
from widgets.theme import SPACE_2, figure_font, theme_notifier

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
