"""What happened, for all charts together: settings that were changed, loads, models."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from widgets.charts.series import Mark

MAX_MARKS = 64


class MarkLog(QObject):
    """The last `MAX_MARKS` marks in the order in which they were made. Charts that share a log
    show the same marks; the log outlives what is drawn."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._marks: tuple[Mark, ...] = ()

    @property
    def marks(self) -> tuple[Mark, ...]:
        return self._marks

    def add(self, mark: Mark) -> None:
        self._marks = (*self._marks[1 - MAX_MARKS :], mark)
        self.changed.emit()

    def clear(self) -> None:
        if self._marks:
            self._marks = ()
            self.changed.emit()
