"""The right side of the page: job progress, new model, report or comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QLabel,
    QProgressBar,
    QStackedWidget,
    QWidget,
)

from app.features.quantize.comparison_view import ComparisonView
from app.features.quantize.figures import Tile, TileGrid, percent
from app.features.quantize.kept_reports import Made
from app.features.quantize.layers import LayersPanel, rows_of
from app.features.quantize.plan import recipe_label
from app.features.quantize.report_view import ReportView
from app.features.quantize.run import Run, elapsed
from app.storage.report_store import StoredReport
from app.units import format_bytes
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font

if TYPE_CHECKING:
    from engine.quantize.recipe import QuantizeResult


HIGHEST = 420
"""Maximum pixels of the layer chart."""


class RunView(QFrame):
    """Progress of a job, with layer errors. `cancel_wanted` when its button is pressed."""

    cancel_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Job")
        self.title = title_line(hugs=False)
        self.stage = ElidedLine("text_muted")
        self.figures = QLabel()
        self.figures.setProperty("role", "muted")
        self.figures.setFont(figure_font())
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 1000)
        self.bar.setAccessibleName("Progress")
        self.cancel = button(
            "Cancel", self.cancel_wanted.emit, "Cancel and remove partial files (Esc)"
        )
        self.layers = LayersPanel()
        self.layers.setMaximumHeight(HIGHEST)
        self._hint = QLabel("Chat continues, slightly slower.")
        self._hint.setProperty("role", "small")
        head = hbox((self.title, 1), self.figures, self.cancel, spacing=SPACE_3)
        vbox(
            head, self.bar, self.stage, SPACE_2, (self.layers, 1), STRETCH, self._hint,
            of=self, margins=(SPACE_4, SPACE_3, SPACE_4, SPACE_3),
        )  # fmt: skip

    def show_run(self, run: Run) -> None:
        """Show the progress of `run`."""
        shown = run.figures()
        self.title.set_text(shown.title)
        self.stage.set_text(shown.stage)
        self.figures.setText(shown.time)
        if shown.fraction is None:
            self.bar.setRange(0, 0)
        else:
            self.bar.setRange(0, 1000)
            self.bar.setValue(round(1000 * shown.fraction))
        self.cancel.setEnabled(not run.is_cancelling)
        self.cancel.setText("Cancelling…" if run.is_cancelling else "Cancel")
        self.layers.setVisible(run.has_layers)
        if run.has_layers:
            self.layers.show_rows(rows_of(run.layers), run.num_layers)

    def rest(self) -> None:
        """An indeterminate bar animates, which costs time even when it is hidden."""
        self.bar.setRange(0, 1000)


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
            "Measure perplexity, divergence and speed against the original",
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
        kept = f"{len(result.kept)} kept" if result.kept else "none kept"
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
        return "no calibration"
    return f"{result.num_sequences:,} sequences, {result.num_tokens:,} tokens"


class ResultsSide(QStackedWidget):
    """Shows one view at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.run_view, self.made = RunView(), MadeView()
        self.report, self.comparison = ReportView(), ComparisonView()
        self.hint = wrapped("muted")
        self.hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty = QFrame()
        self._empty.setProperty("panel", True)
        wide = 2 * SPACE_4
        vbox(self.hint, of=self._empty, margins=(wide, wide, wide, wide))
        for view in (self._empty, self.run_view, self.made, self.report, self.comparison):
            self.addWidget(view)
        self.currentChanged.connect(self.updateGeometry)

    def minimumSizeHint(self) -> QSize:
        """Of the current view only."""
        shown = self.currentWidget()
        return super().minimumSizeHint() if shown is None else shown.minimumSizeHint()

    def show_hint(self, text: str) -> None:
        """Show a hint in the empty panel."""
        self.hint.setText(text)
        self.setCurrentWidget(self._empty)

    def show_run(self, run: Run) -> None:
        self.run_view.show_run(run)
        self.setCurrentWidget(self.run_view)

    def show_made(self) -> None:
        """Show the last new model."""
        self.setCurrentWidget(self.made)

    def show_report(self, stored: StoredReport, made: Made) -> None:
        self.report.show_report(stored, made)
        self.setCurrentWidget(self.report)

    def show_reports(self, stored: Sequence[StoredReport]) -> None:
        """Compare several reports."""
        self.comparison.show_reports(stored)
        self.setCurrentWidget(self.comparison)
