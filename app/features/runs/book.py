"""`RunBook`: all runs, stored ones and running ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.models.deletion import Deletion
from app.features.quantize.reports import Made, keep, made_of
from app.features.runs.difference import Difference
from app.features.runs.records import of_report
from app.link.tasks import LatestTask
from app.storage.report_export import SUFFIXES, export, write_report
from app.storage.report_store import ReportStore, Shelf, StoredReport
from app.storage.run_records import RunRecord, State
from app.storage.run_store import RunStore
from app.storage.trash import Trash
from engine.errors import ErrorInfo, InferdeckError
from engine.evaluate import ReportError
from engine.evaluate.report import EvaluationReport
from widgets.controls.notice import Toast

TABLES = {".csv": "CSV", ".md": "Markdown"}


class RunBook(QObject):
    """Reads and changes runs; errors appear in the toast. `changed`: the list of runs;
    `progressed`: of a running one."""

    changed = Signal()
    progressed = Signal()

    def __init__(
        self, reports: ReportStore, runs: RunStore, trash: Trash, toast: Toast, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._reports, self._runs, self._toast = reports, runs, toast
        self._stored: list[RunRecord] = []
        self._by_id: dict[str, StoredReport] = {}
        self._live: dict[str, RunRecord] = {}
        self.problems: list[str] = []
        """Of runs that cannot be read."""
        self.deletion = Deletion(trash, toast, self)
        self.deletion.changed.connect(self.reload_now)
        self.deletion.failed.connect(self.say)
        self._task = LatestTask(self)

    @property
    def runs(self) -> list[RunRecord]:
        """Running ones first, then the newest."""
        return [*self._live.values(), *self._stored]

    def report(self, run: RunRecord) -> StoredReport:
        return self._by_id[run.id]

    def made(self, stored: StoredReport) -> Made:
        return made_of(self._reports, stored)

    def reload(self) -> None:
        """Read the runs in a thread: the command line writes reports too."""
        self._task.run(self._read, self._show, self.say)

    def reload_now(self) -> None:
        """Read them in this thread, after a change."""
        self._task.cancel()
        self._show(self._read())

    def _read(self) -> tuple[Shelf, list[RunRecord], list[ErrorInfo]]:
        return (self._reports.list(), *self._runs.list())

    def _show(self, found: tuple[Shelf, list[RunRecord], list[ErrorInfo]]) -> None:
        shelf, runs, problems = found
        self._by_id = {stored.id: stored for stored in shelf.reports}
        self._stored = sorted(
            [*map(of_report, shelf.reports), *runs], key=lambda run: run.created, reverse=True
        )
        self.problems = [f"{p.cause} {p.remedy}" for p in (*shelf.problems, *problems)]
        self.changed.emit()

    # Running ------------------------------------------------------------------------------------

    def show_live(self, run: RunRecord, progress: str) -> None:
        """A running one; `progress` is shown as its state."""
        is_new = run.id not in self._live
        self._live[run.id] = replace(run, state=State.RUNNING, cause=progress)
        (self.changed if is_new else self.progressed).emit()

    def end_live(self, run_id: str) -> None:
        if self._live.pop(run_id, None) is not None:
            self.changed.emit()

    # Changes ------------------------------------------------------------------------------------

    def keep_report(self, report: EvaluationReport, commands: tuple[str, ...]) -> str:
        """Store a new report; its id, "" where that failed, with an error in the toast."""
        try:
            stored = keep(self._reports, report, commands)
        except ReportError as error:
            self.say(error.info())
            return ""
        self.reload_now()
        return stored.id

    def keep(self, run: RunRecord) -> str:
        """Store a new run; its id, "" where that failed."""
        try:
            kept = self._runs.add(run)
        except ReportError as error:
            self.say(error.info())
            return ""
        self.reload_now()
        return kept.id

    def rename(self, run: RunRecord, name: str) -> None:
        store = self._reports if run.is_report else self._runs
        try:
            store.rename(run.id, name)
        except ReportError as error:
            self.say(error.info())
        self.reload_now()

    def delete(self, runs: Sequence[RunRecord]) -> None:
        """Move them to the trash and offer Undo for some seconds."""
        gone = [run for run in runs if run.id not in self._live]
        if gone:
            self.deletion.delete(
                [(self._reports if r.is_report else self._runs).folder / r.id for r in gone],
                lambda count: gone[0].title if count == 1 else f"{count} runs",
            )

    # Export -------------------------------------------------------------------------------------

    def ask_export_report(self, stored: StoredReport, window: QWidget) -> None:
        if file := _ask(window, stored.name, SUFFIXES):
            self.export_reports([stored], file)

    def export_reports(self, reports: Sequence[StoredReport], file: Path) -> None:
        try:
            export([stored.report for stored in reports], file)
        except InferdeckError as error:
            self.say(error.info())
        else:
            self._toast.show_message(f"Exported to {file}.")

    def ask_export_difference(self, found: Difference, window: QWidget) -> None:
        if file := _ask(window, "difference", TABLES):
            text = found.as_csv() if file.suffix.lower() == ".csv" else found.as_markdown()
            try:
                write_report(file, text)
            except ReportError as error:
                self.say(error.info())
            else:
                self._toast.show_message(f"Exported to {file}.")

    def say(self, error: ErrorInfo) -> None:
        self._toast.show_message(f"{error.cause} {error.remedy}".strip())


def _ask(window: QWidget, name: str, suffixes: dict[str, str]) -> Path | None:
    """Ask for a file; its suffix is the format."""
    kinds = ";;".join(f"{title} (*{suffix})" for suffix, title in suffixes.items())
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    default = f"{safe}{next(iter(suffixes))}"
    file, kind = QFileDialog.getSaveFileName(window, "Export", default, kinds)
    return with_suffix(Path(file), kind, suffixes) if file else None


def with_suffix(file: Path, kind: str, suffixes: dict[str, str] = SUFFIXES) -> Path:
    """Add the suffix of the chosen kind unless the name has a known one."""
    if file.suffix.lower() in suffixes:
        return file
    suffix = next((s for s in suffixes if f"*{s}" in kind), next(iter(suffixes)))
    return file.with_name(file.name + suffix)
