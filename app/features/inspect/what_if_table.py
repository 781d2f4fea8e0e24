"""What turning a knob of the bottleneck would be as settings of the engine, or why it would do
nothing. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QBrush
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
)

from engine.config import SETTINGS, Change
from engine.telemetry.what_if import DRAFT_LENGTH, WORTH, Ceiling
from widgets.theme.theme import SPACE_2, figure_font, theme, theme_notifier

IS_ON, NOTHING, NOT_OURS = "on already", "nothing to win", "not in this engine"
_COSTS = {
    Change.LIVE: "from the next step on",
    Change.CACHE_REBUILD: "the cache is rebuilt; requests pause and resume",
    Change.RELOAD: "the model is loaded again; requests pause and resume",
}


class Turn(NamedTuple):
    """`changes`: what to set, in the words of the engine's settings; none where `refusal` says in
    full, and `short` in a word or two, why not."""

    changes: Mapping[str, Any]
    short: str = ""
    refusal: str = ""

    @property
    def text(self) -> str:
        """What pressing the button does."""
        order = list(Change)
        cost = max((SETTINGS[name].change for name in self.changes), key=order.index)
        words = ", ".join(f"{SETTINGS[n].label} {_value(v)}" for n, v in self.changes.items())
        return f"Set {words}: {_COSTS[cost]}. Undo leads back."


def turn_of(one: Ceiling, config: Any, refuse: Callable[[str, Any], str]) -> Turn:
    """`refuse(setting, value)`: why the window cannot set it now; "" where it can."""
    if not hasattr(config, one.setting):
        return Turn({}, NOT_OURS, "This engine does not have it yet.")
    turn = _TURNS[one.setting](one, config)
    if turn.refusal:
        return turn
    if not one.is_worth_trying:
        return Turn({}, NOTHING, "There is nothing to win with it.")
    for name, value in turn.changes.items():
        if reason := refuse(name, value):
            return Turn({}, "not now", reason)
    return turn


def _weights(one: Ceiling, config: Any) -> Turn:
    if config.quantization == one.value:
        return Turn({}, IS_ON, f"The weights are held as {one.value} already.")
    return Turn({"quantization": one.value})


def _kv(one: Ceiling, config: Any) -> Turn:
    if config.kv_cache_dtype == "int8":
        return Turn({}, IS_ON, "Keys and values are held as int8 already.")
    return Turn({"kv_cache_dtype": "int8"})


def _places(one: Ceiling, config: Any) -> Turn:
    if not one.value.isdigit():
        return Turn({}, NOTHING, "Nobody waits for a place: more would stay empty.")
    wanted = min(int(one.value), int(SETTINGS["max_num_seqs"].maximum or 1024))
    if wanted <= config.max_num_seqs:
        reason = "Places are free: what waits, waits for blocks of the cache or for its batch."
        return Turn({}, "places are free", reason)
    return Turn({"max_num_seqs": wanted})


def _prefixes(one: Ceiling, config: Any) -> Turn:
    if config.enable_prefix_caching:
        reason = "It is on: more is found only where more prompts begin alike."
        return Turn({}, IS_ON, reason)
    return Turn({"enable_prefix_caching": True})


def _budget(one: Ceiling, config: Any) -> Turn:
    most = int(SETTINGS["max_num_batched_tokens"].maximum or 2**17)
    wanted = min(2 * config.max_num_batched_tokens, most)
    if wanted <= config.max_num_batched_tokens:
        return Turn({}, "at its most", f"{most:,} tokens a step are the most.")
    return Turn({"max_num_batched_tokens": wanted})


def _drafts(one: Ceiling, config: Any) -> Turn:
    """Drafts from the text itself need no other model."""
    if config.speculative_method != SETTINGS["speculative_method"].default:
        return Turn({}, IS_ON, f"Drafts come from {config.speculative_method} already.")
    return Turn({"speculative_method": "ngram", "num_speculative_tokens": DRAFT_LENGTH})


_TURNS: Mapping[str, Callable[[Ceiling, Any], Turn]] = {
    "quantization": _weights,
    "kv_cache_dtype": _kv,
    "max_num_seqs": _places,
    "enable_prefix_caching": _prefixes,
    "max_num_batched_tokens": _budget,
    "speculative_method": _drafts,
}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else f"{value}"


CHOOSE = "Choose a knob to read how its ceiling was derived."
NO_WINDOW = "Nothing can be set here."
_APPLY, _WHY = 3, 4
_COLUMNS = ("Knob", "Set to", "At most", "Try", "Because")


class KnobTable(QTableWidget):
    """A row for each knob: what it could win, why not more, and a button that turns it.
    `turned(changes)`: it was pressed; the changes in the words of the engine's settings."""

    turned = Signal(object)

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self._ceilings: tuple[Ceiling, ...] = ()
        self._turns: list[Turn] = []
        self.refuse: Callable[[str, Any], str] = lambda name, value: NO_WINDOW
        self.setAccessibleName("The most that each knob could win")
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setProperty("padded", True)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.setMinimumHeight(96)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for column in range(_WHY):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)

    def show_ceilings(self, ceilings: tuple[Ceiling, ...], config: Any) -> None:
        """`config`: of the engine, to know which of the knobs it has."""
        self._ceilings = ceilings
        self._turns = [turn_of(one, config, self.refuse) for one in ceilings]
        self.setRowCount(len(ceilings))
        for row, one in enumerate(ceilings):
            why = one.why
            if one.loose is not None:
                why += f" {_factor(one.loose)}: if launch and rest shrank with it."
            turn = self._turns[row]
            if turn.refusal:
                why += f" {turn.refusal}"
            for column, text in enumerate((one.label, one.value, _gain(one), turn.short, why)):
                self._put(row, column, text, turn.refusal if column == _APPLY else why)
            self._show_button(row, one, turn)
        self.paint_factors()

    def _show_button(self, row: int, one: Ceiling, turn: Turn) -> None:
        """Where the knob can be turned; its name says so to those who only hear it."""
        button = self.cellWidget(row, _APPLY)
        if turn.refusal:
            if button is not None:
                self.removeCellWidget(row, _APPLY)
            return
        if not isinstance(button, QPushButton):
            button = QPushButton("Apply")
            button.setProperty("kind", "link")
            button.setCursor(Qt.CursorShape.PointingHandCursor)
            button.clicked.connect(lambda _=False, row=row: self._turn(row))
            self.setCellWidget(row, _APPLY, button)
        button.setToolTip(turn.text)
        button.setAccessibleName(f"Apply {one.label} {one.value}")

    def _turn(self, row: int) -> None:
        if row < len(self._turns) and not self._turns[row].refusal:
            self.turned.emit(dict(self._turns[row].changes))

    def _put(self, row: int, column: int, text: str, tip: str) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self.setItem(row, column, item)
        if item.text() != text:  # each would lay out and paint the table anew
            item.setText(text)
        if item.toolTip() != tip:
            item.setToolTip(tip)

    def paint_factors(self) -> None:
        """What is worth trying stands out."""
        for row, one in enumerate(self._ceilings):
            color = QBrush(theme().color("text" if one.is_worth_trying else "text_muted"))
            for column in range(_WHY):
                item = self.item(row, column)
                if item is not None and item.foreground() != color:
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
