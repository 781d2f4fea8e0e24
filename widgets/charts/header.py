"""The first line of a chart: its title, the legend, and a note where there is room for it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from widgets.charts.legend import Legend
from widgets.charts.note_label import NoteLabel
from widgets.charts.series import Series
from widgets.elided_line import title_line
from widgets.theme import SPACE_3


class ChartHeader(QWidget):
    """Gives way in this order: the note, then the names in the legend, then the title."""

    def __init__(self, title: str, series: Sequence[Series], parent: QWidget) -> None:
        super().__init__(parent)
        self._title = title_line(title)
        self.legend = Legend(series, self)
        self._note = NoteLabel(self)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, 0, SPACE_3, 0)
        row.setSpacing(SPACE_3)
        row.addWidget(self._title)
        row.addWidget(self.legend)
        row.addWidget(self._note, 1)

    @property
    def note(self) -> str:
        return self._note.text()

    def set_note(self, text: str) -> None:
        self._note.set_text(text)
        self._title.setToolTip(f"{self._title.text()}\n{text}" if text else self._title.text())

    def fit(self) -> None:
        """Give the legend the room that the title leaves."""
        self.legend.fit(self.width() - self._title.sizeHint().width() - 4 * SPACE_3)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()
