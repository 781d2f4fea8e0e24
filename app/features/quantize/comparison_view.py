"""Comparison of reports: one metric as bars, all metrics as a table."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QLabel,
    QWidget,
)

from app.features.quantize.figures import FigureGrid, comparison_rows, value_text
from app.storage.report_export import as_markdown
from app.storage.report_metrics import Comparison, compare
from app.storage.report_store import StoredReport
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.quality.value_bars import ValueBar, ValueBars
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4

FIRST_METRIC = "kl_mean"


class ComparisonView(QFrame):
    """`export_wanted(reports)` when its button is pressed."""

    export_wanted = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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
        self.bars = ValueBars("Reports by metric")
        self.fit.toggled.connect(self.bars.set_fit)
        self.table = FigureGrid("Reports by all metrics", 230)
        self.copy = button("Copy", self.copy_table, "Copy as Markdown table")
        self.export = button(
            "Export…", lambda: self.export_wanted.emit(self.reports), "As JSON, CSV or Markdown"
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
        """At least two; the first is the baseline."""
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
