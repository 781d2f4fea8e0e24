"""Session of an attached window: the events to send, merged while the window is slow.

outputs      in order; when they become many, those of one request are appended to each other
snapshots    the latest state, with the steps and samples of all, the newest of them
progress     the latest
the rest     in order
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress

from app.server.attach_state import MAX_STEPS
from app.wire.codec import OPTIONAL, EventWriter, Message, WireEvent
from app.wire.sequencer import Sequencer
from app.wire.snapshots import merge_snapshots
from engine import messages as m
from engine.snapshot import EngineSnapshot

MERGE_AT = 1000
MAX_EVENTS = 20_000
MAX_WEIGHT = 16_000_000
"""Maximum queued characters, tokens and logprobs: bounds the memory per window."""


class EventQueue:
    def __init__(self) -> None:
        self._events: deque[WireEvent] = deque()
        self._snapshot: EngineSnapshot | None = None
        self._progress: m.LoadProgress | None = None
        self._merge_at = MERGE_AT
        self._weight = 0
        self.is_urgent = False
        """Whether something must be sent at once."""

    def __bool__(self) -> bool:
        return bool(self._events) or self._snapshot is not None or self._progress is not None

    @property
    def is_full(self) -> bool:
        """Whether the queue exceeds its limits."""
        return len(self._events) > MAX_EVENTS or self._weight > MAX_WEIGHT

    def put(self, event: WireEvent) -> None:
        match event:
            case m.SnapshotEvent(snapshot):
                before = self._snapshot
                both = [snapshot] if before is None else [before, snapshot]
                self._snapshot = merge_snapshots(both, MAX_STEPS) if before else snapshot
                return
            case m.LoadProgress():
                self._progress = event
                return
            case m.OutputEvent():
                self.is_urgent |= event.is_first or event.finish_reason is not None
                self._weight += _weight(event)
            case m.Loaded() | m.Unloaded() | m.EngineCrashed():
                self._snapshot = None  # of the previous model
                self.is_urgent = True
            case _:
                self.is_urgent = True
        if self._progress is not None:
            self._events.append(self._progress)
            self._progress = None
        self._events.append(event)
        if len(self._events) > self._merge_at:
            self._events = _merged(self._events)
            self._merge_at = max(MERGE_AT, 2 * len(self._events))

    def next(self) -> WireEvent | None:
        """Remove and return the next event to send."""
        if self._events:
            event = self._events.popleft()
            if isinstance(event, m.OutputEvent):
                self._weight -= _weight(event)
            return event
        self.is_urgent = False
        self._merge_at = MERGE_AT
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            return m.SnapshotEvent(snapshot)
        return None


def _weight(event: m.OutputEvent) -> int:
    logprobs = sum(20 + 20 * len(p.alternatives) for p in event.logprobs)
    return len(event.text) + len(event.token_ids) + logprobs


def _merged(events: deque[WireEvent]) -> deque[WireEvent]:
    """One output per request between two other events."""
    made: deque[WireEvent] = deque()
    run: dict[str, list[m.OutputEvent]] = {}
    for event in events:
        if isinstance(event, m.OutputEvent):
            run.setdefault(event.request_id, []).append(event)
        else:
            made.extend(map(_joined, run.values()))
            run.clear()
            made.append(event)
    made.extend(map(_joined, run.values()))
    return made


def _joined(events: list[m.OutputEvent]) -> m.OutputEvent:
    """The last event with the text of all. Details of the drafts are dropped."""
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


PIECE_BYTES = 256 * 1024
"""A frame is sent at this size."""


class Session:
    """Used only on the server's loop."""

    def __init__(self, client: str, reads: Collection[str]) -> None:
        """client: unlike those of other sessions, and no secret."""
        self.client = client
        self.reads = frozenset(reads)
        self.id = secrets.token_urlsafe(18)
        self.sequencer = Sequencer()
        self.requests: set[str] = set()
        """The window's unfinished requests."""
        self.num_asked = 0
        """Unanswered queries."""
        self.line: object | None = None
        self.cut_at: float | None = None
        self.was_ready = False
        """Whether a connection was ever greeted to its end."""
        self.is_ended = False
        self.queue = EventQueue()
        self._writer = EventWriter()
        self._changed = asyncio.Event()

    @property
    def cut_for_s(self) -> float:
        return 0.0 if self.cut_at is None else time.monotonic() - self.cut_at

    @property
    def may_send(self) -> bool:
        return bool(self.queue) and self.sequencer.has_room

    @property
    def is_urgent(self) -> bool:
        return self.queue.is_urgent and self.sequencer.has_room

    def tell(self, event: WireEvent) -> None:
        """Queue an event, unless it is one that this window does not read."""
        optional = OPTIONAL.get(type(event))
        if optional is not None and optional not in self.reads:
            return
        self.queue.put(event)
        self._changed.set()

    def heard(self) -> None:
        """An acknowledgement may have made room."""
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something to send, or until the timeout."""
        with suppress(TimeoutError):
            # not wait_for: on Python 3.11 it may swallow that the task is cancelled
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def frame(self) -> bytes:
        messages: list[Message] = []
        size = 0
        while size < PIECE_BYTES and (event := self.queue.next()) is not None:
            message = self._writer.write(event)
            messages.append(message)
            size += len(message[1])
        return self.sequencer.number(messages)
