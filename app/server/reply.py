"""Answers on their way to the client: whole, or as server-sent events. A client that hangs up has
its requests aborted, at any moment and also while they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.server.call_log import note_of
from app.server.errors import ApiError
from app.server.flight import Flight, Piece
from app.server.shapes import Shape

FIRST_NEWS_S = 1.0
"""So long a stream's head waits for the first token: a refusal can still have its own status."""

COMMENT_S = 15.0
"""A stream without news says so this often: proxies keep it, and vanished clients are noticed."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def json_bytes(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")  # an error may quote half a surrogate pair


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.as_object(), error.status, error.headers)


class Reply:
    """Answers a call from its flight."""

    def __init__(self, flight: Flight, shape: Shape) -> None:
        self._flight = flight
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_of(scope).flight = self._flight
        watch = asyncio.create_task(_until_hang_up(receive))
        work = asyncio.create_task(self._answer(scope, receive, send))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._flight.close()
            await _cancel(watch, work)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response()
        except ApiError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _response(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        return json_response(self._shape.whole(await self._flight.take_whole()))


class StreamedReply(Reply):
    """`usage_at_end`: the last chunk has the usage and no choices."""

    def __init__(self, flight: Flight, shape: Shape, *, usage_at_end: bool) -> None:
        super().__init__(flight, shape)
        self._usage_at_end = usage_at_end

    async def _response(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_NEWS_S):
                await self._flight.wait()
        self._flight.check()
        return self._stream

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        try:
            while not self._flight.is_finished:
                pieces = await self._next()
                chunks = [_event(self._shape.chunk(piece)) for piece in pieces] or [
                    b": waiting\n\n"
                ]
                await _body(send, b"".join(chunks))
                self._flight.handed_over(pieces)
            end = _event(self._shape.last_chunk()) if self._usage_at_end else b""
        except ApiError as error:
            note_of(scope).error = error.message
            end = _event(error.as_object())
        await _body(send, end + b"data: [DONE]\n\n", more=False)

    async def _next(self) -> list[Piece]:
        try:
            async with asyncio.timeout(COMMENT_S):
                await self._flight.wait()
        except TimeoutError:
            return []
        return await self._flight.take()


def _event(value: Any) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


async def _body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _until_hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
