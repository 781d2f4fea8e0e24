"""Quantization error by layer, as bars and as a table.

live           LayerResult, as the layers are quantized
afterwards     the same as JSON: in the model folder, and beside a stored report
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QHeaderView,
    QLabel,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.features.quantize.figures import percent
from engine.errors import CheckpointError
from engine.json_file import read_json
from engine.quantize.recipe import RESULT_FILE, LayerResult
from widgets.controls.layouts import button, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import dress_table
from widgets.quality.bars import NONE, LayerBar, LayerChart
from widgets.theme.theme import SPACE_1, figure_font, theme_notifier


class LayerRow(NamedTuple):
    """Relative errors of a layer: with `is_output` of its output on the calibration text (with
    that of round-to-nearest, `rounding`), else of its weights."""

    label: str
    error: float
    rounding: float | None
    is_output: bool
    worst: str
    worst_error: float
    seconds: float
    notes: str

    @property
    def bar(self) -> LayerBar:
        tip = f"Worst matrix: {self.worst} {percent(self.worst_error, 2)}" if self.worst else ""
        return LayerBar(self.label, self.error, self.rounding, tip)


def rows_of(layers: Sequence[LayerResult | Mapping[str, Any]]) -> list[LayerRow]:
    """Raises KeyError, TypeError or ValueError for other JSON."""
    return [_row(asdict(x) if isinstance(x, LayerResult) else x) for x in layers]


def _row(layer: Mapping[str, Any]) -> LayerRow:
    linears: Sequence[Mapping[str, Any]] = layer["linears"]
    is_output = layer["output_error"] is not None
    errors = [(_error_of(linear, is_output), str(linear["name"])) for linear in linears]
    worst_error, worst = max(errors, default=(0.0, ""))
    error = layer["output_error"] if is_output else _mean(linears)
    notes = [*layer["notes"], *(str(x["note"]) for x in linears if x.get("note"))]
    return LayerRow(
        label=str(layer["index"]),
        error=float(error),
        rounding=None if layer["rounding_error"] is None else float(layer["rounding_error"]),
        is_output=is_output,
        worst=worst.removeprefix(f"{layer['name']}."),
        worst_error=worst_error,
        seconds=float(layer["seconds"]),
        notes="; ".join(dict.fromkeys(map(str, notes))),
    )


def _error_of(linear: Mapping[str, Any], is_output: bool) -> float:
    found = linear["output_error"] if is_output else linear["weight_error"]
    return float(found) if found is not None else 0.0


def _mean(linears: Sequence[Mapping[str, Any]]) -> float:
    """Root mean square over all weights of the layer."""
    sizes = [math.prod(linear["shape"]) for linear in linears]
    squares = [
        size * linear["weight_error"] ** 2 for size, linear in zip(sizes, linears, strict=True)
    ]
    return math.sqrt(sum(squares) / sum(sizes)) if sum(sizes) else 0.0


def caption(rows: Sequence[LayerRow]) -> str:
    """Caption of the bars; empty before the first."""
    if not rows:
        return ""
    if rows[0].is_output:
        return "Relative output error, %. Line: round-to-nearest"
    return "Relative weight error, %"


def summary(rows: Sequence[LayerRow]) -> str:
    """Mean, maximum and gain over round-to-nearest; empty without rows."""
    if not rows:
        return ""
    worst = max(rows, key=lambda row: row.error)
    mean = sum(row.error for row in rows) / len(rows)
    words = f"mean {percent(mean, 2)}, max {percent(worst.error, 2)} (layer {worst.label})"
    rounded = [row.rounding for row in rows if row.rounding is not None]
    if len(rounded) == len(rows) and sum(rounded) > 0:
        share = 1 - mean * len(rows) / sum(rounded)
        words = f"{words}; {percent(abs(share))} {'lower' if share >= 0 else 'higher'} than RTN"
    return words


def read_result(folder: Path) -> dict[str, Any] | None:
    """The stored quantization result of the model in `folder`; None if missing or damaged."""
    try:
        found: dict[str, Any] = read_json(folder / RESULT_FILE)
        rows_of(found["layers"])
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found


HEADERS = ("Layer", "Error", "Round-to-nearest", "Worst matrix", "Max error", "Seconds", "Notes")
CHART_HEIGHT = 190


class LayersPanel(QWidget):
    """Chart and table of layer errors; shows room for `num_layers` during a run."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[LayerRow] = []
        title = QLabel("Layers")
        title.setProperty("role", "title")
        self._line = ElidedLine("text_muted")
        self._sum = ElidedLine("text")
        self.toggle = button("Table", lambda: None, "Show the values in a table", kind="flat")
        self.toggle.setCheckable(True)
        self.toggle.setAccessibleName("Layer error table")
        head = hbox(title, (self._line, 1), self.toggle)
        self.chart = LayerChart()
        self.table = _table()
        self._stack = QStackedWidget()
        self._stack.addWidget(self.chart)
        self._stack.addWidget(self.table)
        self._stack.setMinimumHeight(CHART_HEIGHT)
        self.toggle.toggled.connect(lambda on: self._stack.setCurrentIndex(int(on)))
        self.chart.pointed.connect(self._on_pointed)
        theme_notifier().changed.connect(self._fill_table)  # its fonts
        vbox(head, self._sum, (self._stack, 1), of=self, spacing=SPACE_1)

    def show_rows(self, rows: Sequence[LayerRow], num_layers: int = 0) -> None:
        """Show `rows`, with room for `num_layers`."""
        new = len(rows) != len(self.rows) or list(rows) != self.rows
        self.rows = list(rows)
        self.chart.show_bars([row.bar for row in rows], num_layers)
        if new:
            self._fill_table()
        self._on_pointed(self.chart.pointed_index)

    @property
    def words(self) -> str:
        return " · ".join(filter(None, (self._line.text(), self._sum.text())))

    def _on_pointed(self, index: int) -> None:
        """Show the summary, or the bar under the pointer."""
        self._line.set_text(caption(self.rows))
        self._sum.set_text(summary(self.rows) if index == NONE else self.chart.text(index))

    def _fill_table(self) -> None:
        self.table.setRowCount(len(self.rows))
        for place, row in enumerate(self.rows):
            rounding = "–" if row.rounding is None else percent(row.rounding, 3)
            worst_error = percent(row.worst_error, 3)
            texts = (row.label, percent(row.error, 3), rounding, row.worst, worst_error,
                     f"{row.seconds:.2f}", row.notes)  # fmt: skip
            for column, text in enumerate(texts):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                if column not in (3, 6):
                    item.setFont(figure_font())
                    right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
                    item.setTextAlignment(right)
                self.table.setItem(place, column, item)


def _table() -> QTableWidget:
    table = QTableWidget(0, len(HEADERS))
    table.setHorizontalHeaderLabels(HEADERS)
    dress_table(table, "Layer errors")
    table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
    header = table.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setSectionResizeMode(len(HEADERS) - 1, QHeaderView.ResizeMode.Stretch)
    return table
