"""Stored reports: their titles and origin, the list, and rename, delete, export."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

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
from app.features.quantize.layers import LayerRow, read_result, rows_of
from app.features.quantize.run import elapsed
from app.features.quantize.texts import BUILTIN_TEXTS
from app.link.tasks import LatestTask
from app.storage.model_sources import is_starter, model_title
from app.storage.report_export import SUFFIXES, export, write_report
from app.storage.report_metrics import Form, facts_title, text_of
from app.storage.report_store import ReportStore, StoredReport
from app.storage.trash import Trash
from engine.errors import CheckpointError, ErrorInfo, InferdeckError
from engine.evaluate import ReportError
from engine.evaluate.report import EvaluationReport, ModelFacts
from engine.json_file import read_json
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.notice import Toast


def when(report: EvaluationReport) -> str:
    """ "21 Nov 2026, 13:04" in the user's time."""
    try:
        return datetime.fromisoformat(report.created).astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return report.created


def subtitle(report: EvaluationReport) -> str:
    """Reference, text, time and duration."""
    parts = []
    if report.reference is not None:
        parts.append(f"vs. {side(report.reference)}")
    if report.text is not None:
        cut = " (truncated)" if report.text.is_cut else ""
        parts.append(f"{text_title(report.text.name)}: {report.text.num_scored:,} tokens{cut}")
    parts += [when(report), f"duration {elapsed(report.duration_s)}"]
    return " · ".join(parts)


def side(facts: ModelFacts) -> str:
    """ "Qwen3-0.6B, BF16, KV INT8": the quantization of the weights, else the dtype."""
    return facts_title(facts, facts_name(facts))


def facts_name(facts: ModelFacts) -> str:
    """Model name for display; the demo model has its own."""
    return model_title(facts.path) if is_starter(facts.path) else facts.name


def text_title(name: str) -> str:
    """Title of a built-in text, or the file name."""
    return next((text.title for text in BUILTIN_TEXTS if text.key == name), name or "text")


def list_line(report: EvaluationReport) -> str:
    """Time and main figure, for the list."""
    parts = [when(report)]
    if report.divergence is not None:
        parts.append(f"KL {text_of(Form.SMALL, report.divergence.kl.mean)}")
    elif report.candidate_loss is not None:
        parts.append(f"perplexity {report.candidate_loss.perplexity:.3f}")
    return " · ".join(parts)


_FILE = "made.json"


@dataclass(frozen=True, slots=True)
class Made:
    """Origin of a report. `commands`: command lines that repeat it. `quantization`: the result file
    of the measured model, if it was quantized here."""

    commands: tuple[str, ...] = ()
    quantization: Mapping[str, Any] | None = None

    @property
    def layers(self) -> list[LayerRow]:
        return rows_of(self.quantization["layers"]) if self.quantization is not None else []


def keep(store: ReportStore, report: EvaluationReport, commands: tuple[str, ...]) -> StoredReport:
    """Store a report with its origin. Raises ReportError where it cannot be written."""
    stored = store.add(report, side(report.candidate))
    quantization = read_result(Path(report.candidate.path))
    text = json.dumps({"commands": commands, "quantization": quantization}, indent=1)
    write_report(store.folder / stored.id / _FILE, text + "\n")
    return stored


def made_of(store: ReportStore, stored: StoredReport) -> Made:
    """The stored origin; if missing or damaged, the one found in the model folder."""
    try:
        found: dict[str, Any] = read_json(store.folder / stored.id / _FILE)
        made = Made(tuple(map(str, found["commands"])), found["quantization"])
        made.layers  # noqa: B018 - raises where it is damaged
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError):
        return Made(quantization=read_result(Path(stored.report.candidate.path)))
    return made


EMPTY = "No reports yet. Quantize or evaluate a model; the report appears here."
HINT = "Select two or more (Ctrl or Shift) to compare."
_STORED = Qt.ItemDataRole.UserRole


class ReportList(QWidget):
    """`chosen(list of StoredReport)` when the selection changes; `renamed(StoredReport, name)`,
    `delete_wanted(list)`."""

    chosen = Signal(object)
    renamed = Signal(object, str)
    delete_wanted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
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
            "Delete", self._delete, "Delete the selected reports (Delete key); can be undone"
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
