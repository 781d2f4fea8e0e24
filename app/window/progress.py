"""Progress of loading and of jobs, above the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.units import format_bytes
from engine.messages import LoadProgress
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, restyle


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
        self._bar.setAccessibleName("Loading progress")
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
        """Loading began; its size is unknown yet."""
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


MAX_ROWS = 3
Tone = Literal["muted", "error"]


@dataclass(frozen=True, slots=True)
class Work:
    """A job. title: its subject; stage: its current step; figures: progress with units; fraction: 0
    to 1, None if unknown; moving: whether it runs; actions: (text, callback)."""

    key: str
    title: str
    stage: str = ""
    figures: str = ""
    fraction: float | None = None
    moving: bool = True
    tone: Tone = "muted"
    actions: tuple[tuple[str, Callable[[], object]], ...] = ()

    @property
    def text(self) -> str:
        """All of it as one sentence."""
        return ", ".join(part for part in (self.title, self.stage, self.figures) if part)


class WorkArea(QWidget):
    """Rows of jobs; hidden while there is none."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: dict[str, WorkRow] = {}
        self._more = QLabel()
        self._more.setProperty("role", "small")
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACE_2)
        self._layout.addWidget(self._more)
        self._arrange()

    def show_work(self, work: Work) -> None:
        """Add or update a row."""
        if work.key not in self._rows:
            self._rows[work.key] = WorkRow()
            self._layout.insertWidget(self._layout.count() - 1, self._rows[work.key])
        self._rows[work.key].show_work(work)
        self._arrange()

    def end(self, key: str) -> None:
        """Remove the row of this key, if there is one."""
        row = self._rows.pop(key, None)
        if row is not None:
            row.rest()
            row.hide()
            row.deleteLater()
            self._arrange()

    @property
    def works(self) -> list[Work]:
        """All jobs in order, shown or counted."""
        return [row.work for row in self._rows.values() if row.work is not None]

    def row(self, key: str) -> WorkRow:
        return self._rows[key]

    def _arrange(self) -> None:
        for place, row in enumerate(self._rows.values()):
            row.setVisible(place < MAX_ROWS)
        left = len(self._rows) - MAX_ROWS
        self._more.setText(f"{left} more on the Models page")
        self._more.setVisible(left > 0)
        self.setVisible(bool(self._rows))


class WorkRow(QFrame):
    """One job."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Work | None = None
        self.buttons: list[QPushButton] = []
        self.setProperty("notice", "info")
        self._title = QLabel()
        self._title.setProperty("role", "title")
        self._stage = ElidedLine("text_muted")
        self._figures = QLabel()
        self._figures.setProperty("role", "muted")
        self._figures.setFont(figure_font())
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self.rest()
        self._error = QLabel()
        self._error.setProperty("role", "error")
        self._error.setTextFormat(Qt.TextFormat.PlainText)
        self._error.setWordWrap(True)
        self._error.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._error.hide()
        words = QHBoxLayout()
        words.setSpacing(SPACE_2)
        words.addWidget(self._title)
        words.addWidget(self._stage, 1)
        words.addWidget(self._figures)
        column = QVBoxLayout()
        column.setSpacing(SPACE_1)
        column.addLayout(words)
        column.addWidget(self._bar)
        column.addWidget(self._error)
        self._actions = QHBoxLayout()
        self._actions.setSpacing(SPACE_2)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        layout.setSpacing(SPACE_3)
        layout.addLayout(column, 1)
        layout.addLayout(self._actions)

    def show_work(self, work: Work) -> None:
        before, self.work = self.work, work
        self._title.setText(work.title)
        failed = work.tone == "error"  # a cause is read whole, below the title
        self._stage.set_text("" if failed else work.stage)
        self._error.setText(work.stage if failed else "")
        self._error.setToolTip(self._error.text())  # a small window may cut it
        self._error.setVisible(failed)
        self._figures.setText(work.figures)
        self._bar.setAccessibleName(f"Progress: {work.text}")
        self._show_fraction(work)
        if before is None or before.tone != work.tone:
            restyle(self, notice="error" if failed else "info")
        if before is None or [t for t, _ in before.actions] != [t for t, _ in work.actions]:
            self._make_buttons(work)

    def rest(self) -> None:
        """An indeterminate bar animates, which costs time even when it is hidden."""
        self._bar.setRange(0, 1000)

    def _show_fraction(self, work: Work) -> None:
        has_bar = work.moving or work.fraction is not None
        self._bar.setVisible(has_bar and work.tone != "error")
        if work.fraction is None and work.moving:
            self._bar.setRange(0, 0)
        else:
            self._bar.setRange(0, 1000)
            self._bar.setValue(round(1000 * (work.fraction or 0.0)))

    def _make_buttons(self, work: Work) -> None:
        for button in self.buttons:
            button.hide()
            button.deleteLater()
        self.buttons = []
        for place, (text, _) in enumerate(work.actions):
            button = QPushButton(text)
            button.setAccessibleName(f"{text}: {work.title}")
            button.clicked.connect(lambda _=False, at=place: self._act(at))
            self._actions.addWidget(button)
            self.buttons.append(button)

    def _act(self, place: int) -> None:
        if self.work is not None and place < len(self.work.actions):
            self.work.actions[place][1]()
