"""Log of the latest API calls: client, path, status, times, tokens. Prompts and replies on request.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from app.server.call import OutputCollector

KEPT = 1000
RATE_S = 10.0
"""Period over which calls per second are counted."""

MAX_PATH, MAX_ERROR = 120, 300
CONTENTS_KEPT, MAX_CONTENT = 100, 64 * 1024
"""Calls whose content is kept, and bytes of a request and characters of its replies."""
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


class CallContent(NamedTuple):
    """Request body and replies of a call, each cut at `MAX_CONTENT`."""

    request: bytes
    replies: tuple[str, ...]


@dataclass(slots=True)
class CallNote:
    """Facts of a running call, for the log. request: the body so far; None: not kept."""

    outputs: OutputCollector | None = None
    error: str = ""
    request: bytearray | None = None

    def take_outputs(self, outputs: OutputCollector) -> None:
        self.outputs = outputs
        if self.request is not None:
            outputs.keep_replies(MAX_CONTENT)


class CallLog:
    """The last `KEPT` calls. Written on the server's loop, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[int, CallContent] | None = None
        self._records: deque[CallRecord] = deque(maxlen=KEPT)
        self._ends: deque[float] = deque(maxlen=100_000)
        self.total = 0

    @property
    def keeps_content(self) -> bool:
        return self._contents is not None

    def keep_content(self, wanted: bool) -> None:
        """Keep the content of calls that begin from now on; forget all when off."""
        with self._lock:
            self._contents = ({} if self._contents is None else self._contents) if wanted else None

    def content(self, number: int) -> CallContent | None:
        """The content of the `number`-th call; None if it was not kept."""
        with self._lock:
            return (self._contents or {}).get(number)

    def end(self, record: CallRecord, content: CallContent | None = None) -> None:
        """Number the record and store it, with the content if that is kept."""
        with self._lock:
            self.total += 1
            if self._contents is not None and content is not None:
                self._contents[self.total] = content
                if len(self._contents) > CONTENTS_KEPT:
                    del self._contents[min(self._contents)]
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
        note.request = bytearray() if self._log.keeps_content else None

        async def read() -> Message:
            message = await receive()
            if note.request is not None and message["type"] == "http.request":
                room = MAX_CONTENT - len(note.request)
                note.request += message.get("body", b"")[:room]
            return message

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and not note.error:
                note.error = _words_of(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, read, watch)
        finally:
            self._log.end(_record(scope, note, status, at, began), _content(note))


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


def _content(note: CallNote) -> CallContent | None:
    if note.request is None:
        return None
    return CallContent(bytes(note.request), note.outputs.replies if note.outputs else ())


def _words_of(body: bytes) -> str:
    """The message of our own error object."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return ""
