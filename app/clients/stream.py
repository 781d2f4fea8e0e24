"""Streams replies over server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import httpx

from app.clients.calls import Call
from app.clients.chunks import Piece, ReplyReader
from app.clients.errors import TargetError, of_status, of_transport
from app.clients.http import Address, client_options
from app.clients.socket_clock import stream_of, timed_transport
from app.clients.target import Target
from engine.units import bytes_text

MOST_PENDING = 32 * 2**20
"""Maximum bytes of an incomplete event."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """`feed` yields the data of each complete event. Comments and other fields are skipped; lines
    may end in LF, CR or both, even split between two calls."""

    def __init__(self) -> None:
        self._line = b""  # begun, without its end
        self._data: list[bytes] = []
        self._pending = 0
        self._after_cr = False
        self._is_first = True

    def feed(self, data: bytes) -> Iterator[str]:
        """Raises ValueError if an event is longer than the limit."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        if not data:
            return
        self._after_cr = data.endswith(b"\r")
        if self._is_first:
            self._is_first = False
            data = data.removeprefix(b"\xef\xbb\xbf")  # a mark of the byte order
        lines = _LINE_END.split(self._line + data if self._line else data)
        self._line = lines.pop()
        for line in lines:
            event = self._take(line)
            if event is not None:
                yield event
        if len(self._line) + self._pending > MOST_PENDING:
            raise ValueError(f"an SSE event over {bytes_text(MOST_PENDING)}")

    def close(self) -> str | None:
        """The last event if only its final empty line is missing, which some servers omit."""
        if self._line:
            line, self._line = self._line, b""
            self._take(line)
        return self._dispatch()

    def _take(self, line: bytes) -> str | None:
        if not line:
            return self._dispatch()
        name, colon, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ") if colon else b""
            self._data.append(value)
            self._pending += len(value)
        return None

    def _dispatch(self) -> str | None:
        if not self._data:
            return None
        text = b"\n".join(self._data).decode("utf-8", "replace")
        self._data.clear()
        self._pending = 0
        return text


CONNECT_S = 10.0
SILENCE_S = 600.0
"""Read timeout: how long a request may wait in a queue or for its first token."""

LAST_BYTES_S = 0.25
"""Time to read the rest of a response, so that the connection can be reused."""

MOST_ERROR_BYTES = 64 * 1024
MOST_KEPT_OPEN = 64


class Timed(NamedTuple):
    """time: when its bytes arrived (time.perf_counter), the same for all events of one read."""

    time: float
    piece: Piece


class Streamer:
    """Streams replies of one server, any number at once. `close` when done. Raises TargetError for
    a key that cannot be sent."""

    def __init__(self, target: Target, address: Address) -> None:
        options = client_options(target, address)
        options["headers"]["accept-encoding"] = "identity"  # nothing waits in a compressor
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=MOST_KEPT_OPEN)
        self.client = httpx.AsyncClient(
            **options,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
            limits=limits,
            transport=timed_transport(limits, is_here=address.is_here),
        )
        self._address = address
        self._has_key = bool(target.api_key)

    async def close(self) -> None:
        await self.client.aclose()

    async def open(self, count: int) -> None:
        """Open connections for so many concurrent replies, as far as idle ones are kept. Errors
        show up with the first request."""
        url = self._address.api("models")
        asked = (self.client.get(url, timeout=CONNECT_S) for _ in range(min(count, MOST_KEPT_OPEN)))
        await asyncio.gather(*asked, return_exceptions=True)

    async def stream(
        self, call: Call, reader: ReplyReader, on_sent: Callable[[float], None] | None = None
    ) -> AsyncIterator[Timed]:
        """The pieces of a reply, read by `reader`. Raises TargetError if it is rejected, fails or
        is cut off. Closing the iterator (or cancelling its task) disconnects, which aborts the
        reply on the server.

        on_sent: receives the time when the request was sent, or its connection was begun.
        """
        url = self._address.api(call.path)
        began = time.perf_counter()
        try:
            async with self.client.stream("POST", url, json=call.body) as response:
                wire = stream_of(response)
                if on_sent is not None:
                    on_sent(began if wire is None else wire.begun_at)
                if response.status_code != 200:
                    raise await self._refusal(response)
                if "json" in response.headers.get("content-type", ""):
                    # an error with status 200, or a server that cannot stream
                    problem = await self._refusal(response)
                    raise TargetError(
                        f"{self._address.host} did not stream its response: {problem.cause}",
                        "Check for proxies that buffer responses.",
                    )
                async for timed in self._events(response, reader):
                    yield timed
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if reader.num_tokens:
                raise self._stopped(reader) from error
            raise of_transport(error, self._address.host) from error
        if reader.finish_reason is None:
            raise self._stopped(reader)
        rest = reader.end()
        if rest.text or rest.token_ids:
            yield Timed(time.perf_counter(), rest)

    async def _events(self, response: httpx.Response, reader: ReplyReader) -> AsyncIterator[Timed]:
        parser, wire = SseParser(), stream_of(response)
        parts = response.aiter_bytes()
        try:
            async for data in parts:
                now = time.perf_counter() if wire is None else wire.read_at
                for event in parser.feed(data):
                    if event.strip() == "[DONE]":
                        with suppress(TimeoutError):
                            async with asyncio.timeout(LAST_BYTES_S):
                                async for _ in parts:
                                    pass
                        return
                    yield Timed(now, self._piece(event, reader))
        except ValueError as error:
            raise TargetError(
                f"{self._address.host} sent {error}.", "Check the address.", is_final=True
            ) from None
        last = parser.close()
        if last is not None and last.strip() != "[DONE]":
            yield Timed(time.perf_counter(), self._piece(last, reader))

    def _piece(self, event: str, reader: ReplyReader) -> Piece:
        try:
            value = json.loads(event)
        except (ValueError, RecursionError):
            raise TargetError(
                f"{self._address.host} sent an invalid chunk (not JSON): {event[:100]!r}.",
                "See the server log.",
            ) from None
        return reader.read(value)

    async def _refusal(self, response: httpx.Response) -> TargetError:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MOST_ERROR_BYTES:
                break
        return of_status(
            response.status_code, bytes(body), response.headers, self._address.host, self._has_key
        )

    def _stopped(self, reader: ReplyReader) -> TargetError:
        if not reader.num_tokens:
            return TargetError(
                f"{self._address.host} closed the stream before the first token.",
                "See the server log.",
            )
        return TargetError(
            f"Stream from {self._address.host} ended after {reader.num_tokens:,} tokens.",
            "The partial reply is kept. Check that the server is running, and see the server log.",
        )
