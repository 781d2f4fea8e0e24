"""Notifications from this session: history, the popover that lists it, and the bell that counts
problems nobody has seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from PySide6.QtCore import QObject, QPoint, Qt, Signal
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import QHeaderView, QPushButton, QTableView, QToolButton, QWidget

from app.window.notices import Notice
from widgets.controls.layouts import STRETCH, button, centered, hbox, stack, wrapped
from widgets.controls.notice import ICONS
from widgets.controls.popover import Popover
from widgets.controls.tables import Index, RowTable, dress_table
from widgets.theme.fonts import scaled
from widgets.theme.icons import icon, set_icon
from widgets.theme.theme import SPACE_2, SPACE_3, theme_notifier

LIMIT = 200
TIME, WHAT = range(2)


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
    def line(self) -> str:
        return f"{self.notice.cause} {self.notice.remedy}".strip()

    @property
    def text(self) -> str:
        """The full text for the clipboard."""
        head = f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M:%S} {self.notice.kind}"
        return "\n".join(filter(None, (head, self.line, self.notice.details)))


class NoticeHistory(RowTable[Record]):
    """The newest `limit` notices, newest first. `changed`: records, or which are new."""

    HEADINGS = ("Time", "Notification")
    changed = Signal()

    def __init__(self, parent: QObject | None = None, limit: int = LIMIT) -> None:
        super().__init__(parent)
        self._limit = limit
        self.num_new = 0
        """Records added since `mark_read`."""

    @property
    def records(self) -> list[Record]:
        return self._rows

    @property
    def unread(self) -> list[Record]:
        """New problems that still need attention: good news and what is resolved do not."""
        new = self._rows[: self.num_new]
        return [r for r in new if r.notice.kind != "info" and not r.is_over]

    @property
    def has_unread_error(self) -> bool:
        return any(r.notice.kind == "error" for r in self.unread)

    def add(self, notice: Notice) -> None:
        others, num_new = self._rows, self.num_new
        keys = [record.notice.key for record in others]
        if notice.is_sequel and notice.key in keys:
            place = keys.index(notice.key)
            others = [*others[:place], *others[place + 1 :]]
            num_new -= place < num_new
        self._become([Record(time.time(), notice), *others], num_new + 1)

    def end(self, key: str) -> None:
        """Mark notices of this key as resolved."""
        over = [replace(r, is_over=True) if r.notice.key == key else r for r in self._rows]
        if over != self._rows:
            self._become(over, self.num_new)

    def mark_read(self) -> None:
        if self.num_new:
            self._become(self._rows, 0)

    def clear(self) -> None:
        self._become([], 0)

    def set_limit(self, limit: int) -> None:
        """Maximum number of records, at least one."""
        self._limit = limit
        self._become(self._rows, self.num_new)

    def _become(self, records: list[Record], num_new: int) -> None:
        self.num_new = min(num_new, self._limit)
        if records[: self._limit] != self._rows:
            self.set_rows(records[: self._limit])
        self.changed.emit()

    def row_of(self, record: Record) -> int:
        """-1 if it is gone."""
        places = (i for i, r in enumerate(self._rows) if r.notice is record.notice)
        return next(places, -1)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        record = self._rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return record.clock if index.column() == TIME else record.line
        if role == Qt.ItemDataRole.DecorationRole and index.column() == WHAT:
            return icon(*ICONS[record.notice.kind])
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{record.clock}, {record.notice.kind}: {record.line}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return record.text
        return None


EMPTY = "Errors and finished jobs in this session appear here."
WIDTH, MOST_ROWS = 560, 8


class NoticePopover(Popover):
    """The history with the actions of the selected notice, as high as its lines: eight at most,
    more scroll. Opening it marks notices as read."""

    def __init__(self, history: NoticeHistory, parent: QWidget) -> None:
        super().__init__(parent, "Notifications")
        self._history = history
        self.view = _make_view(history)
        self.chosen: Record | None = None
        self.acts: list[QPushButton] = []
        self.text = wrapped()
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        tip = "Copy the selected notification with its details"
        self.copy = button("Copy", self._copy, tip)
        self.clear = button("Clear", history.clear, "Clear the list; the log is kept")
        self._stack = stack(centered(EMPTY), self.view)
        self._buttons = hbox(STRETCH, self.copy, self.clear)
        for item in (self._stack, self.text):
            self.column.addWidget(item)
        self.column.addLayout(self._buttons)
        self.view.selectionModel().currentRowChanged.connect(lambda *_: self._choose())
        history.modelReset.connect(self._on_reset)
        history.changed.connect(self._on_changed)
        theme_notifier().changed.connect(self._fit)
        self._on_reset()

    def first_field(self) -> QWidget:
        return self.view

    def choose(self, row: int) -> None:
        self.view.selectRow(row)

    def toggle_at(self, button: QWidget) -> None:
        """Beside the button, above its lower edge."""
        self._fit()
        super().toggle_at(button)
        if not self.isHidden():
            self._beside(button)

    def _beside(self, button: QWidget) -> None:
        corner = button.mapTo(button.window(), QPoint(button.width(), button.height()))
        bottom = min(corner.y(), button.window().height() - SPACE_2)
        self.move(corner.x() + SPACE_2, max(SPACE_2, bottom - self.height()))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._history.num_new:
            self.choose(0)
        self._history.mark_read()

    def _on_changed(self) -> None:
        if self.isVisible():
            self._history.mark_read()

    def _on_reset(self) -> None:
        """Keep the selection; else select the newest."""
        row = self._history.row_of(self.chosen) if self.chosen is not None else 0
        self._stack.setCurrentIndex(int(self._history.rowCount() > 0))
        self._fit()
        self.view.selectRow(max(row, 0))
        self._choose()

    def _choose(self) -> None:
        record = self.chosen = self._history.row_at(self.view.currentIndex().row())
        for act in self.acts:
            act.hide()
            act.deleteLater()
        self.acts = []
        for text, do in record.actions if record is not None else ():
            self.acts.append(button(text, do, text))
            self._buttons.insertWidget(len(self.acts), self.acts[-1])
        line = record.line if record is not None else ""
        self.text.setText(line)
        self.text.setVisible(self._is_cut(line))
        self.grow()
        self.copy.setEnabled(record is not None)
        self.clear.setEnabled(record is not None)

    def _copy(self) -> None:
        if self.chosen is not None:
            QGuiApplication.clipboard().setText(self.chosen.text)

    def _is_cut(self, line: str) -> bool:
        """Whether the list elides it, so that it stands below in full."""
        beside = 2 * self.fontMetrics().horizontalAdvance("00:00:00") + 4 * SPACE_3
        return self.fontMetrics().horizontalAdvance(line) > scaled(WIDTH) - beside

    def _fit(self) -> None:
        """As wide as the window allows, and as high as the lines."""
        row = self.fontMetrics().height() + SPACE_2
        self.view.verticalHeader().setDefaultSectionSize(row)
        count = min(max(self._history.rowCount(), 1), MOST_ROWS)
        header = self.view.horizontalHeader().sizeHint().height()
        self._stack.setFixedSize(
            min(scaled(WIDTH), self.window().width() - scaled(WIDTH // 4)), header + count * row + 2
        )


def _make_view(model: NoticeHistory) -> QTableView:
    view = QTableView()
    view.setModel(model)
    dress_table(view, "Notifications from this session")
    header = view.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setStretchLastSection(True)
    return view


NAME = "Notifications"
MOST = 99


class Bell(QObject):
    """Shows the number of unread problems, if any, on a button; red if an error is among them."""

    def __init__(self, bell: QToolButton, history: NoticeHistory) -> None:
        super().__init__(bell)
        self._bell, self._history = bell, history
        history.changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        count = len(self._history.unread)
        shown = f"{count}" if count <= MOST else f"{MOST}+"
        self._bell.setText(f"{shown} new" if count else "")  # its name is wider than the rail
        self._bell.setAccessibleName(f"{NAME}, {shown} new" if count else NAME)
        color = "danger" if self._history.has_unread_error else "accent" if count else "text_muted"
        set_icon(self._bell, "bell", color)
