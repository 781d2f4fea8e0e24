"""The steps of the engine as columns, and the requests in them as rows. No Qt.

    number 7   - - - P P d d d d f        P prefill   d decode   f finished
    number 8         - P P d d d d        - queued: a span, not a cell
    number 9             - - h h P d      h held back beside an idle slot: a cell and a span
    ordinal    0 1 2 3 4 5 6 7 8 9

A request gets a number when it is first heard of, a step an ordinal. Both only grow; steps and
requests that are too old are forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import PackedEntries, RequestSnapshot, RequestState, StepRecord, packed

Kept = TypeVar("Kept")
CAPACITY = 10_000
_FIRST_NUMBERS = 256
FINISHED = 0x80
"""Flag on the kind of a request's last cell."""
RESUMED = 0x40
"""Flag on the kind of its first cell after a preemption."""


class Kind(IntEnum):
    """Work of a request in a step. DRAFT: a decode with accepted draft tokens; HELD: it waited
    beside an idle slot that a static batch does not fill."""

    NOTHING = 0
    PREFILL = 1
    CACHED = 2  # a prefill that began behind a cached prefix
    DECODE = 3
    DRAFT = 4
    PREEMPTED = 5
    HELD = 6


_PREFILL, _CACHED, _DECODE, _DRAFT = map(
    np.uint8, (Kind.PREFILL, Kind.CACHED, Kind.DECODE, Kind.DRAFT)
)


class Column(NamedTuple):
    """One step: the numbers of its requests, and the work of each. mean_gap, longest_gap: seconds
    between its output tokens and those before; NaN without any."""

    numbers: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    mean_gap: float
    longest_gap: float


@dataclass(slots=True)
class Span:
    """A wait of a request, for the first time or after a preemption: from one step until before
    another (None: still waiting)."""

    number: int
    start: int
    end: int | None = None
    is_preempted: bool = False


