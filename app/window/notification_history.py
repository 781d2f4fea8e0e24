"""Notification history of this session, newest first, with a count of unread ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal

from app.window.notices import ICONS, Notice
from widgets.controls.tables import Index, RowTable
from widgets.theme.icons import icon

LIMIT = 200


@dataclass(frozen=True, slots=True)
class Record:
    """`time`: seconds since 1970. `is_over`: resolved, its actions no longer apply."""

    time: float
    notice: Notice
    is_over: bool = False

    @property
    def clock(self) -> str:
        return f"{datetime.fromtimestamp(self.time):%H:%M:%S}"

    @property
    def actions(self) -> tuple[tuple[str, Callable[[], object]], ...]:
        return () if self.is_over else self.notice.actions

    @property
    def text(self) -> str:
        """All of it, for the clipboard."""
        notice = self.notice
        head = f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M:%S} {notice.kind}"
        parts = (head, f"{notice.cause} {notice.remedy}".strip(), notice.details)
        return "\n".join(part for part in parts if part)


class NoticeHistory(QObject):
    """The newest `limit` notices. `changed`: records or unread count."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None, limit: int = LIMIT) -> None:
        super().__init__(parent)
        self._limit = limit
        self._records: list[Record] = []
        self._num_unread = 0

    @property
    def records(self) -> list[Record]:
        """Newest first."""
        return self._records

    @property
    def num_unread(self) -> int:
        return self._num_unread

    @property
    def has_unread_error(self) -> bool:
        return any(r.notice.kind == "error" for r in self._records[: self._num_unread])

    def add(self, notice: Notice) -> None:
        if notice.is_sequel:
            self._drop_last(notice.key)
        self._records = [Record(time.time(), notice), *self._records][: self._limit]
        self._num_unread = min(self._num_unread + 1, self._limit)
        self.changed.emit()

    def _drop_last(self, key: str) -> None:
        place = next((i for i, r in enumerate(self._records) if r.notice.key == key), None)
        if place is not None:
            self._records = [*self._records[:place], *self._records[place + 1 :]]
            self._num_unread -= place < self._num_unread

    def end(self, key: str) -> None:
        """Notices of this key are resolved."""
        over = [replace(r, is_over=True) if r.notice.key == key else r for r in self._records]
        if over != self._records:
            self._records = over
            self.changed.emit()

    def mark_read(self) -> None:
        if self._num_unread:
            self._num_unread = 0
            self.changed.emit()

    def clear(self) -> None:
        self._records, self._num_unread = [], 0
        self.changed.emit()

    def set_limit(self, limit: int) -> None:
        """Maximum number of records, at least one."""
        self._limit = limit
        self._records = self._records[:limit]
        self._num_unread = min(self._num_unread, limit)
        self.changed.emit()


TIME, WHAT = range(2)


class NoticeTable(RowTable[Record]):
    """Follows the history; a few hundred rows at most."""

    HEADINGS = ("Time", "Notification")

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
        """-1 if it is gone."""
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
