"""`RequestModel`: a row of figures per request. A continued reply keeps its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from PySide6.QtCore import QModelIndex, QObject, Qt

from engine.snapshot import FinishReason, RequestSnapshot, RequestState, RequestTimes
from engine.snapshot.metrics import METRICS
from engine.units import NOTHING, duration_text, number
from widgets.controls.tables import Index, RowTable
from widgets.theme.theme import theme

ENDS = {
    FinishReason.STOP: "finished",
    FinishReason.LENGTH: "max tokens",
    FinishReason.ABORT: "aborted",
    FinishReason.ERROR: "failed",
}


class RequestRecord(NamedTuple):
    """Times in seconds, None before they are known. `arrival`: engine time."""

    request_id: str
    state: str
    is_active: bool
    arrival: float
    num_prompt: int
    num_cached: int
    num_output: int
    num_blocks: int | None
    queue_s: float | None
    ttft_s: float | None
    itl_s: float | None
    num_preemptions: int | None


class ReplyRecord(NamedTuple):
    """A request that ended, or all of those of a reply that was continued, whose times begin at 0.
    """

    times: RequestTimes
    num_prompt_tokens: int
    num_cached_tokens: int


def record_of(request: RequestSnapshot) -> RequestRecord:
    state = str(request.state)
    if request.state is RequestState.RUNNING:
        computed = request.num_computed_tokens
        is_prefill = request.num_output_tokens == 0 and computed < request.num_prompt_tokens
        state = "prefill" if is_prefill else "decode"
    return RequestRecord(
        request.request_id, state, True, request.times.arrival, request.num_prompt_tokens,
        request.num_cached_tokens, request.num_output_tokens, _told(request.num_blocks),
        request.times.queue_s, request.times.ttft_s,
        mean_gap_s(request.times, request.num_output_tokens), _told(request.num_preemptions),
    )  # fmt: skip


def ended(
    record: RequestRecord, reason: FinishReason, times: RequestTimes, num_preemptions: int
) -> RequestRecord:
    """After its last token: without blocks. num_preemptions: -1 to keep that of the record."""
    preempted, gaps = _told(num_preemptions), times.itl_s
    return record._replace(
        state=ENDS[reason], is_active=False, num_output=times.num_output_tokens,
        num_blocks=None if record.num_blocks is None else 0,
        queue_s=times.queue_s, ttft_s=times.ttft_s, itl_s=fmean(gaps) if gaps else None,
        num_preemptions=record.num_preemptions if preempted is None else preempted,
    )  # fmt: skip


def mean_gap_s(times: RequestTimes, num_output: int) -> float | None:
    """Mean gap between `num_output` tokens: from the first event to the last, over the tokens after
    the first event. It reads only two of possibly thousands of events."""
    if len(times.tokens) < 2:
        return None
    first, last = times.tokens[0], times.tokens[-1]
    return (last.time - first.time) / (num_output - first.num_tokens)


def _told(count: int) -> int | None:
    return count if count >= 0 else None


SORT = Qt.ItemDataRole.UserRole
MOST_ENDED = 500
MOST_TIMES = 100_000
"""Token times kept for ended requests, 16 bytes each; the oldest are dropped."""


class Column(NamedTuple):
    """`read`: the sort value. `text`: of a number; numbers are right-aligned."""

    title: str
    tip: str
    read: Callable[[RequestRecord], Any]
    is_number: bool = True
    text: Callable[[Any], str] = number


def _latency(key: str, read: Callable[[RequestRecord], Any]) -> Column:
    return Column(METRICS[key].title, METRICS[key].description, read, text=duration_text)


COLUMNS = (
    Column("Request", "Chat title or request id", lambda r: r.request_id, False),
    Column("State", "Current state or finish reason", lambda r: r.state, False),
    Column("Prompt", "Prompt tokens", lambda r: r.num_prompt),
    Column("Cached", "Prompt tokens served from the prefix cache", lambda r: r.num_cached),
    Column("Output", "Tokens generated so far", lambda r: r.num_output),
    Column("Blocks", "KV blocks in use", lambda r: r.num_blocks),
    _latency("queue", lambda r: r.queue_s),
    _latency("ttft", lambda r: r.ttft_s),
    Column("Mean ITL", METRICS["itl"].description, lambda r: r.itl_s, text=duration_text),
    Column("Preempted", "Number of preemptions",
           lambda r: r.num_preemptions),
)  # fmt: skip
NAME, STATE = 0, 1
MARK_ALPHA = 0.22


class RequestModel(RowTable[RequestRecord]):
    """Rows in arrival order. `name`: display name; `times`: token times, where kept;
    `marked`: drawn in colour."""

    HEADINGS = tuple(column.title for column in COLUMNS)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.name: Callable[[str], str] = lambda request_id: request_id[:8]
        self.times: dict[str, RequestTimes] = {}
        self.marked: frozenset[str] = frozenset()
        self._places: dict[str, int] = {}  # request id -> row

    @property
    def records(self) -> list[RequestRecord]:
        return self._rows

    # Feeding -----------------------------------------------------------------------------------

    def update(self, requests: Sequence[RequestSnapshot]) -> None:
        changed: list[int] = []
        for request in requests:
            record = record_of(request)
            row = self._places.get(record.request_id)
            if row is None:
                self.times[record.request_id] = request.times
                self._append(record)
            elif self.records[row].is_active or record.arrival > self.records[row].arrival:
                self.times[record.request_id] = request.times
                if self.records[row] != record:
                    self.records[row] = record
                    changed.append(row)
        if changed:
            last = len(COLUMNS) - 1
            self.dataChanged.emit(self.index(min(changed), 0), self.index(max(changed), last))

    def finish(
        self, request_id: str, reason: FinishReason, times: RequestTimes, num_prompt: int,
        num_cached: int, num_preemptions: int,
    ) -> None:
        """A request finished. A short one may end before a snapshot lists it: it is added.
        num_preemptions: -1 if not reported."""
        row = self._places.get(request_id)
        if row is None:
            # (the times of a continued reply begin at 0, and it is the newest)
            arrival = times.arrival or max((r.arrival for r in self.records), default=0.0)
            begun = RequestRecord(
                request_id, "", True, arrival, num_prompt, num_cached, 0, 0,
                None, None, None, None,
            )  # fmt: skip
            self._append(ended(begun, reason, times, num_preemptions))
        else:
            record = self.records[row]._replace(num_prompt=num_prompt, num_cached=num_cached)
            self.records[row] = ended(record, reason, times, num_preemptions)
            self.dataChanged.emit(self.index(row, 0), self.index(row, len(COLUMNS) - 1))
        self.times[request_id] = times
        self._drop_old()
        self._drop_times()

    def clear(self) -> None:
        self.times, self._places = {}, {}
        self.set_rows([])

    def clear_ended(self) -> None:
        active = [record for record in self.records if record.is_active]
        self.times = {r.request_id: t for r in active if (t := self.times.get(r.request_id))}
        self._number(active)
        self.set_rows(active)

    def mark(self, request_ids: Iterable[str]) -> None:
        self.marked = frozenset(request_ids)
        if self.records:
            last = self.index(len(self.records) - 1, len(COLUMNS) - 1)
            self.dataChanged.emit(self.index(0, 0), last, [Qt.ItemDataRole.BackgroundRole])

    def row_of(self, request_id: str) -> int | None:
        return self._places.get(request_id)

    def _append(self, record: RequestRecord) -> None:
        row = len(self.records)
        self.beginInsertRows(QModelIndex(), row, row)
        self.records.append(record)
        self._places[record.request_id] = row
        self.endInsertRows()

    def _drop_old(self) -> None:
        over = sum(not record.is_active for record in self.records) - MOST_ENDED
        row = 0
        while over > 0:
            if self.records[row].is_active:
                row += 1
                continue
            self.beginRemoveRows(QModelIndex(), row, row)
            self.times.pop(self.records.pop(row).request_id, None)
            self._number(self.records)
            self.endRemoveRows()
            over -= 1

    def _drop_times(self) -> None:
        names = (r.request_id for r in self.records if not r.is_active)
        ended = [name for name in names if name in self.times]
        over = sum(len(self.times[name].tokens) for name in ended) - MOST_TIMES
        for name in ended[:-1]:  # the last one's are kept, however many they are
            if over <= 0:
                break
            over -= len(self.times.pop(name).tokens)

    def _number(self, records: Sequence[RequestRecord]) -> None:
        self._places = {record.request_id: row for row, record in enumerate(records)}

    # Qt ----------------------------------------------------------------------------------------

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        record, column = self.records[index.row()], COLUMNS[index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return self._text(record, index.column())
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(column)
            case Qt.ItemDataRole.ToolTipRole:
                return f"{self.name(record.request_id)}\n{record.request_id}"
        if role == Qt.ItemDataRole.BackgroundRole and record.request_id in self.marked:
            return theme().color("accent", MARK_ALPHA)
        if role == SORT:
            if index.column() == NAME:
                return record.arrival
            value = column.read(record)
            return -1.0 if value is None else value
        return None

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is not Qt.Orientation.Horizontal or section >= len(COLUMNS):
            return None
        match role:
            case Qt.ItemDataRole.ToolTipRole:
                return COLUMNS[section].tip
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(COLUMNS[section])
        return super().headerData(section, orientation, role)

    def _text(self, record: RequestRecord, column: int) -> str:
        if column == NAME:
            return self.name(record.request_id)
        value = COLUMNS[column].read(record)
        if value is None:
            return NOTHING
        return COLUMNS[column].text(value) if COLUMNS[column].is_number else str(value)


def _alignment(column: Column) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column.is_number else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
