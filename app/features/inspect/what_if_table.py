"""`WhatIfTable`: settings that may relieve the bottleneck, their estimated gain and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QBrush, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
)

from engine.config import SETTINGS, Change, costliest
from engine.telemetry.gain import GainEstimate
from engine.telemetry.what_if import DRAFT_LENGTH
from engine.units import NOTHING, precision_name, setting_text, speculative_name
from widgets.controls import layouts
from widgets.controls.tables import SmallFigures, dress_table
from widgets.theme.fonts import scaled
from widgets.theme.theme import theme, theme_notifier

WEIGHTS = "quantization"
ENABLED, NO_GAIN, UNSUPPORTED = "Enabled", "No gain", "Not supported"
_COSTS = {
    Change.LIVE: "Takes effect at the next step",
    Change.CACHE_REBUILD: "Rebuilds the KV cache; requests pause and resume",
    Change.RELOAD: "Reloads the model; requests pause and resume",
}


class WhatIf(NamedTuple):
    """The remedy in a row. `changes`: settings to apply, by name. Without any, `short` and
    `refusal` say why."""

    changes: Mapping[str, Any]
    short: str = ""
    refusal: str = ""

    @property
    def text(self) -> str:
        """The button's tooltip."""
        cost = costliest(self.changes)
        changes = self.changes.items()
        values = ", ".join(f"{SETTINGS[name].label} to {setting_text(v)}" for name, v in changes)
        return f"Sets {values}. {_COSTS[cost]}. You can undo this."


def what_if(one: GainEstimate, config: Any, refuse: Callable[[str, Any], str]) -> WhatIf:
    """The remedy for an estimate. `refuse(setting, value)`: why it cannot be set now, or ""."""
    if not hasattr(config, one.setting):
        return WhatIf({}, UNSUPPORTED, "This engine does not support this setting.")
    found = _CHANGES[one.setting](one, config)
    if found.refusal:
        return found
    if one.is_on:
        return WhatIf({}, ENABLED, "Already enabled.")
    if not one.is_worth_trying:
        return WhatIf({}, NO_GAIN, "No gain expected.")
    for name, value in found.changes.items():
        if reason := refuse(name, value):
            return WhatIf({}, "Unavailable", reason)
    return found


def is_enabled(one: GainEstimate, config: Any) -> bool:
    """Whether the engine has this value already."""
    return what_if(one, config, lambda name, value: "").short == ENABLED


def value_of(one: GainEstimate, config: Any) -> Any:
    """The value of its setting that is estimated; None where the engine has none to set."""
    if not hasattr(config, one.setting):
        return None
    return _CHANGES[one.setting](one, config).changes.get(one.setting)


def _precision(one: GainEstimate, config: Any) -> WhatIf:
    is_kv = one.setting == "kv_cache_dtype"
    wanted = "int8" if is_kv else one.value
    if getattr(config, one.setting) == wanted:
        subject = "The KV cache is" if is_kv else "Weights are"
        return WhatIf({}, ENABLED, f"{subject} already {precision_name(wanted)}.")
    return WhatIf({one.setting: wanted})


def _batch_slots(one: GainEstimate, config: Any) -> WhatIf:
    if not one.value.isdigit():
        return WhatIf({}, NO_GAIN, "More slots would stay empty.")
    wanted = min(int(one.value), int(SETTINGS["max_num_seqs"].maximum or 1024))
    if wanted <= config.max_num_seqs:
        reason = "Batch slots are free on average. Requests may be waiting for KV blocks."
        return WhatIf({}, NO_GAIN, reason)
    return WhatIf({"max_num_seqs": wanted})


def _prefixes(one: GainEstimate, config: Any) -> WhatIf:
    if config.enable_prefix_caching:
        reason = "Already enabled. More shared prefixes would increase the hit rate."
        return WhatIf({}, ENABLED, reason)
    return WhatIf({"enable_prefix_caching": True})


def _budget(one: GainEstimate, config: Any) -> WhatIf:
    most = int(SETTINGS["max_num_batched_tokens"].maximum or 2**17)
    wanted = min(2 * config.max_num_batched_tokens, most)
    if wanted <= config.max_num_batched_tokens:
        return WhatIf({}, "Maximum", f"Already at the maximum: {most:,} tokens per step.")
    return WhatIf({"max_num_batched_tokens": wanted})


def _drafts(one: GainEstimate, config: Any) -> WhatIf:
    """Enable n-gram lookup, which needs no draft model."""
    if config.speculative_method != SETTINGS["speculative_method"].default:
        method = speculative_name(config.speculative_method)
        return WhatIf({}, ENABLED, f"Speculation already uses {method}.")
    return WhatIf({"speculative_method": "ngram", "num_speculative_tokens": DRAFT_LENGTH})


