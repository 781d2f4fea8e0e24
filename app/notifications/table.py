"""The records of the history as a table: when, and what."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, Qt

from app.notifications.history import NoticeHistory, Record
from app.panels.notices import ICONS
from widgets.icons import icon
from widgets.row_table import Index, RowTable

TIME, WHAT = range(2)


class NoticeTable(RowTable[Record]):
    """Follows the history. Rows are rebuilt from the newest on: there are a few hundred at most."""

    HEADINGS = ("Time", "What happened")

    def __init__(self, history: NoticeHistory, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        history.changed.connect(self._follow)
        self._follow()

    def _follow(self) -> None:
        now = self._history.records
        if now != self._rows:
            self.set_rows(list(now))

    def row_of(self, record: Record) -> int:
        """-1 where it is gone."""
        places = (i for i, r in enumerate(self._rows) if r.notice is record.notice)
        return next(places, -1)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        record = self._rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return record.clock if index.column() == TIME else _line(record)
        if role == Qt.ItemDataRole.DecorationRole and index.column() == WHAT:
            return icon(*ICONS[record.notice.kind])
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{record.clock}, {record.notice.kind}: {_line(record)}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return record.text
        return None


def _line(record: Record) -> str:
    return f"{record.notice.cause} {record.notice.remedy}".strip()
