"""The reports that are kept: chosen one by one, or several to be compared."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QItemSelectionModel, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QInputDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.quality.store import StoredReport
from app.quantize.fields import wrapped
from app.quantize.report_words import list_line, subtitle
from engine.errors import ErrorInfo
from widgets.theme import SPACE_2

EMPTY = (
    "No report yet. Quantize a model, or measure one that you have: every report is kept here, "
    "and can be compared with the others."
)
HINT = "Choose two or more (Ctrl or Shift) to compare them."
_STORED = Qt.ItemDataRole.UserRole


class ReportList(QWidget):
    """`chosen(list of StoredReport)` when the selection changes; `renamed(StoredReport, name)`,
    `delete_wanted(list)`."""

    chosen = Signal(object)
    renamed = Signal(object, str)
    delete_wanted = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._problems: list[str] = []
        self.list = QListWidget()
        self.list.setAccessibleName("Reports")
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.list.itemSelectionChanged.connect(lambda: self.chosen.emit(self.selection))
        self.hint = wrapped("small")
        self.rename = QPushButton("Rename…")
        self.rename.setToolTip("Give the report another name (F2)")
        self.rename.clicked.connect(self.ask_name)
        self.delete = QPushButton("Delete")
        self.delete.setToolTip("Delete what is chosen (Delete); it can be undone")
        self.delete.clicked.connect(self._delete)
        for keys, do in (("F2", self.ask_name), ("Del", self._delete)):
            shortcut = QShortcut(QKeySequence(keys), self.list)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(do)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self.rename)
        row.addWidget(self.delete)
        row.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addWidget(self.list, 1)
        column.addWidget(self.hint)
        column.addLayout(row)
        self.chosen.connect(lambda _: self._show_state())
        self._show_state()

    @property
    def selection(self) -> list[StoredReport]:
        """What is chosen, in the order of the list: newest first."""
        items = [self.list.item(row) for row in range(self.list.count())]
        return [item.data(_STORED) for item in items if item.isSelected()]

    @property
    def reports(self) -> list[StoredReport]:
        return [self.list.item(row).data(_STORED) for row in range(self.list.count())]

    def show_reports(
        self, reports: Iterable[StoredReport], problems: Iterable[ErrorInfo] = ()
    ) -> None:
        """Replace the list; what was chosen stays so, as far as it is still there."""
        ids = {stored.id for stored in self.selection}
        self.list.blockSignals(True)
        self.list.clear()
        for stored in reports:
            item = QListWidgetItem(f"{stored.name}\n{list_line(stored.report)}")
            item.setData(_STORED, stored)
            item.setToolTip(f"{stored.name}\n{subtitle(stored.report)}")
            self.list.addItem(item)
            item.setSelected(stored.id in ids)
        self.list.blockSignals(False)
        self._problems = [f"{problem.cause} {problem.remedy}" for problem in problems]
        self.chosen.emit(self.selection)

    def choose(self, *ids: str) -> None:
        """As if the user had."""
        self.list.blockSignals(True)
        for row in range(self.list.count()):
            item = self.list.item(row)
            item.setSelected(item.data(_STORED).id in ids)
            if ids and item.data(_STORED).id == ids[-1]:
                self.list.setCurrentItem(item, QItemSelectionModel.SelectionFlag.NoUpdate)
        self.list.blockSignals(False)
        self.chosen.emit(self.selection)

    def ask_name(self) -> None:
        if len(self.selection) != 1:
            return
        stored = self.selection[0]
        name, accepted = QInputDialog.getText(
            self, "Rename report", "Name", QLineEdit.EchoMode.Normal, stored.name
        )
        if accepted and name.strip():
            self.renamed.emit(stored, name)

    def _delete(self) -> None:
        if self.selection:
            self.delete_wanted.emit(self.selection)

    def _show_state(self) -> None:
        count, chosen = self.list.count(), len(self.selection)
        self.list.setVisible(count > 0)
        self.rename.setEnabled(chosen == 1)
        self.delete.setEnabled(chosen > 0)
        words = EMPTY if not count else HINT if count > 1 and chosen < 2 else ""
        self.hint.setText("\n".join([*self._problems, *([words] if words else [])]))
        self.hint.setVisible(bool(self.hint.text()))
