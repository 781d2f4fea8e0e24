"""Report figures: tiles of the leading ones, and tables of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QSizePolicy, QWidget

from app.storage.report_metrics import NOTHING, Comparison, Form, Metric, metric_rows, text_of
from engine.evaluate.report import EvaluationReport, ModelFacts
from engine.units import bytes_text, factor_text
from widgets.controls.layouts import STRETCH, empty_layout, vbox, wrapped
from widgets.controls.lines import ElidedLine
from widgets.theme.fonts import text_scale
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font

SIMILARITY_BAR = 0.99
"""Cosine similarity of final hidden states that counts as lossless."""


class Tile(NamedTuple):
    """`tone`: "better", "worse" or "muted", of the note."""

    label: str
    value: str
    note: str = ""
    tone: str = "muted"
    tip: str = ""


def tiles_of(report: EvaluationReport) -> list[Tile]:
    """Tiles of the measured figures, most important first."""
    found = [_size(report), _perplexity(report), *_divergence(report), _speed(report)]
    if report.answers is not None:
        answers = report.answers
        value = f"{answers.num_identical} of {len(answers.pairs)}"
        note = f"Mean matching prefix: {percent(answers.mean_equal_share)}"
        found.append(Tile("Identical answers", value, note))
    return [tile for tile in found if tile is not None]


def _size(report: EvaluationReport) -> Tile:
    size, ratio = report.candidate.weights_bytes, report.weights_ratio
    tip = "Memory used by all weights"
    if report.reference is None or ratio is None:
        return Tile("Weights", bytes_text(size), tip=tip)
    before, kv = report.reference.weights_bytes, _kv_text(report.candidate, report.reference)
    if ratio == 1.0 and kv:
        per_token = bytes_text(report.candidate.kv_bytes_per_token)
        return Tile("KV cache per token", per_token, kv, "better")
    tone = "better" if ratio < 0.995 else "muted"
    return Tile(
        "Weights", bytes_text(size), f"{percent(ratio)} of {bytes_text(before)}", tone, tip
    )


def _kv_text(candidate: ModelFacts, reference: ModelFacts) -> str:
    before, now = reference.kv_bytes_per_token, candidate.kv_bytes_per_token
    return f"{percent(now / before)} of {bytes_text(before)}" if before and now < before else ""


def _perplexity(report: EvaluationReport) -> Tile | None:
    loss, change = report.candidate_loss, report.perplexity_change
    if loss is None:
        return None
    value = f"{loss.perplexity:,.3f}"
    if change is None or report.reference_loss is None:
        return Tile("Perplexity", value, f"{loss.bits_per_byte:.3f} bits per byte")
    before = report.reference_loss.perplexity
    tone = "worse" if change > 0.03 else "muted"
    return Tile("Perplexity", value, f"{signed(change)} vs. {before:,.3f}", tone)


def percent(share: float, decimals: int = 0) -> str:
    """ "97.8 %"."""
    return f"{100 * share:.{decimals}f}\u00a0%"


def signed(share: float) -> str:
    """ "+0.42 %", "−1.20 %"."""
    return f"{share:+.2%}".replace("-", "−").replace("%", "\u00a0%")


def _divergence(report: EvaluationReport) -> list[Tile]:
    found = report.divergence
    if found is None:
        return []
    p99 = "" if found.kl.p99 is None else f" · p99 {found.kl.p99:.3g}"
    mean_kl = text_of(Form.SMALL, found.kl.mean)
    tiles = [
        Tile("Mean KL divergence", mean_kl, f"p90 {found.kl.p90:.3g}{p99} nats",
             tip="KL(reference || model) per token"),
        Tile("Top-1 agreement", percent(found.top1_agreement, 1),
             f"of {found.kl.num_samples:,} tokens"),
    ]  # fmt: skip
    if found.similarity is not None:
        mean, p1 = found.similarity.mean, found.similarity.p1
        is_over = mean > SIMILARITY_BAR
        verdict = "Passes" if is_over else "Fails"
        lowest = "" if p1 is None else f" · p1\u00a0{percent(p1, 1)}"
        tiles.append(
            Tile(
                "Hidden-state similarity", percent(mean, 2),
                f"{verdict} (target 99\u00a0%){lowest}",
                "better" if is_over else "worse",
                "Mean cosine similarity of the final hidden states over all tokens",
            )
        )  # fmt: skip
    return tiles


def _speed(report: EvaluationReport) -> Tile | None:
    speed = report.candidate.speed
    if speed is None:
        return None
    before = report.reference.speed if report.reference is not None else None
    note = f"prefill {speed.prefill:,.0f}"
    tone = "muted"
    if before is not None:
        ratio = speed.decode / before.decode
        note = f"{factor_text(ratio)} vs. {before.decode:,.1f} · {note}"
        tone = "better" if ratio > 1.02 else "worse" if ratio < 0.98 else "muted"
    return Tile("Decode, tokens/s", f"{speed.decode:,.1f}", note, tone,
                "Single request, median of 3 runs")  # fmt: skip


TILE_WIDTH = 190
LONGEST_HEAD = 26
MANY = 10
"""Ratios above this are shown as a factor instead of percent."""


class TileGrid(QWidget):
    """Tiles in rows of equal length that fill the width."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Key metrics")
        self._tiles: list[QFrame] = []
        self.rows: list[int] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACE_2)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self.setSizePolicy(policy)

    def show_tiles(self, tiles: Sequence[Tile]) -> None:
        empty_layout(self._grid)
        self._tiles = [_tile(tile) for tile in tiles]
        self.rows = []
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        most = max(1, int(self.width() / (TILE_WIDTH * text_scale())))
        rows = even_rows(len(self._tiles), most)
        if rows == self.rows:
            return
        for column in range(self._grid.columnCount()):
            self._grid.setColumnStretch(column, 0)
        self.rows = rows
        units, frames = math.lcm(*rows), iter(self._tiles)
        for row, count in enumerate(rows):
            span = units // count
            for place in range(count):
                self._grid.addWidget(next(frames), row, place * span, 1, span)
        for column in range(units):
            self._grid.setColumnStretch(column, 1)


