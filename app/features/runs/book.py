"""`RunBook`: all runs, stored ones and running ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.models.deletion import Deletion
from app.features.quantize.reports import Made, made_of, save, side
from app.features.runs.difference import Difference
from app.features.runs.records import of_report
from app.link.tasks import TaskQueue
from app.storage.record_folder import clean
from app.storage.report_export import SUFFIXES, export, write_report
from app.storage.report_store import ReportStore, StoredReport, as_stored
from app.storage.run_records import RunRecord, State
from app.storage.run_store import RunStore, with_id
from app.storage.trash import Trash
from engine.errors import ErrorInfo
from engine.evaluate.report import EvaluationReport
from widgets.controls.notice import Toast

TABLES = {".csv": "CSV", ".md": "Markdown"}


class Content(NamedTuple):
    """A stored run with its details; of a report, the report and its origin."""

    run: RunRecord
    report: StoredReport | None = None
    made: Made = Made()


class RunBook(QObject):
    """Reads and changes runs: shown at once, read and written in a thread, in order. Errors appear
    in the toast. `changed`: the list of runs; `progressed(RunRecord)`: a running one."""

    changed = Signal()
    progressed = Signal(object)

    def __init__(
        self, reports: ReportStore, runs: RunStore, trash: Trash, toast: Toast, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._reports, self._runs, self._toast = reports, runs, toast
        self._stored: list[RunRecord] = []
        self._deleted: list[RunRecord] = []  # as long as the deletion can be undone, at least
        self._live: dict[str, RunRecord] = {}
        self._num_unwritten = 0
        self.problems: list[str] = []
        """Of runs that cannot be read."""
        self.deletion = Deletion(trash, toast, self)
        self.deletion.changed.connect(self.changed)
        self.deletion.failed.connect(self.say)
        self._tasks = TaskQueue(self)

    @property
    def runs(self) -> list[RunRecord]:
        """Running ones first, then the newest."""
        gone = self.deletion.gone
        there = [run for run in self._stored if not gone or self._folder(run) not in gone]
        return [*self._live.values(), *sorted(there, key=lambda run: run.created, reverse=True)]

    @property
    def is_busy(self) -> bool:
        """Whether it reads or writes."""
        return self._tasks.is_running

    def report(self, run: RunRecord) -> StoredReport:
        """Read it from the disk. Raises ReportError."""
        return self._reports.load(run.id)

    def load(self, runs: Sequence[RunRecord], done: Callable[[list[Content]], None]) -> None:
        """Read stored runs in a thread."""
        self._tasks.run(lambda: [self._content(run) for run in runs], done, self.say)

    def _content(self, run: RunRecord) -> Content:
        if not run.is_report:
            return Content(self._runs.load(run.id))
        stored = self.report(run)
        return Content(run, stored, made_of(self._reports, stored))

    def reload(self) -> None:
        """The command line writes reports too."""
        self._tasks.run(self._read, self._show, self.say)

    def close(self, timeout_s: float) -> None:
        """Finish pending writes, as the program ends."""
        self._tasks.finish(timeout_s)
        self.deletion.close()

    def _read(self) -> tuple[list[RunRecord], list[ErrorInfo]]:
        shelf, (runs, problems) = self._reports.list(), self._runs.read_all()
        return [*map(of_report, shelf.reports), *runs], [*shelf.problems, *problems]

    def _show(self, found: tuple[list[RunRecord], list[ErrorInfo]]) -> None:
        if self._num_unwritten:  # changed in the meantime
            self.reload()
            return
        runs, problems = found
        ids = {run.id for run in runs}
        self._stored = [*runs, *(run for run in self._deleted if run.id not in ids)]
        self.problems = [f"{p.cause} {p.remedy}" for p in problems]
        self.changed.emit()

    # Running ------------------------------------------------------------------------------------

    def show_live(self, run: RunRecord, progress: str) -> None:
        """A running one; `progress` is shown as its state."""
        is_new = run.id not in self._live
        live = self._live[run.id] = replace(run, state=State.RUNNING, cause=progress)
        if is_new:
            self.changed.emit()
        else:
            self.progressed.emit(live)

    def end_live(self, run_id: str) -> None:
        if self._live.pop(run_id, None) is not None:
            self.changed.emit()

    # Changes ------------------------------------------------------------------------------------

    def keep_report(self, report: EvaluationReport, commands: tuple[str, ...]) -> str:
        """Store a new report; its id."""
        stored = as_stored(report, side(report.candidate))
        return self._add(of_report(stored), lambda: save(self._reports, stored, commands))

    def keep(self, run: RunRecord, done: Callable[[], object] = lambda: None) -> str:
        """Store a new run; its id. `done` is called when it is written."""
        kept = with_id(run)
        return self._add(self._runs.listed(kept), lambda: self._runs.save(kept), done)

    def _add(
        self, run: RunRecord, write: Callable[[], object],
        done: Callable[[], object] = lambda: None,
    ) -> str:  # fmt: skip
        self._stored.append(run)
        self._write(write, done)
        return run.id

    def rename(self, run: RunRecord, name: str) -> None:
        named = replace(run, name=clean(name))
        self._stored = [named if known.id == run.id else known for known in self._stored]
        self._write(lambda: self._store(run).rename(run.id, name))

    def _write(
        self, write: Callable[[], object], done: Callable[[], object] = lambda: None
    ) -> None:
        def end(error: ErrorInfo | None) -> None:
            self._num_unwritten -= 1
            if error is None:
                done()
            else:  # show the stored runs again
                self.say(error)
                self.reload()

        self._num_unwritten += 1
        self._tasks.run(write, lambda _: end(None), end)
        self.changed.emit()

    def delete(self, runs: Sequence[RunRecord]) -> None:
        """Move them to the trash and offer Undo for some seconds."""
        gone = [run for run in runs if run.id not in self._live]
        if gone:
            self._deleted += gone
            self.deletion.delete(
                [self._folder(run) for run in gone],
                lambda count: gone[0].title if count == 1 else f"{count} runs",
            )

    def _folder(self, run: RunRecord) -> Path:
        return self._store(run).folder / run.id

    def _store(self, run: RunRecord) -> ReportStore | RunStore:
        return self._reports if run.is_report else self._runs

    # Export -------------------------------------------------------------------------------------

    def ask_export_report(self, stored: StoredReport, window: QWidget) -> None:
        if file := _ask(window, stored.name, SUFFIXES):
            self.export_reports([stored], file)

    def export_reports(self, reports: Sequence[StoredReport], file: Path) -> None:
        self._export(lambda: export([stored.report for stored in reports], file), file)

    def ask_export_difference(self, found: Difference, window: QWidget) -> None:
        if file := _ask(window, "difference", TABLES):
            text = found.as_csv() if file.suffix.lower() == ".csv" else found.as_markdown()
            self._export(lambda: write_report(file, text), file)

    def _export(self, write: Callable[[], object], file: Path) -> None:
        done = lambda _: self.tell(f"Exported to {file}.")
        self._tasks.run(write, done, self.say)

    def tell(self, text: str) -> None:
        self._toast.show_message(text)

    def say(self, error: ErrorInfo) -> None:
        self.tell(f"{error.cause} {error.remedy}".strip())


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
