"""Stored reports: list, and rename, delete, export."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from PySide6.QtCore import QItemSelectionModel, QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QInputDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QWidget,
)

from app.features.models.deletion import Deletion
from app.features.quantize.kept_reports import Made, keep, list_line, made_of, subtitle
from app.link.tasks import LatestTask
from app.storage.report_export import SUFFIXES, export
from app.storage.report_store import ReportStore, StoredReport
from app.storage.trash import Trash
from engine.errors import ErrorInfo, InferdeckError
from engine.evaluate import ReportError
from engine.evaluate.report import EvaluationReport
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.notice import Toast

EMPTY = "No reports yet. Quantize or evaluate a model; its report appears here."
HINT = "Select two or more (Ctrl or Shift) to compare."
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
        self.rename = button("Rename…", self.ask_name, "Rename the report (F2)")
        self.delete = button(
            "Delete", self._delete, "Delete the selected reports (Delete); you can undo this"
        )
        for keys, do in (("F2", self.ask_name), ("Del", self._delete)):
            shortcut = QShortcut(QKeySequence(keys), self.list)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(do)
        row = hbox(self.rename, self.delete, STRETCH)
        vbox((self.list, 1), self.hint, row, of=self)
        self.chosen.connect(lambda _: self._show_state())
        self._show_state()

    @property
    def selection(self) -> list[StoredReport]:
        """Selected reports, newest first."""
        items = [self.list.item(row) for row in range(self.list.count())]
        return [item.data(_STORED) for item in items if item.isSelected()]

    @property
    def reports(self) -> list[StoredReport]:
        return [self.list.item(row).data(_STORED) for row in range(self.list.count())]

    def show_reports(
        self, reports: Iterable[StoredReport], problems: Iterable[ErrorInfo] = ()
    ) -> None:
        """Replace the list; keeps the selection."""
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
        """Select reports like the user."""
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


class ReportsController(QObject):
    """Reads and changes the reports of `store`; errors appear in the toast."""

    def __init__(
        self, store: ReportStore, trash: Trash, reports: ReportList, toast: Toast, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._store, self._list, self._toast = store, reports, toast
        self.deletion = Deletion(trash, toast, self)
        self.deletion.changed.connect(self._reload_now)
        self.deletion.failed.connect(self._say)
        self._task = LatestTask(self)
        reports.renamed.connect(self.rename)
        reports.delete_wanted.connect(self.delete)

    def reload(self) -> None:
        """Read the reports in a thread: the command line writes them too."""
        self._task.run(self._store.list, lambda shelf: self._list.show_reports(*shelf), self._say)

    def _reload_now(self) -> None:
        """Read them in this thread, after a change."""
        self._task.cancel()
        self._list.show_reports(*self._store.list())

    def keep(self, report: EvaluationReport, commands: tuple[str, ...]) -> StoredReport | None:
        """Store a new report; None where that failed, with an error in the toast."""
        try:
            stored = keep(self._store, report, commands)
        except ReportError as error:
            self._say(error.info())
            return None
        self._reload_now()
        return stored

    def made(self, stored: StoredReport) -> Made:
        return made_of(self._store, stored)

    def rename(self, stored: StoredReport, name: str) -> None:
        try:
            self._store.rename(stored.id, name)
        except ReportError as error:
            self._say(error.info())
        self._reload_now()

    def delete(self, reports: Sequence[StoredReport]) -> None:
        """Move them to the trash and offer Undo for some seconds."""
        self.deletion.delete(
            [self._store.folder / stored.id for stored in reports],
            lambda count: reports[0].name if count == 1 else f"{count} reports",
        )

    def ask_export(self, reports: Sequence[StoredReport]) -> None:
        """Ask for a file; its suffix is the format."""
        kinds = ";;".join(f"{name} (*{suffix})" for suffix, name in SUFFIXES.items())
        name = reports[0].name if len(reports) == 1 else "comparison"
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        file, kind = QFileDialog.getSaveFileName(
            self._list.window(), "Export", f"{safe}.json", kinds
        )
        if file:
            self.export(reports, with_suffix(Path(file), kind))

    def export(self, reports: Sequence[StoredReport], file: Path) -> None:
        try:
            export([stored.report for stored in reports], file)
        except InferdeckError as error:
            self._say(error.info())
        else:
            self._toast.show_message(f"Exported to {file}.")

    def _say(self, error: ErrorInfo) -> None:
        self._toast.show_message(f"{error.cause} {error.remedy}".strip())


def with_suffix(file: Path, kind: str) -> Path:
    """Add the suffix of the chosen kind unless the name has a known one."""
    if file.suffix.lower() in SUFFIXES:
        return file
    suffix = next((s for s in SUFFIXES if f"*{s}" in kind), ".json")
    return file.with_name(file.name + suffix)
