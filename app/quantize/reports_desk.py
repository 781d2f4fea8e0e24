"""What is done with the reports that are kept: listed, renamed, exported, deleted (and back)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFileDialog

from app.hub.trash import Trashed, TrashError
from app.quality.export import SUFFIXES, export
from app.quality.store import Shelf, StoredReport
from app.quantize.keeping import Keeper, Made
from app.quantize.report_list import ReportList
from app.tasks import Task, run_task
from engine.errors import ErrorInfo, InferdeckError
from engine.evaluation import ReportError
from engine.evaluation.report import EvaluationReport
from widgets.chat.toast import Toast


class ReportsDesk(QObject):
    """Between the store, the list and the toast. Failures are said in the toast."""

    def __init__(
        self, keeper: Keeper, reports: ReportList, toast: Toast, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._keeper, self._list, self._toast = keeper, reports, toast
        self._task: Task | None = None
        reports.renamed.connect(self.rename)
        reports.delete_wanted.connect(self.delete)

    def reload(self) -> None:
        """Read the reports, off the GUI thread: the command line writes them as well."""
        if self._task is not None:
            self._task.cancel()
        self._task = run_task(self, self._keeper.list, self._on_shelf, self._say)

    def _on_shelf(self, shelf: Shelf) -> None:
        self._task = None
        self._list.show_reports(*shelf)

    def _reload_now(self) -> None:
        """In this thread: after one change, when the list is to be right at once."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._list.show_reports(*self._keeper.list())

    def keep(self, report: EvaluationReport, commands: tuple[str, ...]) -> StoredReport | None:
        """A new report; None where it could not be written, which is said."""
        try:
            stored = self._keeper.keep(report, commands)
        except ReportError as error:
            self._say(error.info())
            return None
        self._reload_now()
        return stored

    def made(self, stored: StoredReport) -> Made:
        return self._keeper.made(stored)

    def rename(self, stored: StoredReport, name: str) -> None:
        try:
            self._keeper.rename(stored, name)
        except ReportError as error:
            self._say(error.info())
        self._reload_now()

    def delete(self, reports: Sequence[StoredReport]) -> None:
        """Move them aside, and offer to take them back for some seconds."""
        entries: list[Trashed] = []
        try:
            entries.extend(self._keeper.delete(stored) for stored in reports)
        except TrashError as error:
            self._say(error.info())
        self._reload_now()
        if entries:
            what = reports[0].name if len(entries) == 1 else f"{len(entries)} reports"
            self._toast.show_message(
                f"{what} was deleted." if len(entries) == 1 else f"{what} were deleted.",
                "Undo",
                lambda: self._restore(entries),
                lambda: self._keeper.purge(entries),
            )

    def _restore(self, entries: Sequence[Trashed]) -> None:
        try:
            for entry in entries:
                self._keeper.restore(entry)
        except TrashError as error:
            self._say(error.info())
        self._reload_now()

    def ask_export(self, reports: Sequence[StoredReport]) -> None:
        """Ask for a file; its ending says the form."""
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
            self._toast.show_message(f"Written to {file}.")

    def _say(self, error: ErrorInfo) -> None:
        self._toast.show_message(f"{error.cause} {error.remedy}".strip())


def with_suffix(file: Path, kind: str) -> Path:
    """The ending of the chosen kind, where the name has none that is known."""
    if file.suffix.lower() in SUFFIXES:
        return file
    suffix = next((s for s in SUFFIXES if f"*{s}" in kind), ".json")
    return file.with_name(file.name + suffix)
