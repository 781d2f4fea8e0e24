"""The table of knobs: what each could win at most, and why not more."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from engine.ceilings import WORTH, Ceiling
from widgets.theme import SPACE_2, figure_font, theme, theme_notifier

CHOOSE = "Choose a knob to read how its ceiling was derived."
_WHY = 3
_COLUMNS = ("Knob", "Set to", "At most", "Because")


class KnobTable(QTableWidget):
    """A row for each knob: what it could win, and why not more."""

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self._ceilings: tuple[Ceiling, ...] = ()
        self.setAccessibleName("The most that each knob could win")
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.setMinimumHeight(96)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for column in range(3):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)

    def show_ceilings(self, ceilings: tuple[Ceiling, ...], config: Any) -> None:
        """`config`: of the engine, to know which of the knobs it has."""
        self._ceilings = ceilings
        self.setRowCount(len(ceilings))
        for row, one in enumerate(ceilings):
            why = one.why
            if one.loose is not None:
                why += f" {_factor(one.loose)}: if launch and rest shrank with it."
            if not hasattr(config, one.setting):
                why += " This engine does not have it yet."
            for column, text in enumerate((one.label, one.value, _gain(one), why)):
                self._put(row, column, text, why)
        self.paint_factors()

    def _put(self, row: int, column: int, text: str, tip: str) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self.setItem(row, column, item)
        item.setText(text)
        item.setToolTip(tip)

    def paint_factors(self) -> None:
        """What is worth trying stands out."""
        for row, one in enumerate(self._ceilings):
            color = theme().color("text" if one.is_worth_trying else "text_muted")
            for column in range(3):
                item = self.item(row, column)
                if item is not None:
                    item.setForeground(color)

    def why(self) -> str:
        """The chosen knob's derivation in full: its column is seldom wide enough."""
        chosen = self.selectionModel().selectedRows()
        item = self.item(chosen[0].row(), _WHY) if chosen else None
        return item.text() if item is not None else CHOOSE


def hint_of(ceiling: Ceiling) -> str:
    """Under a knob: short, and without the range."""
    if ceiling.factor < WORTH:
        return f"{ceiling.value}: nothing to win"
    return f"{ceiling.value}: at most {_factor(ceiling.factor)} {ceiling.gains}"


def _gain(ceiling: Ceiling) -> str:
    if max(ceiling.factor, ceiling.loose or 0.0) < 1.005:
        return "nothing"
    widest = f" to {_factor(ceiling.loose)}" if ceiling.loose is not None else ""
    return f"{_factor(ceiling.factor)}{widest} {ceiling.gains}"


def _factor(factor: float) -> str:
    return f"{factor:.2f}×" if factor < 9.95 else f"{factor:.0f}×"
