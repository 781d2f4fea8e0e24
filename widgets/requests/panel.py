"""`RequestsPanel`: the table of requests and its commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QModelIndex, QPoint, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QFrame, QMenu, QTableView, QWidget

from engine.snapshot import FinishReason, RequestSnapshot, RequestTimes
from widgets.controls.layouts import button, centered, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import FittedColumns, SmallFigures, dress_table
from widgets.requests.model import MOST_TIMES, NAME, SORT, STATE, RequestModel, RequestRecord
from widgets.theme.fonts import scaled
from widgets.theme.icons import icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

EMPTY_TEXT = "Requests appear here. Send a message or start a background load."
_WIDTHS = {NAME: 160, STATE: 96}
_NUMBER_WIDTH = 84
_LATENCY = "Latency breakdown for the selected request (Enter)"
_FORGOTTEN = f"Token timings expired: only the last {MOST_TIMES:,} tokens are kept"


class RequestsPanel(QFrame):
    """`abort_requested(request id)`; `blocks_wanted(request id)`: show its blocks in the map;
    `latency_wanted(request id)`: show its latency breakdown at `latency_button`."""

    abort_requested = Signal(str)
    blocks_wanted = Signal(str)
    latency_wanted = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Requests")
        self.model = RequestModel(self)
        self._sorted = QSortFilterProxyModel(self)
        self._sorted.setSourceModel(self.model)
        self._sorted.setSortRole(SORT)
        self.table = RequestTable()
        self.table.setModel(self._sorted)
        self.table.sortByColumn(NAME, Qt.SortOrder.DescendingOrder)
        self._is_live = True
        self._ended: dict[str, tuple[FinishReason, RequestTimes, int, int, int]] = {}
        self._mark_title = ""
        self.table.delete_pressed.connect(self._abort_selected)
        self.table.doubleClicked.connect(lambda index: self._inspect())
        self.table.return_pressed.connect(self._inspect)
        self.table.customContextMenuRequested.connect(self._show_menu)
        self.table.selectionModel().selectionChanged.connect(lambda *_: self._show_buttons())
        self._build()
        self._show_counts()

    def set_names(self, name: Callable[[str], str]) -> None:
        """Request id to display name."""
        self.model.name = name

    def _build(self) -> None:
        self.note = ElidedLine("text_muted")
        abort = "Abort the selected request (Delete)"
        self.abort_button = button("Abort", self._abort_selected, abort)
        self.latency_button = button("Latency", self._inspect, _LATENCY)
        blocks = "Highlight the request's KV blocks in the map"
        self.blocks_button = button("KV blocks", self._show_blocks, blocks)
        self.clear_button = button("Clear finished", self._clear_ended)
        self._stack = stack(centered(EMPTY_TEXT), self.table)
        vbox(
            hbox((self.note, 1), self.abort_button, self.latency_button, self.blocks_button,
                 self.clear_button),
            (self._stack, 1),
            of=self, spacing=SPACE_1, margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip

    # Feeding -----------------------------------------------------------------------------------

    def update_requests(self, requests: Sequence[RequestSnapshot]) -> None:
        """The requests of a snapshot. Those that have ended and are not in it any more end with it:
        table and header count the same."""
        self.model.update(requests)
        active = {request.request_id for request in requests}
        for request_id in [one for one in self._ended if one not in active]:
            self.model.finish(request_id, *self._ended.pop(request_id))
        self._show_counts()

    def finish(
        self, request_id: str, reason: FinishReason, times: RequestTimes, num_prompt: int,
        num_cached: int, num_preemptions: int,
    ) -> None:
        """A request finished: show its last figures with the next snapshot."""
        self._ended[request_id] = reason, times, num_prompt, num_cached, num_preemptions

    def clear(self) -> None:
        self._ended.clear()
        self.model.clear()
        self._show_counts()

    def set_recorded(self) -> None:
        """Show a recording: without Abort."""
        self._is_live = False
        self.abort_button.hide()

    def mark(self, request_ids: Iterable[str], title: str) -> None:
        """Colour these requests; `title`: what they have in common, "" for none."""
        self.model.mark(request_ids)
        self._mark_title = title
        self._show_counts()

    def _show_counts(self) -> None:
        records = self.model.records
        active = sum(record.is_active for record in records)
        counts = f"{active:,} active · {len(records) - active:,} finished"
        if self._mark_title:
            shown = sum(record.request_id in self.model.marked for record in records)
            counts += f" · {shown:,} in {self._mark_title} (highlighted)"
        self.note.set_text(counts if records else "")
        self._stack.setCurrentIndex(1 if records else 0)
        self._show_buttons()

    def _show_buttons(self) -> None:
        record = self.selected
        self.abort_button.setEnabled(record is not None and record.is_active)
        self.latency_button.setEnabled(self._has_latency(record))
        is_kept = record is None or record.request_id in self.model.times
        self.latency_button.setToolTip(_LATENCY if is_kept else _FORGOTTEN)
        self.blocks_button.setEnabled(_has_blocks(record))
        self.clear_button.setEnabled(any(not record.is_active for record in self.model.records))

    # What one can do ---------------------------------------------------------------------------

    @property
    def selected(self) -> RequestRecord | None:
        rows = self.table.selectionModel().selectedRows()
        if not rows:
            return None
        return self.model.records[self._sorted.mapToSource(rows[0]).row()]

    def select(self, request_id: str) -> None:
        row = self.model.row_of(request_id)
        if row is not None:
            index = self._sorted.mapFromSource(self.model.index(row, 0))
            self.table.selectRow(index.row())
            self.table.scrollTo(index)

    def _abort_selected(self) -> None:
        record = self.selected
        if record is not None and record.is_active and self._is_live:
            self.abort_requested.emit(record.request_id)

    def _show_blocks(self) -> None:
        record = self.selected
        if record is not None and _has_blocks(record):
            self.blocks_wanted.emit(record.request_id)

    def _has_latency(self, record: RequestRecord | None) -> bool:
        times = None if record is None else self.model.times.get(record.request_id)
        return times is not None and times.first_token is not None

    def _inspect(self) -> None:
        record = self.selected
        if record is not None and self._has_latency(record):
            self.latency_wanted.emit(record.request_id)

    def _clear_ended(self) -> None:
        self.model.clear_ended()
        self._show_counts()

    def _show_menu(self, position: QPoint) -> None:
        index: QModelIndex = self.table.indexAt(position)
        record = self.selected
        if not index.isValid() or record is None:
            return
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if self._is_live:
            abort = menu.addAction(icon("stop"), "Abort", self._abort_selected)
            abort.setShortcut("Delete")
            abort.setEnabled(record.is_active)
        latency = menu.addAction(icon("benchmark"), "Latency breakdown", self._inspect)
        latency.setShortcut("Return")
        latency.setEnabled(self._has_latency(record))
        blocks = menu.addAction(icon("memory"), "Show KV blocks", self._show_blocks)
        blocks.setEnabled(_has_blocks(record))
        menu.popup(self.table.viewport().mapToGlobal(position))


def _has_blocks(record: RequestRecord | None) -> bool:
    """Waiting and finished requests have no blocks."""
    return record is not None and record.is_active and bool(record.num_blocks)


class RequestTable(QTableView):
    """Sorts by a click on a column's title; Delete aborts, Enter inspects."""

    delete_pressed = Signal()
    return_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        dress_table(self, "Requests")
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setSortingEnabled(True)
        SmallFigures(self)

    def setModel(self, model: QSortFilterProxyModel) -> None:  # type: ignore[override]
        super().setModel(model)
        FittedColumns(self.horizontalHeader(), self._widths, widest=NAME)

    def _widths(self) -> dict[int, int]:
        count = self.horizontalHeader().count()
        return {one: scaled(_WIDTHS.get(one, _NUMBER_WIDTH)) for one in range(count)}

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            self.delete_pressed.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.return_pressed.emit()
        else:
            super().keyPressEvent(event)