def even_rows(count: int, most: int) -> list[int]:
    """Tiles per row: as few rows as possible, of lengths that differ by at most one (six where
    five fit: 3 + 3)."""
    num_rows = -(-count // most)
    each, more = divmod(count, max(1, num_rows))
    return [each + (row < more) for row in range(num_rows)]


def _tile(tile: Tile) -> QFrame:
    frame = QFrame()
    frame.setProperty("notice", "info")
    frame.setToolTip(tile.tip)
    frame.setAccessibleName(f"{tile.label}: {tile.value}, {tile.note}")
    label, value, note = QLabel(tile.label), QLabel(tile.value), wrapped(tile.tone, tile.note)
    label.setProperty("role", "small")
    value.setProperty("role", "figure")
    value.setFont(figure_font("large", QFont.Weight.DemiBold))
    value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    note.setFont(figure_font("small"))
    vbox(
        label, value, note, STRETCH,
        of=frame, spacing=0, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_2),
    )  # fmt: skip
    return frame


class Cell(NamedTuple):
    """One table cell; `tone`: a role of the stylesheet."""

    text: str
    tone: str = ""


class FigureGrid(QWidget):
    """Table of figures: labels left, values right-aligned beside them. `label_width`: minimum
    pixels of the first column."""

    def __init__(self, name: str, label_width: int) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._label_width = label_width
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_4)
        self._grid.setVerticalSpacing(SPACE_1)
        self.cells: list[list[str]] = []

    def show_rows(self, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        empty_layout(self._grid)
        self.cells = [[cell.text for cell in row] for row in rows]
        for column, head in enumerate(heads):
            self._add(0, column, Cell(head, "small"), head)
        for place, row in enumerate(rows, 1):
            for column, cell in enumerate(row):
                self._add(place, column, cell, heads[column])
        for column in range(self._grid.columnCount()):
            self._grid.setColumnStretch(column, 0)
        self._grid.setColumnStretch(len(heads), 1)  # extra width goes after the last column

    def _add(self, row: int, column: int, cell: Cell, head: str) -> None:
        if not column:
            name = ElidedLine("text_muted", "body", hugs=True)
            name.set_text(cell.text)
            name.setMinimumWidth(self._label_width)
            self._grid.addWidget(name, row, 0)
            return
        label = QLabel(cell.text if row else shortened(cell.text))
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setProperty("role", cell.tone)
        label.setFont(figure_font("body" if row else "small"))
        label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        label.setAccessibleName(f"{head}: {cell.text}")
        label.setToolTip("" if row else cell.text)
        self._grid.addWidget(label, row, column)


def shortened(text: str) -> str:
    """A long name, elided in the middle."""
    if len(text) <= LONGEST_HEAD:
        return text
    half = (LONGEST_HEAD - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def value_text(metric: Metric, value: float | None) -> str:
    """A value as the page writes it."""
    if metric.unit == "tokens/s" and value is not None:
        return f"{value:,.1f}"
    return text_of(metric.form, value).replace("%", " %")


def report_rows(report: EvaluationReport) -> tuple[list[str], list[list[Cell]]]:
    """(heads, rows) of one report: reference, model and change."""
    has_reference = report.reference is not None
    heads = ["", "Reference", "Model", "Change"] if has_reference else ["", "Model"]
    rows = []
    for found in metric_rows([report], with_reference=has_reference):
        metric, values = found.metric, found.values
        shown = ("" if value is None else value_text(metric, value) for value in values)
        row = [Cell(metric.label, "muted"), *map(Cell, shown)]
        if has_reference:
            row.append(_change(values[1], values[0], metric.better))
        rows.append(row)
    return heads, rows


def comparison_rows(found: Comparison) -> tuple[list[str], list[list[Cell]]]:
    """(heads, rows) of several reports: values, and changes from the first."""
    heads = [""]
    for place, title in enumerate(found.titles):
        heads += [title] if place == 0 else [title, "change"]
    rows = []
    for row in found.rows:
        cells = [Cell(row.metric.label, "muted")]
        for place, value in enumerate(row.values):
            tone = "better" if place in row.best else ""
            cells.append(Cell(value_text(row.metric, value), tone))
            if place:
                cells.append(_difference(row.metric.form, value, row.values[0]))
        rows.append(cells)
    return heads, rows


def _difference(form: Form, value: float | None, first: float | None) -> Cell:
    """In percentage points for shares, else in percent."""
    if value is None or first is None:
        return Cell(NOTHING, "muted")
    if form in (Form.SHARE, Form.CLOSE_SHARE, Form.CHANGE):
        return Cell(f"{100 * (value - first):+.2f} pt".replace("-", "−"), "muted")
    return _change(value, first, 0)


def _change(value: float | None, reference: float | None, better: int) -> Cell:
    if not reference or value is None or value == reference:
        return Cell("", "muted")
    share = value / reference - 1
    tone = "muted"
    if better and abs(share) >= 0.005:
        tone = "better" if share * better > 0 else "worse"
    if value / reference > MANY:
        return Cell(f"× {value / reference:,.0f}", tone)
    return Cell(f"{share:+.1%}".replace("-", "−").replace("%", " %"), tone)
