"""`RecordingsPanel`: the saved recordings, and saving the last minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.features.recording.shelf import StoredRecording
from engine.units import bytes_text, duration_text
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import STRETCH, button, centered, dressed, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.notice import Toast
from widgets.controls.tables import SmallFigures, dress_table
from widgets.theme.theme import SPACE_2, SPACE_3

EMPTY = (
    "No saved recordings. The last minutes are always recorded: save them to replay steps, "
    "requests and settings."
)
SPANS: tuple[tuple[str, float | None], ...] = (
    ("last minute", 60.0), ("last 5 min", 300.0), ("last 15 min", 900.0), ("everything", None),
)  # fmt: skip
_HEADINGS = ("Recorded", "Model", "Length", "Size", "File")


class RecordingsPanel(QWidget):
    """`shown`: the list may be old. `save_wanted(seconds or None)`, `open_wanted(StoredRecording)`,
    `delete_wanted(list)`; `file_wanted`: open another file. `state`: what is recorded and not
    saved, as text; "" for nothing."""

    shown = Signal()
    save_wanted = Signal(object)
    open_wanted = Signal(object)
    delete_wanted = Signal(object)
    file_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Recordings")
        self.state: Callable[[], str] = lambda: ""
        self._recordings: list[StoredRecording] = []
        self.span = dressed(QComboBox(), "Length", "Length of the recording to save")
        self.span.addItems([text for text, _ in SPANS])
        self.span.setCurrentIndex(len(SPANS) - 1)
        self.save = button("Save recording", self._save)
        self.open = button("Open", self._open, "Replay the selected recording (Enter)")
        self.delete = button("Delete", self._delete, "Delete the selected recording (Delete)")
        tip = "Replay a recording from another folder"
        other = button("Open file…", self.file_wanted.emit, tip)
        self.note = ElidedLine("text_muted")
        self.table = self._make_table()
        self._stack = stack(centered(EMPTY), self.table)
        self.toast = Toast(self)
        vbox(
            hbox(self.save, self.span, (self.note, 1), other),
            (self._stack, 1),
            hbox(self.open, self.delete, STRETCH),
            of=self, spacing=SPACE_2, margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip
        self.show_recordings([])

    def _make_table(self) -> QTableWidget:
        table = QTableWidget(0, len(_HEADINGS))
        dress_table(table, "Recordings")
        SmallFigures(table)
        table.setHorizontalHeaderLabels(_HEADINGS)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        header = table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setStretchLastSection(True)
        table.itemSelectionChanged.connect(self._show_buttons)
        table.doubleClicked.connect(lambda index: self._open())
        LocalKeys(table, {"Return": self._open, "Enter": self._open, "Del": self._delete})
        return table

    # Showing -----------------------------------------------------------------------------------

    def show_recordings(self, recordings: Sequence[StoredRecording]) -> None:
        self._recordings = list(recordings)
        self._stack.setCurrentIndex(1 if recordings else 0)
        self.table.setRowCount(len(recordings))
        for row, one in enumerate(recordings):
            length = duration_text(one.seconds)
            texts = (one.created.replace("T", " "), one.model, length, bytes_text(one.size))
            for column, text in enumerate((*texts, one.path.name)):
                item = QTableWidgetItem(text)
                item.setToolTip(str(one.path) if column == len(texts) else text)
                self.table.setItem(row, column, item)
        self._show_buttons()

    def show_state(self) -> None:
        """The length that is recorded now."""
        text = self.state()
        self.note.set_text(text)
        self.save.setEnabled(bool(text))
        tip = "Save to the list of recordings" if text else "Nothing is recorded yet"
        self.save.setToolTip(tip)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.show_state()
        self.shown.emit()

    def _show_buttons(self) -> None:
        for each in (self.open, self.delete):
            each.setVisible(bool(self._recordings))
            each.setEnabled(self._selected is not None)

    # What one can do ---------------------------------------------------------------------------

    @property
    def _selected(self) -> StoredRecording | None:
        rows = self.table.selectionModel().selectedRows()
        return self._recordings[rows[0].row()] if rows else None

    def _save(self) -> None:
        self.save_wanted.emit(SPANS[self.span.currentIndex()][1])

    def _open(self) -> None:
        if self._selected is not None:
            self.open_wanted.emit(self._selected)

    def _delete(self) -> None:
        if self._selected is not None:
            self.delete_wanted.emit([self._selected])
