"""`ChangesPopover`: the history of changes; Enter or a double click goes back to a state."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QHeaderView, QTreeWidget, QTreeWidgetItem, QWidget

from app.features.tune.changes import Change, ChangeHistory
from engine.config import costliest
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label
from widgets.controls.popover import Popover
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2

WIDTH, HEIGHT = 680, 280
RIM = 48
"""Pixels around it in a small window."""
USER = Qt.ItemDataRole.UserRole


class ChangesPopover(Popover):
    """`restore_wanted(choices)`: go back to these."""

    restore_wanted = Signal(object)

    def __init__(self, history: ChangeHistory, parent: QWidget) -> None:
        super().__init__(parent, "Changes")
        self._history = history
        self.list = dressed(QTreeWidget(), "Changes, newest first", padded=True)
        self.list.setRootIsDecorated(False)
        self.list.setWordWrap(True)  # the result of a change is a sentence
        self.list.setHeaderLabels(["Time", "Change", "Measured result"])
        header = self.list.header()
        header.setSectionsMovable(False)
        header.setStretchLastSection(True)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Interactive)
        header.sectionResized.connect(self.list.scheduleDelayedItemsLayout)  # other line breaks
        self.list.itemActivated.connect(lambda item: self.go_back())
        self.list.currentItemChanged.connect(lambda *_: self._show_cost())
        self.note = label("", "small")
        self.button = button("Go back", self.go_back, "Restore the settings of this entry")
        self.column.setSpacing(SPACE_2)
        self.column.addWidget(self.list)
        self.column.addLayout(hbox((self.note, 1), STRETCH, self.button))

    def first_field(self) -> QWidget:
        return self.list

    def sizeHint(self) -> QSize:
        room = self.window().size() - QSize(RIM, RIM)
        return QSize(scaled(WIDTH), scaled(HEIGHT)).boundedTo(room)

    def refresh(self) -> None:
        """List the entries, newest first; the current state is selected."""
        self.list.clear()
        for entry in reversed(self._history.entries):
            item = QTreeWidgetItem([entry.clock, entry.title, entry.result])
            item.setData(0, USER, entry)
            for column in (1, 2):
                item.setToolTip(column, item.text(column))
            self.list.addTopLevelItem(item)
        self.list.setColumnWidth(1, round(self.sizeHint().width() * 0.4))
        if (first := self.list.topLevelItem(0)) is not None:
            self.list.setCurrentItem(first)
        self._show_cost()

    def show_result(self) -> None:
        """The result of the newest entry changed."""
        item, latest = self.list.topLevelItem(0), self._history.latest
        if item is not None and latest is not None and item.data(0, USER) is latest:
            item.setText(2, latest.result)
            item.setToolTip(2, latest.result)

    def toggle_at(self, button: QWidget) -> None:
        self.refresh()
        super().toggle_at(button)

    def go_back(self) -> None:
        entry = self._selected()
        if entry is not None and self._history.way_back(entry):
            self.hide()
            self.restore_wanted.emit(dict(entry.state))

    def _selected(self) -> Change | None:
        item = self.list.currentItem()
        entry = item.data(0, USER) if item is not None else None
        return entry if isinstance(entry, Change) else None

    def _show_cost(self) -> None:
        entry = self._selected()
        changes = self._history.way_back(entry) if entry is not None else {}
        self.button.setEnabled(bool(changes))
        cost = f" ({costliest(changes).value})" if changes else ""
        self.button.setText(f"Go back{cost}")
        self.note.setText("" if changes else "Current settings")
