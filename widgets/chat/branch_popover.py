"""`BranchPopover`: all branches of a conversation, to go to one of them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import (
    QHeaderView,
    QLabel,
    QPlainTextEdit,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from widgets.chat.records import BranchRecord
from widgets.controls.popover import Popover
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_8

WIDTH, LEAST_ROWS, MOST_ROWS = 560, 3, 12
HINT = "Click a branch, or press Enter, to show it. Editing and regenerating keep all versions."
EMPTY = (
    "This chat has one branch. Edit a message or regenerate a reply to create another version."
)
_RECORD = Qt.ItemDataRole.UserRole


class BranchPopover(Popover):
    """`chosen(id of its first message, id of its last)`."""

    chosen = Signal(str, str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Branches")
        title = QLabel("Branches")
        title.setProperty("role", "title")
        self.note = QLabel()
        self.note.setProperty("role", "small")
        self.note.setWordWrap(True)
        self.tree = BranchTree()
        self.tree.setFixedWidth(WIDTH)
        self.tree.chosen.connect(self._choose)
        self.column.setSpacing(SPACE_2)
        for widget in (title, self.tree, self.note):
            self.column.addWidget(widget)

    def show_branches(self, branches: Sequence[BranchRecord]) -> None:
        """Show the branches, with the end of the shown one selected."""
        has_fork = len(branches) > 1 or any(branch.branches for branch in branches)
        self.tree.show_branches(branches)
        self.tree.setVisible(has_fork)
        self.note.setText(HINT if has_fork else EMPTY)
        self.note.setFixedWidth(WIDTH)

    def first_field(self) -> QWidget:
        return self if self.tree.isHidden() else self.tree

    def _choose(self, record: BranchRecord) -> None:
        self.hide()
        self.chosen.emit(record.message_id, record.end_id)


class BranchTree(QTreeWidget):
    chosen = Signal(object)  # BranchRecord

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Branches")
        self.setColumnCount(3)
        self.setHeaderLabels(["First message", "Version", "Messages"])
        self.setIndentation(SPACE_3)
        self.setUniformRowHeights(True)
        self.setExpandsOnDoubleClick(False)
        header = self.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for column in (1, 2):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self.itemClicked.connect(self._choose)
        self._num_rows = 0

    def show_branches(self, branches: Sequence[BranchRecord]) -> None:
        self.clear()
        self._num_rows = 0
        last_shown: QTreeWidgetItem | None = None
        waiting = [(branch, self.invisibleRootItem()) for branch in reversed(branches)]
        while waiting:
            branch, parent = waiting.pop()
            item = self._item(branch)
            parent.addChild(item)
            self._num_rows += 1
            if branch.is_shown:
                last_shown = item
            waiting += [(following, item) for following in reversed(branch.branches)]
        self.expandAll()
        rows = min(max(self._num_rows, LEAST_ROWS), MOST_ROWS)
        height = self.sizeHintForRow(0) if self._num_rows else SPACE_8
        self.setFixedHeight(rows * height + self.header().sizeHint().height() + SPACE_2)
        if last_shown is not None:
            self.setCurrentItem(last_shown)

    def _item(self, branch: BranchRecord) -> QTreeWidgetItem:
        version = f"{branch.version} / {branch.num_versions}" if branch.num_versions > 1 else ""
        item = QTreeWidgetItem([branch.title, version, f"{branch.num_messages:,}"])
        item.setData(0, _RECORD, branch)
        item.setToolTip(0, branch.title)
        for column in (1, 2):
            item.setTextAlignment(column, Qt.AlignmentFlag.AlignRight)
        state = "shown" if branch.is_shown else "hidden"
        item.setData(0, Qt.ItemDataRole.AccessibleTextRole, f"{branch.title}, {state}")
        if branch.is_shown:
            font = item.font(0)
            font.setWeight(QFont.Weight.DemiBold)
            item.setFont(0, font)
        return item

    def keyPressEvent(self, event: QKeyEvent) -> None:
        item = self.currentItem()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and item is not None:
            self._choose(item)
        else:
            super().keyPressEvent(event)

    def _choose(self, item: QTreeWidgetItem) -> None:
        self.chosen.emit(item.data(0, _RECORD))


class PromptPopover(Popover):
    """`changed(text)` when it is closed with another text."""

    changed = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        title = QLabel("System prompt")
        title.setProperty("role", "title")
        help_ = QLabel("Instructions before the first message. Applies from the next reply.")
        help_.setProperty("role", "small")
        self.input = QPlainTextEdit()
        self.input.setPlaceholderText("For example: Answer in one sentence, with numbers.")
        self.input.setAccessibleName("System prompt")
        self.input.setTabChangesFocus(True)
        self.input.setFixedSize(440, 160)
        self.column.setSpacing(SPACE_2)
        for widget in (title, self.input, help_):
            self.column.addWidget(widget)
        self._before = ""

    def set_text(self, text: str) -> None:
        self._before = text
        with QSignalBlocker(self.input):
            self.input.setPlainText(text)

    def first_field(self) -> QWidget:
        return self.input

    def closed(self) -> None:
        text = self.input.toPlainText()
        if text != self._before:
            self._before = text
            self.changed.emit(text)
