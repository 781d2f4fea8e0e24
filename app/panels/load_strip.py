"""What loading does, how far it is, and the way out. Stands above the page while it lasts."""

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

from app.units import format_bytes
from engine.messages import LoadProgress
from widgets.elided_line import ElidedLine, title_line
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, figure_font


class LoadStrip(QFrame):
    cancelled = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("notice", "info")
        self._title = title_line()
        self._stage = ElidedLine("text_muted", "body", hugs=True)
        self._figures = QLabel()
        self._figures.setProperty("role", "muted")
        self._figures.setFont(figure_font())
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setAccessibleName("Progress of loading")
        self._cancel = QPushButton("Cancel")
        self._cancel.clicked.connect(self._on_cancel)
        words = QHBoxLayout()
        words.setSpacing(SPACE_2)
        words.addWidget(self._title)
        words.addWidget(self._stage)
        words.addStretch(1)
        words.addWidget(self._figures)
        column = QVBoxLayout()
        column.setSpacing(SPACE_1)
        column.addLayout(words)
        column.addWidget(self._bar)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        layout.setSpacing(SPACE_3)
        layout.addLayout(column, 1)
        layout.addWidget(self._cancel)
        self.hide()

    def begin(self, title: str) -> None:
        """Loading began: nothing is known of its size yet."""
        self._title.set_text(title)
        self._stage.set_text("starting the engine")
        self._figures.setText("")
        self._bar.setRange(0, 0)
        self._cancel.setText("Cancel")
        self._cancel.setEnabled(True)
        self.show()

    def update_progress(self, progress: LoadProgress) -> None:
        self._stage.set_text(progress.stage)
        if progress.total:
            done, total = format_bytes(progress.done), format_bytes(progress.total)
            self._figures.setText(f"{done} of {total}")
            self._bar.setRange(0, 1000)
            self._bar.setValue(round(1000 * progress.done / progress.total))
        else:
            self._figures.setText("")
            self._bar.setRange(0, 0)

    def end(self) -> None:
        # An indeterminate bar animates, which costs time even when it is hidden.
        self._bar.setRange(0, 1000)
        self.hide()

    def _on_cancel(self) -> None:
        self._cancel.setText("Cancelling")
        self._cancel.setEnabled(False)
        self.cancelled.emit()
