"""The right side of the page: job progress, new model, report or comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QFrame, QLabel, QProgressBar, QStackedWidget, QWidget

from app.features.quantize.figures import (
    FigureGrid,
    Tile,
    TileGrid,
    comparison_rows,
    percent,
    value_text,
)
from app.features.quantize.layers import LayersPanel, rows_of
from app.features.quantize.plan import recipe_label
from app.features.quantize.report_view import ReportView
from app.features.quantize.run import Run, elapsed
from app.storage.report_export import as_markdown
from app.storage.report_metrics import Comparison, compare
from app.storage.report_store import StoredReport
from engine.units import bytes_text
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.quality.bars import ValueBar, ValueBars
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font

if TYPE_CHECKING:
    from engine.quantize.recipe import QuantizeResult


FIRST_METRIC = "kl_mean"


class ComparisonView(QFrame):
    """Several reports side by side. `export_wanted(reports)` when its button is pressed."""

    export_wanted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("Report comparison")
        self.reports: list[StoredReport] = []
        self.found: Comparison | None = None
        self.title = QLabel()
        self.title.setProperty("role", "title")
        self.cautions = wrapped("warning")
        self.chooser = ElidedCombo()
        self.chooser.setAccessibleName("Metric")
        self.chooser.currentIndexChanged.connect(lambda *_: self._draw())
        self.fit = QCheckBox("Fit axis")
        self.fit.setToolTip("Start the axis near the lowest value instead of zero")
        self.bars = ValueBars("Selected metric for each report")
        self.fit.toggled.connect(self.bars.set_fit)
        self.table = FigureGrid("All metrics for each report", 230)
        self.copy = button("Copy", self.copy_table, "Copy as Markdown table")
        self.export = button(
            "Export…", lambda: self.export_wanted.emit(self.reports), "JSON, CSV or Markdown"
        )
        self._arrange()

    def _arrange(self) -> None:
        head = hbox((self.title, 1), self.copy, self.export)
        choice = hbox(self.chooser, self.fit, STRETCH, spacing=SPACE_3)
        content = QWidget()
        content.setProperty("bare", True)
        vbox(self.table, STRETCH, of=content, spacing=SPACE_3, margins=(0, 0, SPACE_2, 0))
        area = scroll_area(content, "Comparison")
        # wider than the window where many are compared
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        scroll_by_keys(area)
        vbox(
            head, self.cautions, choice, self.bars, (area, 1),
            of=self, spacing=SPACE_3, margins=(SPACE_4, SPACE_3, SPACE_2, SPACE_3),
        )  # fmt: skip

    def show_reports(self, reports: Sequence[StoredReport]) -> None:
        """Compare two or more; the first is the baseline."""
        self.reports = list(reports)
        found = self.found = compare([s.report for s in reports], [s.name for s in reports])
        self.title.setText(f"{len(reports)} reports")
        self.cautions.setText("\n".join(found.cautions))
        self.cautions.setVisible(bool(found.cautions))
        chosen = self.chooser.currentData() or FIRST_METRIC
        with QSignalBlocker(self.chooser):
            self.chooser.clear()
            for row in found.rows:
                self.chooser.addItem(row.metric.label, row.metric.key)
            self.chooser.setCurrentIndex(max(0, self.chooser.findData(chosen)))
        self.table.show_rows(*comparison_rows(found))
        self._draw()

    def copy_table(self) -> None:
        reports = [stored.report for stored in self.reports]
        QGuiApplication.clipboard().setText(as_markdown(reports))

    def _draw(self) -> None:
        found = self.found
        if found is None or self.chooser.currentIndex() < 0:
            return
        row = found.rows[self.chooser.currentIndex()]
        self.bars.show_bars(
            [
                ValueBar(title, value, value_text(row.metric, value), place in row.best)
                for place, (title, value) in enumerate(zip(found.titles, row.values, strict=True))
            ]
        )
        self.bars.setToolTip(
            {-1: "Lower is better", 1: "Higher is better"}.get(row.metric.better, "")
        )


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
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 1000)
        self.bar.setAccessibleName("Progress")
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
        """Stop the indeterminate bar: it animates, which costs time even when hidden."""
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
