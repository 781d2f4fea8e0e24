"""Progress of loading and of jobs, above the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

from engine.messages import LoadProgress
from engine.units import progress_text
from widgets.controls.layouts import button, hbox, label, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.controls.progress_bar import ProgressBar
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, restyle

MAX_ROWS, MOST_OF_WINDOW = 3, 0.16
"""Rows that are shown at once, and their height as a share of the window; at least one is."""
FOLD_MS = 10_000
"""A finished job is shown so long; its page and the message list keep it."""
Tone = Literal["muted", "error"]


@dataclass(frozen=True, slots=True)
class Work:
    """A job. title: its subject; stage: its current step; figures: progress with units; fraction: 0
    to 1, None if unknown; moving: whether it runs; actions: (text, callback); page: where it also
    is, "" if nowhere; is_done: it succeeded."""

    key: str
    title: str
    stage: str = ""
    figures: str = ""
    fraction: float | None = None
    moving: bool = True
    tone: Tone = "muted"
    actions: tuple[tuple[str, Callable[[], object]], ...] = ()
    page: str = ""
    is_done: bool = False

    @property
    def text(self) -> str:
        return ", ".join(part for part in (self.title, self.stage, self.figures) if part)


class WorkArea(QWidget):
    """Rows of jobs; hidden while there is none."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: dict[str, WorkRow] = {}
        self._more = label(role="small")
        self._layout = vbox(self._more, of=self)
        self._arrange()

    def show_work(self, work: Work) -> None:
        if work.key not in self._rows:
            self._rows[work.key] = row = WorkRow()
            row.folded.connect(partial(self.end, work.key))
            self._layout.insertWidget(self._layout.count() - 1, row)
        self._rows[work.key].show_work(work)
        self._arrange()

    def end(self, key: str) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            row.hide()
            row.deleteLater()
            self._arrange()

    @property
    def works(self) -> list[Work]:
        """All jobs in order, visible or only counted."""
        return [row.work for row in self._rows.values() if row.work is not None]

    def row(self, key: str) -> WorkRow:
        return self._rows[key]

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        room, most = MOST_OF_WINDOW * self.window().height(), 0
        for row in list(self._rows.values())[:MAX_ROWS]:
            room -= row.sizeHint().height() + SPACE_2
            most += room >= 0 or not most
        for place, row in enumerate(self._rows.values()):
            row.setVisible(place < most)
        left = self.works[most:]
        places = dict.fromkeys(f"{one.page} page" if one.page else one.title for one in left)
        self._more.setText(f"{len(left)} more: {', '.join(places)}")
        self._more.setVisible(bool(left))
        self.setVisible(bool(self._rows))


class WorkRow(QFrame):
    """`folded`: its job succeeded a while ago, and nobody is at its buttons."""

    folded = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._fold = QTimer(self, interval=FOLD_MS)
        self._fold.timeout.connect(self._on_fold)
        self.work: Work | None = None
        self.buttons: list[QPushButton] = []
        self.setProperty("notice", "info")
        self._title = title_line()
        self._stage = ElidedLine("text_muted")
        self._figures = label(role="muted")
        self._figures.setFont(figure_font())
        self._bar = ProgressBar()
        self._error = wrapped("error")
        self._error.hide()
        words = hbox(self._title, (self._stage, 1), self._figures)
        column = vbox(words, self._bar, self._error, spacing=SPACE_1)
        self._actions = hbox()
        margins = (SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        hbox((column, 1), self._actions, of=self, spacing=SPACE_3, margins=margins)

    def show_work(self, work: Work) -> None:
        before, self.work = self.work, work
        self._title.set_text(work.title)
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
        if not work.is_done:
            self._fold.stop()
        elif not self._fold.isActive():
            self._fold.start()

    def _on_fold(self) -> None:
        if not (self.underMouse() or any(one.hasFocus() for one in self.buttons)):
            self.folded.emit()

    def _show_fraction(self, work: Work) -> None:
        has_bar = work.moving or work.fraction is not None
        self._bar.setVisible(has_bar and work.tone != "error")
        self._bar.show_fraction(work.fraction)

    def _make_buttons(self, work: Work) -> None:
        for old in self.buttons:
            old.hide()
            old.deleteLater()
        self.buttons = []
        for place, (text, _) in enumerate(work.actions):
            made = button(text, partial(self._act, place))
            made.setAccessibleName(f"{text}: {work.title}")
            self._actions.addWidget(made)
            self.buttons.append(made)

    def _act(self, place: int) -> None:
        if self.work is not None and place < len(self.work.actions):
            self.work.actions[place][1]()


class LoadStrip(WorkRow):
    """Progress of a model that is loading, beside the header; hidden while none is."""

    cancelled = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        self.hide()

    def begin(self, title: str) -> None:
        """Show a load whose size is not known yet."""
        self.work = None  # a new button to cancel
        cancel = ("Cancel", self.cancelled.emit)
        self.show_work(Work("load", title, "Starting the engine", actions=(cancel,)))
        self.show()

    def update_progress(self, progress: LoadProgress) -> None:
        assert self.work is not None
        figures, fraction = "", None
        if progress.total:
            figures = progress_text(progress.done, progress.total)
            fraction = progress.done / progress.total
        self.show_work(replace(self.work, stage=progress.stage, figures=figures, fraction=fraction))

    def end(self) -> None:
        self.hide()

    def _act(self, place: int) -> None:
        self.buttons[place].setText("Cancelling")
        self.buttons[place].setEnabled(False)
        self.cancelled.emit()
