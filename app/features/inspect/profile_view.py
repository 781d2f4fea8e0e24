"""`ProfileView`: the operations of profiled steps, on a roofline and in a table."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFileDialog, QMessageBox, QSizePolicy, QWidget

from app.link.tasks import run_task
from engine.errors import ErrorInfo
from engine.hardware.peaks import Peaks
from engine.messages import StepsProfiled
from engine.snapshot.profile import Operation, StepsProfile
from engine.telemetry.profile import HEADINGS, bound_text, cells, raised, roof_text
from engine.units import (
    bandwidth_text,
    compute_text,
    counted,
    duration_text,
    figure,
    percent_text,
    short_figure,
)
from widgets.controls.figure_table import FigureRow, FigureTable
from widgets.controls.layouts import Label, button, dressed, hbox, vbox
from widgets.plot.roofline_plot import RoofDot, RooflinePlot
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme_notifier

LEAST_PLOT = 150
"""Least height of the roofline at the default text size; the table scrolls."""
_KINDS = "Chrome trace (*.json);;Compressed Chrome trace (*.json.gz)"


class ProfileView(QWidget):
    """`closed`: back to the breakdown."""

    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._event = StepsProfiled()
        self._peaks: Peaks | None = None
        self.heading = dressed(Label(wordWrap=True), role="title")
        self.kind = dressed(QComboBox(), "Profiled steps")
        self.kind.currentIndexChanged.connect(lambda index: self._show())
        self.export = button(
            "Export trace…", self._export,
            "Save a Chrome trace, for ui.perfetto.dev or chrome://tracing",
        )  # fmt: skip
        self.back = button("Back", self.closed.emit, "Back to the step time breakdown")
        self.plot = RooflinePlot("Roofline")
        self.table: FigureTable[Operation | None] = FigureTable("Operations per step")
        self.table.setSizeAdjustPolicy(FigureTable.SizeAdjustPolicy.AdjustToContents)
        self.table.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        vbox(
            hbox((self.heading, 1), self.kind, self.export, self.back, spacing=SPACE_2),
            (self.plot, 1), self.table, of=self, spacing=SPACE_1,
            margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip
        self._fit()
        theme_notifier().changed.connect(self._fit)

    def _fit(self) -> None:
        self.plot.setMinimumHeight(scaled(LEAST_PLOT))

    def show_profile(self, event: StepsProfiled, peaks: Peaks) -> None:
        self._event, self._peaks = event, raised(peaks, event.profiles)
        self.export.setEnabled(bool(event.trace))
        self.kind.blockSignals(True)
        self.kind.clear()
        self.kind.addItems([f"{one.kind.capitalize()} steps" for one in event.profiles])
        most = max(event.profiles, key=lambda one: one.seconds)
        self.kind.setCurrentIndex(event.profiles.index(most))
        self.kind.setVisible(len(event.profiles) > 1)
        self.kind.blockSignals(False)
        self._show()

    def _show(self) -> None:
        index = self.kind.currentIndex()
        if self._peaks is None or not 0 <= index < len(self._event.profiles):
            return
        one, peaks = self._event.profiles[index], self._peaks
        steps = f"{counted(one.num_steps, f'{one.kind} step')}"
        tokens = short_figure(one.num_tokens / one.num_steps)
        step = duration_text(one.seconds / one.num_steps)
        self.heading.setText(f"{steps} of {tokens} tokens, {step} per step")
        dots = [_dot(each, one, peaks) for each in one.operations]
        self.plot.show_dots(dots, peaks.read_bytes_per_s, peaks.flops_per_s)
        rows: list[FigureRow[Operation | None]] = [
            FigureRow(each, texts, tone="muted" if each is None else "")
            for each, texts in zip((*one.operations, None), cells(one, peaks), strict=True)
        ]
        self.table.show_rows(HEADINGS, rows)

    def _export(self) -> None:
        name, _ = QFileDialog.getSaveFileName(self, "Export trace", "steps.json", _KINDS)
        if not name:
            return
        save = partial(self.save_trace, Path(name))
        run_task(self, save, lambda _: None, self._on_unsaved)

    def _on_unsaved(self, error: ErrorInfo) -> None:
        QMessageBox.warning(self, "Export trace", f"Cannot save the trace: {error}")

    def save_trace(self, file: Path) -> None:
        """Compressed if the name ends in .gz. Raises OSError."""
        trace = self._event.trace
        file.write_bytes(trace if file.suffix == ".gz" else gzip.decompress(trace))


def _dot(each: Operation, one: StepsProfile, peaks: Peaks) -> RoofDot:
    bound, share = bound_text(each, peaks), each.seconds / one.seconds
    lines = (
        each.name,
        f"{duration_text(each.seconds / one.num_steps)} per step, {percent_text(share)} of it",
        f"{bandwidth_text(each.bytes_per_s)}, {compute_text(each.operations_per_s)}",
        f"{figure(each.intensity, 3)} FLOP per byte: {bound}-bound",
        f"Of the roof: {roof_text(each, peaks)}",
    )
    return RoofDot(each.intensity, each.operations_per_s, share, bound == "compute", lines)
