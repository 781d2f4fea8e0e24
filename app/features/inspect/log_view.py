"""`LogPanel`: the program's log, filtered by level and text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from PySide6.QtCore import QModelIndex, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QFrame,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QStackedLayout,
    QTableView,
    QWidget,
)

from app.log import MAX_LINES, LogBuffer, LogLine
from widgets.controls.layouts import button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import FittedColumns, Index, RowTable, SmallFigures, dress_table
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, mono_font, theme

EMPTY_TEXT = "The log is empty. Model loads, setting changes and errors appear here."
NO_MATCH = "No matching lines. Change the level or the filter."
LEVELS = (("All levels", logging.NOTSET), ("Warnings and errors", logging.WARNING),
          ("Errors", logging.ERROR))  # fmt: skip
_SAMPLES = ("00:00:00.000", "CRITICAL", "app.features.models.session")
_COLORS = {logging.WARNING: "warning", logging.ERROR: "danger", logging.CRITICAL: "danger"}
_DETAILS_HEIGHT = 110


class LogModel(RowTable[LogLine]):
    """The last `MAX_LINES` lines, newest last."""

    HEADINGS = ("Time", "Level", "Source", "Message")

    @property
    def lines(self) -> list[LogLine]:
        return self._rows

    def add(self, lines: Sequence[LogLine]) -> None:
        too_many = min(len(self.lines), max(0, len(self.lines) + len(lines) - MAX_LINES))
        if too_many:
            self.beginRemoveRows(QModelIndex(), 0, too_many - 1)
            del self.lines[:too_many]
            self.endRemoveRows()
        if lines:
            first = len(self.lines)
            self.beginInsertRows(QModelIndex(), first, first + len(lines) - 1)
            self._rows += lines
            self.endInsertRows()

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        line = self.lines[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return _cells(line)[index.column()]
        if role == Qt.ItemDataRole.ForegroundRole and index.column() == 1:
            color = _COLORS.get(line.level)
            return theme().color(color) if color else None
        if role == Qt.ItemDataRole.ToolTipRole and index.column() == len(self.HEADINGS) - 1:
            return line.text
        return None


class LogFilter(QSortFilterProxyModel):
    """Filters by least level and words."""

    def __init__(self) -> None:
        super().__init__()
        self._level, self._words = logging.NOTSET, [""]

    def choose(self, level: int, text: str) -> None:
        self._level, self._words = level, text.lower().split()
        self.invalidate()  # invalidateRowsFilter is deprecated, and what follows it came with 6.10

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        source = self.sourceModel()
        assert isinstance(source, LogModel)
        line = source.lines[row]
        text = f"{line.name} {line.text}".lower()
        return line.level >= self._level and all(word in text for word in self._words)


class LogPanel(QFrame):
    """The log; follows new lines while the last one is in view or Follow is on."""

    _arrived = Signal()

    def __init__(self, buffer: LogBuffer, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Log")
        self._buffer = buffer
        self._seen = 0
        self._is_told = False  # of lines that were not taken yet
        self.model, self.shown = LogModel(), LogFilter()
        self.shown.setSourceModel(self.model)
        self._build()
        self._arrived.connect(self._take, Qt.ConnectionType.QueuedConnection)
        buffer.on_line = self._on_line
        self._take()

    def _build(self) -> None:
        self.level = dressed(QComboBox(), "Level filter", "Level filter")
        self.level.addItems([text for text, _ in LEVELS])
        self.level.currentIndexChanged.connect(lambda index: self._choose())
        self.text = dressed(
            QLineEdit(), "Filter by text", "Show only lines containing all of these words"
        )
        self.text.setPlaceholderText("Filter by text")
        self.text.setClearButtonEnabled(True)
        self.text.textChanged.connect(lambda text: self._choose())
        self.note = ElidedLine("text_muted")
        self.copy = button(
            "Copy", self.copy_lines, "Copy the selected lines, or all visible lines (Ctrl+C)"
        )
        self.follow = dressed(QPushButton("Follow"), tip="Scroll to new lines automatically")
        self.follow.setCheckable(True)
        self.follow.setChecked(True)
        self.follow.toggled.connect(lambda on: self._scroll() if on else None)
        self.table = _LogTable(self.shown, self.copy_lines)
        self.table.selectionModel().selectionChanged.connect(lambda *_: self._show_details())
        self.details = dressed(QPlainTextEdit(), "Selected line")
        self.details.setReadOnly(True)
        self.details.setFont(mono_font("small"))
        self.details.setMaximumHeight(_DETAILS_HEIGHT)
        self.details.hide()
        self._empty = QLabel(EMPTY_TEXT, alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True)
        stage = QWidget()
        self._stack = QStackedLayout(stage)
        self._stack.addWidget(dressed(self._empty, role="small"))
        self._stack.addWidget(self.table)
        vbox(
            hbox(self.level, (self.text, 1), (self.note, 1), self.follow, self.copy),
            (stage, 1), self.details,
            of=self, spacing=SPACE_1, margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip

    # Feeding -----------------------------------------------------------------------------------

    def _on_line(self) -> None:
        """Called from the thread that logs."""
        if not self._is_told:
            self._is_told = True
            self._arrived.emit()

    def _take(self) -> None:
        self._is_told = False
        total = self._buffer.num_lines
        self.model.add(self._buffer.since(self._seen))
        self._seen = total
        self._show_count()
        if self.follow.isChecked():
            self._scroll()

    def _choose(self) -> None:
        self.shown.choose(LEVELS[self.level.currentIndex()][1], self.text.text())
        self._show_count()
        if self.follow.isChecked():
            self._scroll()

    def _scroll(self) -> None:
        self.table.scrollToBottom()

    def _show_count(self) -> None:
        all_, shown = self.model.rowCount(), self.shown.rowCount()
        self.note.set_text(f"{shown:,} of {all_:,} lines" if all_ else "")
        self._empty.setText(NO_MATCH if all_ else EMPTY_TEXT)
        self._stack.setCurrentWidget(self.table if shown else self._empty)
        self.copy.setEnabled(shown > 0)

    # What one can do ---------------------------------------------------------------------------

    def selected(self) -> list[LogLine]:
        """The selected lines, from top to bottom."""
        rows = sorted(index.row() for index in self.table.selectionModel().selectedRows())
        return [self._line(row) for row in rows]

    def _line(self, row: int) -> LogLine:
        return self.model.lines[self.shown.mapToSource(self.shown.index(row, 0)).row()]

    def copy_lines(self) -> None:
        """The selected lines as text, or all that are shown."""
        lines = self.selected() or [self._line(row) for row in range(self.shown.rowCount())]
        text = "\n".join(" ".join((*_cells(line)[:3], line.text)) for line in lines)
        QGuiApplication.clipboard().setText(text)

    def _show_details(self) -> None:
        lines = self.selected()
        text = lines[0].text if len(lines) == 1 else ""
        self.details.setVisible("\n" in text)
        self.details.setPlainText(text)


class _LogTable(QTableView):
    def __init__(self, model: QSortFilterProxyModel, copy: Any) -> None:
        super().__init__()
        self._copy = copy
        self.setModel(model)
        dress_table(self, "Log")
        # several lines can be copied at once
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        header = self.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        SmallFigures(self)
        FittedColumns(header, self._widths)

    def _widths(self) -> dict[int, int]:
        advance = self.fontMetrics().horizontalAdvance
        # its padding, and what a cell keeps free beside it
        return {column: advance(text) + 4 * SPACE_2 for column, text in enumerate(_SAMPLES)}

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            self._copy()
        else:
            super().keyPressEvent(event)


def _cells(line: LogLine) -> tuple[str, str, str, str]:
    moment = datetime.fromtimestamp(line.time)
    first, _, rest = line.text.partition("\n")
    message = f"{first} …" if rest else first
    at = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
    return at, logging.getLevelName(line.level), line.name, message
