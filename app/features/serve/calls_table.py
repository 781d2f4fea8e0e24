"""Recent API calls as a table, newest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from PySide6.QtCore import QModelIndex, QObject, Qt
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QHeaderView, QTableView

from app.clients.look import OUR_PATH
from app.server.call_log import KEPT, CallLog, CallRecord
from engine.units import NOTHING, clock_text, duration_text
from widgets.controls.tables import HeadingFonts, Index, RowTable, dress_table
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, figure_font, theme, theme_notifier


class Column(NamedTuple):
    title: str
    text: Callable[[CallRecord], str]
    width: int
    is_number: bool = False
    tip: str = ""


COLUMNS = (
    Column("Time", lambda r: clock_text(r.at), 82),
    Column("Call", lambda r: f"{r.method} {r.path}", 120),
    Column("Status", lambda r: f"{r.status or ''}  {r.error}".strip(), 96,
           tip="HTTP status and error"),
    Column("Tokens", lambda r: NOTHING if r.num_tokens is None else f"{r.num_tokens:,}", 62, True,
           "Output tokens"),
    Column("TTFT", lambda r: duration_text(r.ttft_s), 78, True,
           "Time from request arrival to first token"),
    Column("Total", lambda r: duration_text(r.duration_s), 80, True, "End-to-end latency"),
    Column("Client", lambda r: r.client, 136, tip="Client address and port"),
)  # fmt: skip
"""Columns; the status stays visible in narrow windows."""
CALL, STATUS = 1, 2
LEAST_ROWS = 5
"""Least visible rows, with the header."""
_GIVING = {CALL: 0.5, STATUS: 0.4}
"""Share of their width that these columns lose before the status is hidden."""
CALL_WIDTH = 206
"""Widest call column."""

POLLS = ("/health", "/metrics", "/v1/models", "/version", f"/{OUR_PATH}")
"""Paths that monitors poll."""


def is_poll(record: CallRecord) -> bool:
    return record.method == "GET" and record.path in POLLS and not record.has_failed


def _whole(record: CallRecord) -> str:
    """The full text of a call."""
    cells = ((column.title, column.text(record)) for column in COLUMNS)
    return "\n".join(f"{title}: {text}" for title, text in cells if text not in ("", NOTHING))


class CallsTable(RowTable[CallRecord]):
    """The call log, newest first; polls are optional."""

    HEADINGS = tuple(column.title for column in COLUMNS)

    def __init__(self, log: CallLog, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._log = log
        self._newest = 0  # number of the last call that was looked at
        self._shows_polls = False

    def show_polls(self, wanted: bool) -> None:
        self._shows_polls, self._newest = wanted, 0
        self.set_rows([])
        self.renew()

    def renew(self) -> None:
        """Append new calls."""
        came = self._log.since(self._newest)[::-1]
        if came:
            self._newest = came[0].number
        fresh = [record for record in came if self._shows_polls or not is_poll(record)]
        if not fresh:
            return
        if len(fresh) >= KEPT:
            self.set_rows(fresh)
            return
        over = len(self._rows) + len(fresh) - KEPT
        if over > 0:
            self.beginRemoveRows(QModelIndex(), len(self._rows) - over, len(self._rows) - 1)
            del self._rows[-over:]
            self.endRemoveRows()
        self.beginInsertRows(QModelIndex(), 0, len(fresh) - 1)
        self._rows[:0] = fresh
        self.endInsertRows()

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.ToolTipRole:
            return COLUMNS[section].tip or None
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return _side(COLUMNS[section])
        return super().headerData(section, orientation, role)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        record, column = self._rows[index.row()], COLUMNS[index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return column.text(record)
            case Qt.ItemDataRole.ToolTipRole:
                return _whole(record)
            case Qt.ItemDataRole.TextAlignmentRole:
                return _side(column)
            case Qt.ItemDataRole.FontRole:
                return figure_font()
            case Qt.ItemDataRole.ForegroundRole if record.has_failed:
                return QColor(theme().danger) if index.column() == STATUS else None
            case Qt.ItemDataRole.AccessibleTextRole:
                return f"{column.title}: {column.text(record) or NOTHING}"
        return None


def _side(column: Column) -> Qt.AlignmentFlag:
    across = Qt.AlignmentFlag.AlignRight if column.is_number else Qt.AlignmentFlag.AlignLeft
    return across | Qt.AlignmentFlag.AlignVCenter


def calls_view(model: CallsTable) -> QTableView:
    view = CallsView()
    view.setModel(model)
    dress_table(view, "Recent calls, newest first")
    view.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
    HeadingFonts(view.horizontalHeader(), view.fit)
    view.fit()
    return view


class CallsView(QTableView):
    """Columns fit width and text size until the user resizes one."""

    def __init__(self) -> None:
        super().__init__()
        self._widths: list[int] = []  # as they were fitted
        theme_notifier().changed.connect(self.fit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.fit()

    def fit(self) -> None:
        """Distribute the remaining width: call first, then status."""
        row = self.fontMetrics().height() + SPACE_2
        self.verticalHeader().setDefaultSectionSize(row)
        self.setMinimumHeight(row * LEAST_ROWS)
        if self._widths and self._now() != self._widths:
            return
        hint = self.horizontalHeader().sectionSizeHint
        widths = [max(scaled(one.width), hint(n)) for n, one in enumerate(COLUMNS)]
        room = self.viewport().width()
        over = sum(widths[: STATUS + 1]) - room
        for number, share in _GIVING.items():
            given = min(max(0, over), round(share * widths[number]))
            widths[number] -= given
            over -= given
        left = max(0, room - sum(widths))
        for_call = min(left, scaled(CALL_WIDTH) - widths[CALL])
        widths[CALL] += for_call
        widths[STATUS] += left - for_call
        for number, width in enumerate(widths):
            self.setColumnWidth(number, width)
        self._widths = self._now()  # the heading has a least width

    def _now(self) -> list[int]:
        return [self.columnWidth(number) for number in range(len(COLUMNS))]
