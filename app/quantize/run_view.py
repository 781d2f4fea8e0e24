"""A run in progress: what is being done, how far it is, what the layers lost so far, a way out."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.quantize.layers import rows_of
from app.quantize.layers_panel import LayersPanel
from app.quantize.run import Run, RunFigures
from widgets.elided_line import ElidedLine, title_line
from widgets.theme import SPACE_2, SPACE_3, SPACE_4, figure_font

HIGHEST = 420
"""Pixels of the layers: bars that are higher say no more."""


class RunView(QFrame):
    """`cancel_wanted` when its button is pressed."""

    cancel_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Run")
        self.title = title_line(hugs=False)
        self.stage = ElidedLine("text_muted")
        self.figures = QLabel()
        self.figures.setProperty("role", "muted")
        self.figures.setFont(figure_font())
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 1000)
        self.bar.setAccessibleName("Progress")
        self.cancel = QPushButton("Cancel")
        self.cancel.setToolTip("Stop; nothing half-written stays behind (Esc)")
        self.cancel.clicked.connect(self.cancel_wanted)
        self.layers = LayersPanel()
        self.layers.setMaximumHeight(HIGHEST)
        self._hint = QLabel("The chat goes on meanwhile, a little slower.")
        self._hint.setProperty("role", "small")
        self._arrange()

    def _arrange(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(SPACE_3)
        head.addWidget(self.title, 1)
        head.addWidget(self.figures)
        head.addWidget(self.cancel)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_3, SPACE_4, SPACE_3)
        column.setSpacing(SPACE_2)
        column.addLayout(head)
        column.addWidget(self.bar)
        column.addWidget(self.stage)
        column.addSpacing(SPACE_2)
        column.addWidget(self.layers, 1)
        column.addStretch(1)
        column.addWidget(self._hint)

    def show_run(self, run: Run) -> None:
        """How far it is now."""
        shown: RunFigures = run.figures()
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
