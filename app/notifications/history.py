"""The notices of this run, newest first, and how many of them nobody has seen yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from PySide6.QtCore import QObject, Signal

from app.panels.notices import Notice

LIMIT = 200


@dataclass(frozen=True, slots=True)
class Record:
    """`time`: seconds since 1970. `is_over`: what it speaks of is past, so that its actions are not
    offered any more."""

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
        """All of it, to be copied."""
        notice = self.notice
        head = f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M:%S} {notice.kind}"
        parts = (head, f"{notice.cause} {notice.remedy}".strip(), notice.details)
        return "\n".join(part for part in parts if part)


class NoticeHistory(QObject):
    """Keeps the newest `limit`. `changed`: records, or how many are unread."""

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
        """What notices of this key speak of is past."""
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
        """How many are kept, at least one."""
        self._limit = limit
        self._records = self._records[:limit]
        self._num_unread = min(self._num_unread, limit)
        self.changed.emit()
