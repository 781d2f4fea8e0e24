"""Log of the latest API calls: client, path, status, times, tokens; no prompt, no reply."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from app.server.call import OutputCollector

KEPT = 1000
RATE_S = 10.0
"""Period over which calls per second are counted."""

MAX_PATH, MAX_ERROR = 120, 300
_NOTE, _ARRIVAL = "inferdeck.call", "inferdeck.arrival"
HUNG_UP = "Client disconnected."


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A finished call. number: counts from 1. at: arrival, in seconds since 1970. status: 0 if the
    client disconnected before a response. num_tokens: generated tokens; None for calls that
    generate none. ttft_s: from arrival to the first token, as in /metrics."""

    number: int
    at: float
    client: str
    method: str
    path: str
    status: int
    duration_s: float
    num_tokens: int | None = None
    ttft_s: float | None = None
    error: str = ""

    @property
    def has_failed(self) -> bool:
        return self.status >= 400 or bool(self.error)


@dataclass(slots=True)
class CallNote:
    """Facts of a running call, for the log."""

    outputs: OutputCollector | None = None
    error: str = ""


class CallLog:
    """The last `KEPT` calls. Written on the server's loop, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[CallRecord] = deque(maxlen=KEPT)
        self._ends: deque[float] = deque(maxlen=100_000)
        self.total = 0

    def end(self, record: CallRecord) -> None:
        """Number the record and store it."""
        with self._lock:
            self.total += 1
            self._ends.append(time.monotonic())
            self._records.append(replace(record, number=self.total))

    def since(self, number: int) -> list[CallRecord]:
        """Stored records after the `number`-th, oldest first."""
        with self._lock:
            missing = min(self.total - number, len(self._records))
            return [self._records[place] for place in range(-missing, 0)]

    def rate(self) -> float:
        """Finished calls per second over the last `RATE_S`."""
        with self._lock:
            until = time.monotonic() - RATE_S
            while self._ends and self._ends[0] < until:
                self._ends.popleft()
            return len(self._ends) / RATE_S


def note_arrival(scope: Any, at: float) -> None:
    """Note when a call's first bytes arrived (time.perf_counter)."""
    scope[_ARRIVAL] = at


def arrival_of(scope: Scope) -> float:
    """When a call's first bytes arrived; now if not noted."""
    return float(scope.setdefault(_ARRIVAL, time.perf_counter()))


def note_of(scope: Scope) -> CallNote:
    """The note that the parts of a call fill in."""
    note = scope.setdefault(_NOTE, CallNote())
    assert isinstance(note, CallNote)
    return note


class Logged:
    """Outermost ASGI middleware: rejected calls are logged too."""

    def __init__(self, app: ASGIApp, log: CallLog) -> None:
        self._app, self._log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note, began, at, status = note_of(scope), arrival_of(scope), time.time(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and not note.error:
                note.error = _words_of(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            self._log.end(_record(scope, note, status, at, began))


def _record(scope: Scope, note: CallNote, status: int, at: float, began: float) -> CallRecord:
    client, outputs, error = scope.get("client"), note.outputs, note.error
    if not error and (status == 0 or (outputs is not None and not outputs.is_finished)):
        error = HUNG_UP
    return CallRecord(
        number=0,
        at=at,
        client=f"{client[0]}:{client[1]}" if client else "",
        method=scope["method"],
        path=scope["path"][:MAX_PATH],
        status=status,
        duration_s=time.perf_counter() - began,
        num_tokens=outputs.num_tokens if outputs is not None else None,
        ttft_s=outputs.ttft_s if outputs is not None else None,
        error=error[:MAX_ERROR],
    )


def _words_of(body: bytes) -> str:
    """The message of our own error object."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return ""
