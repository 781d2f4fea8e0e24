"""A model that was made: how large it is, and what its layers lost. Measuring it comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout

from app.quantize.figure_views import TileGrid
from app.quantize.layers import rows_of
from app.quantize.layers_panel import LayersPanel
from app.quantize.plan import recipe_words
from app.quantize.report_view import ElidedTitle
from app.quantize.run_view import HIGHEST
from app.quantize.tiles import Tile, percent
from app.quantize.time_words import elapsed
from app.units import format_bytes
from widgets.elided_line import ElidedLine
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4

if TYPE_CHECKING:
    from engine.quantization.results import QuantizeResult


class MadeView(QFrame):
    """`open_wanted(path)` and `measure_wanted` when a button is pressed."""

    open_wanted = Signal(str)
    measure_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("The model that was made")
        self._path = ""
        self.title, self.about = ElidedTitle(), ElidedLine("text_muted")
        self.tiles, self.layers = TileGrid(), LayersPanel()
        self.layers.setMaximumHeight(HIGHEST)
        self.open = QPushButton("Open this model")
        self.open.setProperty("kind", "primary")
        self.open.setToolTip("Load it, to chat with it")
        self.open.clicked.connect(lambda: self.open_wanted.emit(self._path))
        self.measure = QPushButton("Measure it")
        self.measure.setToolTip("Perplexity, divergence and the rest, against its source")
        self.measure.clicked.connect(self.measure_wanted)
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE_2)
        buttons.addWidget(self.open)
        buttons.addWidget(self.measure)
        buttons.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_3, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_1)
        column.addWidget(self.title)
        column.addWidget(self.about)
        column.addSpacing(SPACE_1)
        column.addLayout(buttons)
        column.addSpacing(SPACE_2)
        column.addWidget(self.tiles)
        column.addSpacing(SPACE_2)
        column.addWidget(self.layers, 1)
        column.addStretch(1)

    def show_result(self, result: QuantizeResult) -> None:
        self._path = str(result.output)
        self.title.set_text(result.output.name)
        parts = [recipe_words(result.recipe), str(result.output), *result.notes]
        self.about.set_text(" · ".join(parts))
        ratio = result.bytes_after / max(1, result.bytes_before)
        count = sum(len(layer.linears) for layer in result.layers)
        kept = f"{len(result.kept)} left as they were" if result.kept else "none was left"
        tiles = [
            Tile("Size on disk", format_bytes(result.bytes_after),
                 f"{percent(ratio)} of {format_bytes(result.bytes_before)}", "better"),
            Tile("Matrices quantized", f"{count:,}", kept,
                 tip="\n".join(f"{name}: {why}" for name, why in result.kept.items())),
            Tile("Time", elapsed(result.seconds), _read(result)),
        ]  # fmt: skip
        self.tiles.show_tiles(tiles)
        self.layers.show_rows(rows_of(result.layers))


def _read(result: QuantizeResult) -> str:
    if not result.num_tokens:
        return "no text was needed"
    return f"{result.num_sequences:,} sequences, {result.num_tokens:,} tokens"
