"""What a window has not been sent yet. A slow one gets longer pieces and fewer, not more.

outputs      in order; when they become many, those of one request are appended to each other
snapshots    the latest state, with the steps and samples of all, the newest of them
progress     the latest
the rest     in order
"""

from __future__ import annotations

import dataclasses
from collections import deque

from app.remote.codec import WireEvent
from app.remote.standing import MAX_STEPS
from app.snapshots import merge_snapshots
from engine.messages import (
    EngineCrashed,
    Loaded,
    LoadProgress,
    OutputEvent,
    SnapshotEvent,
    Unloaded,
)
from engine.snapshot import EngineSnapshot

MERGE_AT = 1000
MAX_EVENTS = 20_000
MAX_WEIGHT = 16_000_000
"""Characters, tokens and log probabilities that wait: all that a window may cost of memory."""


class Outbox:
    def __init__(self) -> None:
        self._events: deque[WireEvent] = deque()
        self._snapshot: EngineSnapshot | None = None
        self._progress: LoadProgress | None = None
        self._merge_at = MERGE_AT
        self._weight = 0
        self.is_urgent = False
        """Whether something of it is to be sent at once."""

    def __bool__(self) -> bool:
        return bool(self._events) or self._snapshot is not None or self._progress is not None

    @property
    def is_full(self) -> bool:
        return len(self._events) > MAX_EVENTS or self._weight > MAX_WEIGHT

    def put(self, event: WireEvent) -> None:
        match event:
            case SnapshotEvent(snapshot):
                before = self._snapshot
                both = [snapshot] if before is None else [before, snapshot]
                self._snapshot = merge_snapshots(both, MAX_STEPS) if before else snapshot
                return
            case LoadProgress():
                self._progress = event
                return
            case OutputEvent():
                self.is_urgent |= event.is_first or event.finish_reason is not None
                self._weight += _weight(event)
            case Loaded() | Unloaded() | EngineCrashed():
                self._snapshot = None  # it tells of the model before
                self.is_urgent = True
            case _:
                self.is_urgent = True
        self._settle_progress()
        self._events.append(event)
        if len(self._events) > self._merge_at:
            self._events = _merged(self._events)
            self._merge_at = max(MERGE_AT, 2 * len(self._events))

    def next(self) -> WireEvent | None:
        """The next to send, which leaves the box."""
        if self._events:
            event = self._events.popleft()
            if isinstance(event, OutputEvent):
                self._weight -= _weight(event)
            return event
        self.is_urgent = False
        self._merge_at = MERGE_AT
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            return SnapshotEvent(snapshot)
        return None

    def _settle_progress(self) -> None:
        if self._progress is not None:
            self._events.append(self._progress)
            self._progress = None


def _weight(event: OutputEvent) -> int:
    logprobs = sum(20 + 20 * len(p.alternatives) for p in event.logprobs)
    return len(event.text) + len(event.token_ids) + logprobs


def _merged(events: deque[WireEvent]) -> deque[WireEvent]:
    """Between two events that are no outputs, one output of each request."""
    made: deque[WireEvent] = deque()
    run: dict[str, list[OutputEvent]] = {}
    for event in events:
        if isinstance(event, OutputEvent):
            run.setdefault(event.request_id, []).append(event)
        else:
            made.extend(map(_joined, run.values()))
            run.clear()
            made.append(event)
    made.extend(map(_joined, run.values()))
    return made


def _joined(events: list[OutputEvent]) -> OutputEvent:
    """The last with the text of all. What was drafted in each is not told any more."""
    if len(events) == 1:
        return events[0]
    return dataclasses.replace(
        events[-1],
        text="".join(e.text for e in events),
        token_ids=tuple(token for e in events for token in e.token_ids),
        logprobs=tuple(logprob for e in events for logprob in e.logprobs),
        times=events[-1].times or events[0].times,
        is_first=events[0].is_first,
        drafts=None,
    )
