"""One report: tiles, all figures, layer errors, highest divergence, answers."""

from __future__ import annotations

from PySide6.QtCore import Signal, SignalInstance
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QPushButton,
    QSizePolicy,
    QWidget,
)

from app.features.quantize.examples import AnswersView, WorstView
from app.features.quantize.figures import FigureGrid, TileGrid, report_rows, tiles_of
from app.features.quantize.kept_reports import Made, subtitle
from app.features.quantize.layers import LayersPanel
from app.storage.report_store import StoredReport
from widgets.controls.buttons import ButtonRows
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6

WIDE = 860
"""Pixels from which figures and layers are side by side."""


class ReportView(QFrame):
    """Signals (StoredReport) when a button is pressed."""

    open_wanted = Signal(object)
    compare_wanted = Signal(object)
    export_wanted = Signal(object)
    delete_wanted = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Report")
        self.stored: StoredReport | None = None
        self.made = Made()
        self.can_compare = False  # set where the window has a comparison
        self.title = title_line(hugs=False)
        self.about = ElidedLine("text_muted")
        self.tiles = TileGrid()
        self.figures = FigureGrid("All figures", 60)
        self.layers = LayersPanel()
        self.worst = WorstView()
        self.answers = AnswersView()
        self.notices = wrapped("warning")
        self._make_buttons()
        self._arrange()

    def _make_buttons(self) -> None:
        def act(text: str, signal: SignalInstance, tip: str, kind: str = "") -> QPushButton:
            return button(text, lambda: signal.emit(self.stored), tip, kind)

        self.open = act("Open model", self.open_wanted, "Load the model for chat", "primary")
        self.compare = act(
            "Compare in chat",
            self.compare_wanted,
            "Send prompts to the reference and to this model",
        )
        self.copy = button(
            "Copy command line", self.copy_command, "Copy the commands that repeat this"
        )
        self.export = act("Export…", self.export_wanted, "As JSON, CSV or Markdown")
        self.delete = act("Delete", self.delete_wanted, "Delete the report (you can undo this)")
        self.compare.hide()

    def _arrange(self) -> None:
        self.buttons = ButtonRows((self.open, self.compare, self.copy, self.export, self.delete))
        head = vbox(
            self.title, self.about, SPACE_1, self.buttons,
            spacing=SPACE_1, margins=(SPACE_4, SPACE_3, SPACE_4, SPACE_2),
        )  # fmt: skip
        self._both = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._both.setSpacing(SPACE_6)
        self._both.addLayout(vbox(self.figures, STRETCH, spacing=-1), 1)
        self._both.addWidget(self.layers, 1)
        content = QWidget()
        content.setProperty("bare", True)
        content.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        vbox(
            self.tiles, self.notices, self._both, self.worst, self.answers, STRETCH,
            of=content, spacing=SPACE_4, margins=(SPACE_4, SPACE_1, SPACE_4, SPACE_4),
        )  # fmt: skip
        self.area = scroll_area(content, "Report")
        scroll_by_keys(self.area)
        vbox(head, (self.area, 1), of=self, spacing=0, margins=(0, 0, 0, SPACE_1))

    def show_report(self, stored: StoredReport, made: Made) -> None:
        """Show a report, scrolled to its top."""
        self.stored, self.made = stored, made
        report = stored.report
        self.title.set_text(stored.name)
        self.about.set_text(subtitle(report))
        self.tiles.show_tiles(tiles_of(report))
        self.figures.show_rows(*report_rows(report))
        self.layers.setVisible(bool(made.layers))
        self.layers.show_rows(made.layers)
        self.worst.show_worst(report.worst)
        self.answers.show_answers(report.answers)
        self.notices.setText("\n".join(report.notices))
        self.notices.setVisible(bool(report.notices))
        self.copy.setVisible(bool(made.commands))
        self.compare.setVisible(self.can_compare and report.reference is not None)
        self.buttons.arrange()
        self.area.verticalScrollBar().setValue(0)

    def copy_command(self) -> None:
        QGuiApplication.clipboard().setText("\n".join(self.made.commands))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        sides = QBoxLayout.Direction
        is_wide = self.width() >= WIDE
        self._both.setDirection(sides.LeftToRight if is_wide else sides.TopToBottom)
