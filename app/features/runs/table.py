"""The table of runs, with filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import (
    QAbstractItemModel,
    QItemSelection,
    QItemSelectionModel,
    QModelIndex,
    QSignalBlocker,
    QSortFilterProxyModel,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QInputDialog, QTableView, QWidget

from app.features.quantize.reports import when
from app.features.runs.verdicts import headline, verdict
from app.storage.run_records import Kind, RunRecord, State
from widgets.controls.combo import ElidedCombo
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import button, dressed, hbox, vbox, wrapped
from widgets.controls.tables import (
    FittedColumns,
    HeadingFonts,
    Index,
    RowTable,
    SmallFigures,
    dress_table,
)
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, theme, theme_notifier

EMPTY = "No runs yet. Quantize, evaluate, compare or broadcast; the run appears here."
HINT = "Select two or more (Ctrl or Shift) for their difference."
KIND, MODEL, PRECISION, WHEN, STATE, RESULT, VERDICT = range(7)
WIDTHS = {KIND: 84, MODEL: 150, PRECISION: 150, WHEN: 140, STATE: 76, RESULT: 170}
LEAST_VERDICT = 160
SORTED = Qt.ItemDataRole.UserRole


class RunsModel(RowTable[RunRecord]):
    HEADINGS = ("Kind", "Model", "Precision", "When", "State", "Result", "Verdict")

    def show_runs(self, runs: Sequence[RunRecord]) -> None:
        """In place where the same runs are shown, so that the selection stays."""
        if [run.id for run in runs] == [run.id for run in self._rows]:
            self._rows = list(runs)
            last = self.index(max(0, len(runs) - 1), VERDICT)
            self.dataChanged.emit(self.index(0, 0), last)
        else:
            self.set_rows(list(runs))

    def show_progress(self, run: RunRecord) -> None:
        row = next((i for i, known in enumerate(self._rows) if known.id == run.id), None)
        if row is not None:
            self._rows[row] = run
            self.dataChanged.emit(self.index(row, 0), self.index(row, VERDICT))

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        run, column = self._rows[index.row()], index.column()
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return _text(run, column)
            case Qt.ItemDataRole.ToolTipRole:
                return _text(run, column) or None
            case Qt.ItemDataRole.AccessibleTextRole:
                return f"{self.HEADINGS[column]}: {_text(run, column) or '–'}"
            case Qt.ItemDataRole.ForegroundRole if column == STATE:
                colors = {State.FAILED: theme().danger, State.RUNNING: theme().accent}
                return QColor(colors[run.state]) if run.state in colors else None
            case _ if role == SORTED:
                return run.created if column == WHEN else _text(run, column).casefold()
        return None


def _text(run: RunRecord, column: int) -> str:
    is_running = run.state is State.RUNNING
    match column:
        case 0:
            return run.kind.label
        case 1:
            return run.model
        case 2:
            return run.precision
        case 3:
            return when(run.created)
        case 4:
            return run.state.value.capitalize()
        case 5:
            return run.cause if is_running else headline(run)
    return "" if is_running else verdict(run)


class RunsFilter(QSortFilterProxyModel):
    """Runs of a kind and a model; "" for all."""

    def __init__(self, model: RunsModel) -> None:
        super().__init__()
        self._model = model
        self.kind = self.of_model = ""
        self.setSourceModel(model)
        self.setSortRole(SORTED)

    def filterAcceptsRow(self, row: int, parent: QModelIndex | Any) -> bool:
        run = self._model.row_at(row)
        if run is None:
            return False
        return self.kind in ("", run.kind.value) and self.of_model in ("", run.model)


class RunsView(QTableView):
    """The verdict takes the rest of the width; it is a sentence, so the view scrolls sideways
    rather than to cut its first words."""

    def setModel(self, model: QAbstractItemModel | None) -> None:
        super().setModel(model)
        header = self.horizontalHeader()
        header.sectionResized.connect(self._on_resized)
        HeadingFonts(header, self.fit)
        theme_notifier().changed.connect(self.fit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def _on_resized(self, column: int) -> None:
        if column != VERDICT:
            self.fit()

    def fit(self) -> None:
        header = self.horizontalHeader()
        rest = self.viewport().width() - header.sectionPosition(VERDICT)
        header.resizeSection(VERDICT, max(rest, scaled(LEAST_VERDICT)))


class RunsTable(QWidget):
    """`chosen`: the selection changed; `renamed(run, name)`, `delete_wanted(runs)`, `opened(run)`
    by Return or a double click."""

    chosen = Signal()
    renamed = Signal(object, str)
    delete_wanted = Signal(object)
    opened = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._lines = [EMPTY]
        self.model = RunsModel(self)
        self.filter = RunsFilter(self.model)
        self.filter.setParent(self)
        self.view = RunsView()
        self.view.setModel(self.filter)
        dress_table(self.view, "Runs, newest first")
        self.view.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.view.setSortingEnabled(True)
        self.view.sortByColumn(WHEN, Qt.SortOrder.DescendingOrder)
        header = self.view.horizontalHeader()
        self._columns = FittedColumns(header, self._widths)
        SmallFigures(self.view)
        self.kind, self.of_model = _box("Kind"), _box("Model")
        for title, value in (("All kinds", ""), *((kind.label, kind.value) for kind in Kind)):
            self.kind.addItem(title, value)
        self.of_model.addItem("All models", "")
        for box in (self.kind, self.of_model):
            box.currentIndexChanged.connect(self._refilter)
        self.rename = button("Rename…", self.ask_name, "Rename the run (F2)", "flat")
        self.delete = button(
            "Delete", self._delete, "Delete the selected runs (Delete key); can be undone", "flat"
        )
        opens = dict.fromkeys(("Return", "Enter"), self._open)
        LocalKeys(self.view, {"F2": self.ask_name, "Del": self._delete, **opens})
        self.view.doubleClicked.connect(lambda _: self._open())
        self.view.selectionModel().selectionChanged.connect(self._on_selection)
        self.hint = wrapped("small")
        self.filters = hbox(self.kind, self.of_model, self.rename, self.delete)
        vbox((self.view, 1), self.hint, of=self, spacing=SPACE_1)
        self.show_runs((), ())

    @property
    def selection(self) -> list[RunRecord]:
        """Selected runs, newest first."""
        rows = sorted(index.row() for index in self.view.selectionModel().selectedRows())
        found = (self.model.row_at(self._source(row)) for row in rows)
        runs = [run for run in found if run is not None]
        return sorted(runs, key=lambda run: run.created, reverse=True)

    @property
    def runs(self) -> list[RunRecord]:
        """Those that are shown, in their order."""
        rows = (self._source(row) for row in range(self.filter.rowCount()))
        return [run for row in rows if (run := self.model.row_at(row)) is not None]

    def show_runs(self, runs: Sequence[RunRecord], problems: Sequence[str]) -> None:
        """Replace the runs; keeps the selection."""
        ids = [run.id for run in self.selection]
        with QSignalBlocker(self):
            self.model.show_runs(runs)
            self.choose(*ids)
        self._columns.fit()
        self._fill_models(runs)
        self._lines = [*problems, HINT if len(runs) > 1 else "" if runs else EMPTY]
        self._show_state()
        self.chosen.emit()

    def _widths(self) -> dict[int, int]:
        """Columns grow with their texts before the verdict, which is a sentence, has the rest, and
        are no wider than these where there is too little room."""
        header = self.view.horizontalHeader()
        heading = header.sectionSizeHint  # no column is narrower
        widths = {column: max(scaled(width), heading(column)) for column, width in WIDTHS.items()}
        verdict = max(scaled(LEAST_VERDICT), heading(VERDICT))
        room = header.width() - verdict - sum(widths.values())
        for column in (RESULT, PRECISION, MODEL):
            least = max(self.view.sizeHintForColumn(column), heading(column))
            more = least - widths[column]
            more = min(room, max(more, 0)) if room > 0 else max(room, min(more, 0))
            widths[column] += more
            room -= more
        return widths

    def choose(self, *ids: str) -> None:
        """Select runs like the user."""
        found = QItemSelection()
        for row in range(self.filter.rowCount()):
            run = self.model.row_at(self._source(row))
            if run is not None and run.id in ids:
                found.select(self.filter.index(row, 0), self.filter.index(row, VERDICT))
                if run.id == ids[-1]:
                    self.view.scrollTo(self.filter.index(row, 0))
                    self.view.selectionModel().setCurrentIndex(
                        self.filter.index(row, 0), QItemSelectionModel.SelectionFlag.NoUpdate
                    )
        self.view.selectionModel().select(found, QItemSelectionModel.SelectionFlag.ClearAndSelect)

    def ask_name(self) -> None:
        chosen = self.selection
        if len(chosen) != 1 or chosen[0].state is State.RUNNING:
            return
        name, accepted = QInputDialog.getText(self, "Rename run", "Name", text=chosen[0].title)
        if accepted and name.strip():
            self.renamed.emit(chosen[0], name)

    def _source(self, row: int) -> int:
        return self.filter.mapToSource(self.filter.index(row, 0)).row()

    def _delete(self) -> None:
        if self.selection:
            self.delete_wanted.emit(self.selection)

    def _open(self) -> None:
        if len(self.selection) == 1:
            self.opened.emit(self.selection[0])

    def _fill_models(self, runs: Sequence[RunRecord]) -> None:
        names = sorted({run.model for run in runs})
        if names != [self.of_model.itemData(i) for i in range(1, self.of_model.count())]:
            chosen = self.of_model.currentData()
            with QSignalBlocker(self.of_model):
                self.of_model.clear()
                for title, value in (("All models", ""), *((name, name) for name in names)):
                    self.of_model.addItem(title, value)
                self.of_model.setCurrentIndex(max(0, self.of_model.findData(chosen)))
            self._refilter()

    def _refilter(self) -> None:
        self.filter.kind = self.kind.currentData() or ""
        self.filter.of_model = self.of_model.currentData() or ""
        self.filter.invalidate()

    def _on_selection(self) -> None:
        self._show_state()
        self.chosen.emit()

    def _show_state(self) -> None:
        chosen = self.selection
        is_ended = bool(chosen) and all(run.state is not State.RUNNING for run in chosen)
        self.rename.setEnabled(len(chosen) == 1 and is_ended)
        self.delete.setEnabled(is_ended)
        lines = [line for line in self._lines if line != HINT or len(chosen) < 2]
        self.hint.setText("\n".join(filter(None, lines)))
        self.hint.setVisible(bool(self.hint.text()))


def _box(name: str) -> ElidedCombo:
    box = dressed(ElidedCombo(), f"{name} of run", f"Show runs of this {name.lower()}")
    box.setMinimumContentsLength(8)
    return box
