"""`BranchPopover`: all branches of a conversation, to go to one of them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QHeaderView, QPlainTextEdit, QTreeWidget, QTreeWidgetItem, QWidget

from widgets.chat.records import BranchRecord
from widgets.controls.layouts import dressed, label
from widgets.controls.popover import Popover
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_8

WIDTH, LEAST_ROWS, MOST_ROWS = 560, 3, 12
HINT = "Click a branch or press Enter to show it. Editing or regenerating keeps all versions."
EMPTY = "This chat has one branch. Edit a message or regenerate a reply to create another version."
_RECORD = Qt.ItemDataRole.UserRole


class BranchPopover(Popover):
    """`chosen(id of its first message, id of its last)`."""

    chosen = Signal(str, str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "Branches")
        self.note = label(role="small")
        self.note.setWordWrap(True)
        self.note.setFixedWidth(WIDTH)
        self.tree = dressed(QTreeWidget(), "Branches")
        self.tree.setUniformRowHeights(True)
        self.tree.setExpandsOnDoubleClick(False)
        self.tree.setHeaderLabels(["First message", "Version", "Messages"])
        self.tree.setIndentation(SPACE_3)
        self.tree.setFixedWidth(WIDTH)
        header = self.tree.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.tree.itemClicked.connect(self._choose)
        self.tree.itemActivated.connect(self._choose)  # Enter
        self.column.addWidget(self.tree)
        self.column.addWidget(self.note)

    def show_branches(self, branches: Sequence[BranchRecord]) -> None:
        """Show the branches, with the end of the shown one selected."""
        has_fork = len(branches) > 1 or any(branch.branches for branch in branches)
        self.tree.setVisible(has_fork)
        self.note.setText(HINT if has_fork else EMPTY)
        self.tree.clear()
        num_rows = 0
        last_shown: QTreeWidgetItem | None = None
        waiting = [(branch, self.tree.invisibleRootItem()) for branch in reversed(branches)]
        while waiting:
            branch, parent = waiting.pop()
            item = _item(branch)
            parent.addChild(item)
            num_rows += 1
            if branch.is_shown:
                last_shown = item
            waiting += [(following, item) for following in reversed(branch.branches)]
        self.tree.expandAll()
        rows = min(max(num_rows, LEAST_ROWS), MOST_ROWS)
        height = self.tree.sizeHintForRow(0) if num_rows else SPACE_8
        self.tree.setFixedHeight(rows * height + self.tree.header().sizeHint().height() + SPACE_2)
        if last_shown is not None:
            self.tree.setCurrentItem(last_shown)

    def first_field(self) -> QWidget:
        return self if self.tree.isHidden() else self.tree

    def _choose(self, item: QTreeWidgetItem) -> None:
        if not self.isHidden():  # a click may activate as well
            self.hide()
            record: BranchRecord = item.data(0, _RECORD)
            self.chosen.emit(record.message_id, record.end_id)


def _item(branch: BranchRecord) -> QTreeWidgetItem:
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


class PromptPopover(Popover):
    """Edits the system prompt. `changed(text)` on closing, if it was edited."""

    changed = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "System prompt")
        self.input = QPlainTextEdit(
            placeholderText="For example: Answer in one sentence, with numbers.",
            tabChangesFocus=True,
        )
        self.input.setAccessibleName("System prompt")
        self.input.setFixedSize(440, 160)
        self.column.addWidget(self.input)
        help_ = "Sent before the first message. Changes apply to the next reply."
        self.column.addWidget(label(help_, "small"))
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