class StepHistory:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.first = 0  # ordinal of the oldest step that is kept
        self._records: deque[StepRecord] = deque()
        self._columns: deque[Column] = deque()
        self._next_number = 0
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._last_seen: dict[int, int] = {}
        self._arrivals: dict[str, float] = {}
        self._waiting: dict[str, Span] = {}
        self._spans: deque[Span] = deque()
        self._output_at = np.full(_FIRST_NUMBERS, np.nan)  # end of its last step, by number

    # What there is -----------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Ordinal after the newest step."""
        return self.first + len(self._records)

    def record(self, ordinal: int) -> StepRecord:
        return self._records[ordinal - self.first]

    def between(self, start: float, end: float) -> list[StepRecord]:
        """Ordinals of the steps that ran between `start` and `end`, in engine time."""
        last = bisect_left(self._records, end, key=lambda step: step.start)
        first = bisect_left(self._records, start, key=lambda step: step.end)
        return _stretch(self._records, first, last)

    def ordinal_of(self, index: int) -> int | None:
        """The ordinal of the step with this engine index; None if not in the history."""
        place = bisect_left(self._records, index, key=lambda step: step.index)
        found = place < len(self._records) and self._records[place].index == index
        return self.first + place if found else None

    def ordinal_at(self, time: float) -> int:
        """The step that ran at a time, or ended less than a second before it; -1 for none."""
        place = bisect_left(self._records, time, key=lambda step: step.start) - 1
        is_near = place >= 0 and time - self._records[place].end < 1.0
        return self.first + place if is_near else -1

    def request_id(self, number: int) -> str:
        return self._ids[number]

    def cells(self, start: int, end: int) -> tuple[NDArray, NDArray, NDArray]:
        """(ordinals, numbers, kinds) of all cells of the steps start to end - 1."""
        columns = _stretch(self._columns, start - self.first, end - self.first)
        if not columns:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, np.zeros(0, np.uint8)
        sizes = [len(column.numbers) for column in columns]
        return (
            np.repeat(np.arange(start, start + len(columns)), sizes),
            np.concatenate([column.numbers for column in columns]),
            np.concatenate([column.kinds for column in columns]),
        )

    def spans(self, start: int, end: int) -> list[Span]:
        """Waits that overlap the steps start to end - 1."""
        return [s for s in self._spans if s.start < end and (s.end is None or s.end > start)]

    def durations(self, start: int, end: int) -> NDArray[np.float64]:
        chosen = _stretch(self._records, start - self.first, end - self.first)
        return np.array([record.duration for record in chosen])

    def gaps(self, start: int, end: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(mean, longest) seconds between output tokens, of each step; NaN without any."""
        chosen = _stretch(self._columns, start - self.first, end - self.first)
        return (
            np.array([column.mean_gap for column in chosen]),
            np.array([column.longest_gap for column in chosen]),
        )

    # Feeding -----------------------------------------------------------------------------------

    def add(self, steps: Iterable[StepRecord], requests: Sequence[RequestSnapshot] = ()) -> None:
        """Add the new steps, and the state of the requests after them."""
        for request in requests:
            self._arrivals.setdefault(request.request_id, request.times.arrival)
            self._begin_again(request)
        for step in steps:
            self._add_step(step)
        self._note_waiting(requests)
        known = {request.request_id for request in requests}
        self._arrivals = {name: at for name, at in self._arrivals.items() if name in known}

    def _begin_again(self, request: RequestSnapshot) -> None:
        """A reply that was stopped is continued under its id: another row, and no output before."""
        number = self._numbers.get(request.request_id, len(self._output_at))
        if number < len(self._output_at) and self._output_at[number] < request.times.arrival:
            del self._numbers[request.request_id]

    def _add_step(self, step: StepRecord) -> None:
        step, ordinal = packed(step), self.end
        kept: object = step.entries  # a tuple if they are few
        entries = kept if isinstance(kept, PackedEntries) else PackedEntries(step.entries)
        numbers = self._begin_all(entries.request_ids, ordinal)
        places, kinds = np.array(numbers, np.int64), _kinds(entries)
        gaps = self._gaps(places, entries, step.end)
        finished = set(step.finished)
        if finished:
            is_last = [request_id in finished for request_id in entries.request_ids]
            kinds[is_last] |= FINISHED
        self._last_seen.update(dict.fromkeys(numbers, ordinal))
        others, waits = self._add_waits(step, ordinal)
        self._records.append(step)
        if others:
            places, kinds = np.append(places, others), np.append(kinds, waits)
        self._columns.append(Column(places, kinds, *gaps))
        for request_id in finished:
            self._numbers.pop(request_id, None)
        if len(self._records) > self.capacity:
            self._forget_oldest()

    def _gaps(
        self, numbers: NDArray[np.int64], entries: PackedEntries, now: float
    ) -> tuple[float, float]:
        """Mean and longest time per output token. What a request did before a decode, a decode or
        the end of its prefill, had an output too."""
        while self._next_number > len(self._output_at):
            self._output_at = np.append(self._output_at, np.full(len(self._output_at), np.nan))
        before = self._output_at[numbers]
        self._output_at[numbers] = now
        has_gap = np.flatnonzero(~(entries.is_prefill | np.isnan(before)))
        if not len(has_gap):
            return np.nan, np.nan
        spent = now - before[has_gap]
        tokens = 1 + entries.numbers("num_accepted")[has_gap]
        return float(spent.sum() / tokens.sum()), float((spent / tokens).max())

    def _add_waits(self, step: StepRecord, ordinal: int) -> tuple[list[int], NDArray[np.uint8]]:
        """Numbers and kinds of requests that were preempted, or held back, in a step."""
        numbers, kinds = [], []
        for request_id in step.preempted:
            number = self._number(request_id)
            numbers.append(number)
            kinds.append(Kind.PREEMPTED)
            self._last_seen[number] = ordinal
            self._open(request_id, number, ordinal + 1, is_preempted=True)
        for request_id in step.held_back:
            number = self._number(request_id)
            numbers.append(number)
            kinds.append(Kind.HELD)
            self._last_seen[number] = ordinal
            if request_id not in self._waiting:  # no snapshot has shown that it waits
                self._open(request_id, number, self._ordinal_at(request_id))
        return numbers, np.array(kinds, np.uint8)

    def _number(self, request_id: str) -> int:
        if request_id not in self._numbers:
            self._numbers[request_id] = self._next_number
            self._ids[self._next_number] = request_id
            self._last_seen[self._next_number] = self.end
            self._next_number += 1
        return self._numbers[request_id]

    def _begin_all(self, request_ids: Sequence[str], ordinal: int) -> list[int]:
        """Numbers of the requests in a step."""
        numbers = list(map(self._numbers.get, request_ids))
        if None in numbers or not self._waiting.keys().isdisjoint(request_ids):
            return [self._begin(request_id, ordinal) for request_id in request_ids]
        return cast("list[int]", numbers)  # as in the step before, mostly

    def _begin(self, request_id: str, ordinal: int) -> int:
        """A request takes part in a step: its wait ends, even if no snapshot has shown it."""
        is_new = request_id not in self._numbers
        number = self._number(request_id)
        span = self._waiting.pop(request_id, None)
        if span is None and is_new:
            span = self._open(request_id, number, self._ordinal_at(request_id))
            del self._waiting[request_id]
        if span is not None:
            span.end = ordinal
        return number

    def _open(
        self, request_id: str, number: int, start: int, *, is_preempted: bool = False
    ) -> Span:
        if request_id in self._waiting:
            self._waiting[request_id].end = start
        span = self._waiting[request_id] = Span(number, start, None, is_preempted)
        self._spans.append(span)
        return span

    def _ordinal_at(self, request_id: str) -> int:
        """The first step that began after the request's arrival."""
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            return self.end
        return self.first + bisect_left(self._records, arrival, key=lambda step: step.start)

    def _note_waiting(self, requests: Sequence[RequestSnapshot]) -> None:
        waits = (RequestState.WAITING, RequestState.PREEMPTED)
        waiting = {r.request_id for r in requests if r.state in waits}
        for request in requests:
            name = request.request_id
            if name in waiting and name not in self._waiting:
                is_preempted = request.state is RequestState.PREEMPTED
                self._open(name, self._number(name), self._ordinal_at(name),
                           is_preempted=is_preempted)  # fmt: skip
        for name in [name for name in self._waiting if name not in waiting]:
            span = self._waiting.pop(name)  # given up while it waited
            span.end = self.end
            self._last_seen[span.number] = self.end - 1

    def _forget_oldest(self) -> None:
        gone = self.first
        self._records.popleft()
        column = self._columns.popleft()
        self.first += 1
        for number in column.numbers.tolist():
            if self._last_seen[number] == gone:
                self._forget(number)
        while self._spans and self._spans[0].end is not None and self._spans[0].end <= self.first:
            number = self._spans.popleft().number
            if self._last_seen.get(number, self.first) < self.first:
                self._forget(number)

    def _forget(self, number: int) -> None:
        name = self._ids[number]
        waiting = self._waiting.get(name)
        if waiting is not None and waiting.number == number:
            return  # it has a span that goes on
        del self._ids[number], self._last_seen[number]
        if self._numbers.get(name) == number:
            del self._numbers[name]


def _kinds(entries: PackedEntries) -> NDArray[np.uint8]:
    is_cached, has_drafts = entries.numbers("num_cached_tokens"), entries.numbers("num_accepted")
    kinds = np.where(
        entries.is_prefill, np.where(is_cached, _CACHED, _PREFILL),
        np.where(has_drafts, _DRAFT, _DECODE),
    )  # fmt: skip
    kinds[entries.is_resumed] |= RESUMED
    return kinds


def _stretch(kept: deque[Kept], first: int, end: int) -> list[Kept]:
    """Numbers `first` to end - 1, walked to from the nearer end."""
    end = min(end, len(kept))
    if first < len(kept) - end:
        return list(islice(kept, first, end))
    found = list(islice(reversed(kept), len(kept) - end, max(len(kept) - end, len(kept) - first)))
    return found[::-1]
