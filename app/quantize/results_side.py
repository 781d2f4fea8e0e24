"""The right half of the Quantize page: a run, what it made, reports, or what will come here."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QFrame, QStackedWidget, QVBoxLayout

from app.quality.store import StoredReport
from app.quantize.comparison_view import ComparisonView
from app.quantize.fields import wrapped
from app.quantize.keeping import Made
from app.quantize.made_view import MadeView
from app.quantize.report_view import ReportView
from app.quantize.run import Run
from app.quantize.run_view import RunView
from widgets.theme import SPACE_4


class ResultsSide(QStackedWidget):
    """One of its views at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.run_view, self.made = RunView(), MadeView()
        self.report, self.comparison = ReportView(), ComparisonView()
        self.hint = wrapped("muted")
        self.hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty = QFrame()
        self._empty.setProperty("panel", True)
        inside = QVBoxLayout(self._empty)
        inside.setContentsMargins(*(4 * (2 * SPACE_4,)))
        inside.addWidget(self.hint)
        for view in (self._empty, self.run_view, self.made, self.report, self.comparison):
            self.addWidget(view)
        self.currentChanged.connect(self.updateGeometry)

    def minimumSizeHint(self) -> QSize:
        """Of what is shown: views that wait take no room from the form."""
        shown = self.currentWidget()
        return super().minimumSizeHint() if shown is None else shown.minimumSizeHint()

    def show_hint(self, text: str) -> None:
        """What will appear, and how."""
        self.hint.setText(text)
        self.setCurrentWidget(self._empty)

    def show_run(self, run: Run) -> None:
        self.run_view.show_run(run)
        self.setCurrentWidget(self.run_view)

    def show_made(self) -> None:
        """The model that was made last."""
        self.setCurrentWidget(self.made)

    def show_report(self, stored: StoredReport, made: Made) -> None:
        self.report.show_report(stored, made)
        self.setCurrentWidget(self.report)

    def show_reports(self, stored: Sequence[StoredReport]) -> None:
        """Several, side by side."""
        self.comparison.show_reports(stored)
        self.setCurrentWidget(self.comparison)
