"""Progress of a job, and the model that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QLabel

from app.features.quantize.figures import Tile, TileGrid, percent
from app.features.quantize.layers import LayersPanel, rows_of
from app.features.quantize.plan import recipe_label
from app.features.quantize.run import Run
from engine.units import bytes_text, duration_text
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.controls.progress_bar import ProgressBar
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font

if TYPE_CHECKING:
    from engine.quantize.recipe import QuantizeResult


HIGHEST = 420
"""Maximum pixels of the layer chart."""


class RunView(QFrame):
    """Progress of a job, with layer errors. `cancel_wanted` when its button is pressed."""

    cancel_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("Job")
        self.title = title_line(hugs=False)
        self.stage = ElidedLine("text_muted")
        self.figures = QLabel()
        self.figures.setProperty("role", "muted")
        self.figures.setFont(figure_font())
        self.bar = ProgressBar()
        self.cancel = button(
            "Cancel", self.cancel_wanted.emit, "Cancel and remove partial files (Esc)"
        )
        self.layers = LayersPanel()
        self.layers.setMaximumHeight(HIGHEST)
        head = hbox((self.title, 1), self.figures, self.cancel, spacing=SPACE_3)
        vbox(
            head, self.bar, self.stage, SPACE_2, (self.layers, 1), STRETCH,
            wrapped("small", "You can keep chatting; replies are slightly slower."),
            of=self, margins=(SPACE_4, SPACE_3, SPACE_4, SPACE_3),
        )  # fmt: skip

    def show_run(self, run: Run) -> None:
        """Show the progress of `run`."""
        shown = run.figures()
        self.title.set_text(shown.title)
        self.stage.set_text(shown.stage)
        self.figures.setText(shown.time)
        self.bar.show_fraction(shown.fraction)
        self.cancel.setEnabled(not run.is_cancelling)
        self.cancel.setText("Cancelling…" if run.is_cancelling else "Cancel")
        self.layers.setVisible(run.has_layers)
        if run.has_layers:
            self.layers.show_rows(rows_of(run.layers), run.num_layers)


class MadeView(QFrame):
    """A new model. `open_wanted(path)` and `measure_wanted` when a button is pressed."""

    open_wanted = Signal(str)
    measure_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("New model")
        self._path = ""
        self.title, self.about = title_line(hugs=False), ElidedLine("text_muted")
        self.title.elide_mode = Qt.TextElideMode.ElideMiddle  # names end with their precision
        self.tiles, self.layers = TileGrid(), LayersPanel()
        self.layers.setMaximumHeight(HIGHEST)
        self.open = button(
            "Open model",
            lambda: self.open_wanted.emit(self._path),
            "Load the model for chat",
            kind="primary",
        )
        self.measure = button(
            "Evaluate",
            self.measure_wanted.emit,
            "Measure perplexity, divergence and speed relative to the original",
        )
        buttons = hbox(self.open, self.measure, STRETCH)
        vbox(
            self.title, self.about, SPACE_1, buttons, SPACE_2, self.tiles, SPACE_2,
            (self.layers, 1), STRETCH,
            of=self, spacing=SPACE_1, margins=(SPACE_4, SPACE_3, SPACE_4, SPACE_4),
        )  # fmt: skip

    def show_result(self, result: QuantizeResult) -> None:
        self._path = str(result.output)
        self.title.set_text(result.output.name)
        parts = [recipe_label(result.recipe), str(result.output), *result.notes]
        self.about.set_text(" · ".join(parts))
        ratio = result.bytes_after / max(1, result.bytes_before)
        count = sum(len(layer.linears) for layer in result.layers)
        kept = f"{len(result.kept)} skipped" if result.kept else "none skipped"
        tiles = [
            Tile("Size on disk", bytes_text(result.bytes_after),
                 f"{percent(ratio)} of {bytes_text(result.bytes_before)}", "better"),
            Tile("Matrices quantized", f"{count:,}", kept,
                 tip="\n".join(f"{name}: {why}" for name, why in result.kept.items())),
            Tile("Time", duration_text(result.seconds), _read(result)),
        ]  # fmt: skip
        self.tiles.show_tiles(tiles)
        self.layers.show_rows(rows_of(result.layers))


def _read(result: QuantizeResult) -> str:
    if not result.num_tokens:
        return "no calibration"
    return f"{result.num_sequences:,} sequences, {result.num_tokens:,} tokens"