_CHANGES: Mapping[str, Callable[[GainEstimate, Any], WhatIf]] = {
    "quantization": _precision,
    "kv_cache_dtype": _precision,
    "max_num_seqs": _batch_slots,
    "enable_prefix_caching": _prefixes,
    "max_num_batched_tokens": _budget,
    "speculative_method": _drafts,
}


CHOOSE = "Select a setting to see how its gain is estimated."
NO_WINDOW = "Settings are read-only here."
_APPLY, _WHY = 3, 4
_COLUMNS = ("Setting", "Value", "Estimated gain", "Apply", "Why")
_LEAST_WHY = 130
"""Pixels at the default text size; where the reasons have fewer, they are seen by selection."""


class WhatIfTable(QTableWidget):
    """A row per setting, with a button to apply it. `applied(changes)`: settings by name."""

    applied = Signal(object)

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self._estimates: tuple[GainEstimate, ...] = ()
        self._what_ifs: list[WhatIf] = []
        self.refuse: Callable[[str, Any], str] = lambda name, value: NO_WINDOW
        """`refuse(setting, value)`: why it cannot be set now, or ""."""
        dress_table(self, "Estimated gain per setting")
        SmallFigures(self)
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setMinimumHeight(96)
        header = self.horizontalHeader()
        header.setStretchLastSection(True)
        for column in range(_WHY):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        theme_notifier().changed.connect(self.paint_factors)

    def show_estimates(self, estimates: tuple[GainEstimate, ...], config: Any) -> None:
        """Show the estimates. `config`: the engine's; settings that it lacks are not
        supported."""
        self._estimates = estimates
        self._what_ifs = [what_if(one, config, self.refuse) for one in estimates]
        self.setRowCount(len(estimates))
        for row, one in enumerate(estimates):
            why = one.why
            found, gain = self._what_ifs[row], one.text
            if found.short == ENABLED:  # nothing is left to gain from it
                why, gain = found.refusal, NOTHING
            elif found.refusal:
                why += f" {found.refusal}"
            for column, text in enumerate((one.label, value_name(one), gain, found.short, why)):
                self._put(row, column, text, found.refusal if column == _APPLY else why)
            self._show_button(row, one, found)
        self.paint_factors()
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Not by the sections: the last one that is shown is stretched."""
        header = self.horizontalHeader()
        others = sum(
            max(self.sizeHintForColumn(column), header.sectionSizeHint(column))
            for column in range(_WHY)
        )
        room = self.viewport().width() - others
        self.setColumnHidden(_WHY, room < scaled(_LEAST_WHY))

    def set_wrapped(self, wraps: bool) -> None:
        """Show each reason in full, where there is the height."""
        if wraps != self.wordWrap():
            self.setWordWrap(wraps)
            modes, rows = QHeaderView.ResizeMode, self.verticalHeader()
            rows.setSectionResizeMode(modes.ResizeToContents if wraps else modes.Interactive)
            if not wraps:
                for row in range(self.rowCount()):
                    self.setRowHeight(row, rows.defaultSectionSize())

    def _show_button(self, row: int, one: GainEstimate, found: WhatIf) -> None:
        button = self.cellWidget(row, _APPLY)
        if found.refusal:
            if button is not None:
                self.removeCellWidget(row, _APPLY)
            return
        if not isinstance(button, QPushButton):
            button = layouts.button("Apply", partial(self._apply, row), kind="link")
            button.setCursor(Qt.CursorShape.PointingHandCursor)
            self.setCellWidget(row, _APPLY, button)
        layouts.dressed(button, f"Apply {one.label} {value_name(one)}", found.text)

    def _apply(self, row: int) -> None:
        if row < len(self._what_ifs) and not self._what_ifs[row].refusal:
            self.applied.emit(dict(self._what_ifs[row].changes))

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
        """Mute the rows without a gain."""
        for row, one in enumerate(self._estimates):
            has_gain = one.is_worth_trying and self._what_ifs[row].short != ENABLED
            color = QBrush(theme().color("text" if has_gain else "text_muted"))
            for column in range(_WHY):
                item = self.item(row, column)
                if item is not None and item.foreground() != color:
                    item.setForeground(color)

    def why(self) -> str:
        """The full derivation of the selected row."""
        chosen = self.selectionModel().selectedRows()
        item = self.item(chosen[0].row(), _WHY) if chosen else None
        return item.text() if item is not None else CHOOSE


def hint_of(one: GainEstimate) -> str:
    """The line below a setting: the table's text with the value."""
    if not one.is_worth_trying:
        # weights have an estimate for each value
        return f"{value_name(one)}: no gain expected" if one.setting == WEIGHTS else one.text
    preposition = "at" if one.value.isdigit() else "with"
    text = f"{one.text} {preposition} {value_name(one)}"
    return text if one.is_bound else f"Estimated {text[:1].lower()}{text[1:]}"


def value_name(one: GainEstimate) -> str:
    return precision_name(one.value) if one.setting == WEIGHTS else one.value
