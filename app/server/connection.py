"""Access control (API key, origins) and limits of connections.

A page in a browser on this machine reaches 127.0.0.1 too. Its calls carry its origin, and after a
rebinding of DNS its own name as the host: without a key both are looked at.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Any, cast
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.server.call_log import note_arrival
from app.server.errors import RETRY_AFTER_S, ApiError, unavailable
from app.server.options import Limits, ServerOptions, is_loopback
from app.server.reply import error_response, json_bytes

OPEN_PATHS = ("/health",)


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._key = options.api_key.encode() if options.api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        if is_socket or (scope["type"] == "http" and scope["path"] not in OPEN_PATHS):
            headers = Headers(scope=scope)
            try:
                self._check(headers)
                if is_socket:
                    self._check_no_page(headers)
            except ApiError as error:
                # of a socket too: before it is accepted it is a request that can be answered
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        if self._key is not None:
            self._check_key(headers.get("authorization", ""))
            return
        host = headers.get("host", "")
        if self._options.is_loopback and not _is_local(host, self._options.host):
            raise ApiError(
                403, f"The Host header is {host[:100]!r}. Use 127.0.0.1 or localhost.",
                code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and not self._may_call(origin, host):
            raise ApiError(
                403, f"The origin {origin[:100]!r} is not allowed. "
                "Allow it with --cors-origin.", code="origin_not_allowed",
            )  # fmt: skip

    def _check_key(self, given: str) -> None:
        assert self._key is not None
        scheme, _, key = given.partition(" ")
        # Header values are Latin-1; compared as bytes, in a time that says nothing.
        is_right = hmac.compare_digest(key.strip().encode("latin-1", "replace"), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                "The API key is wrong."
                if given
                else "This server needs an API key. Send the header Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_no_page(self, headers: Headers) -> None:
        """A browser names the page's origin with every socket; no page has business here."""
        origin = headers.get("origin")
        if origin is not None:
            raise ApiError(
                403, f"Web pages ({origin[:100]!r}) cannot attach.",
                code="origin_not_allowed",
            )  # fmt: skip

    def _may_call(self, origin: str, host: str) -> bool:
        named = self._options.cors_origins
        return "*" in named or origin in named or origin in (f"http://{host}", f"https://{host}")


def _is_local(host: str, own: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return not name or name == own or is_loopback(name)


class _ReaderWatch:
    """Cuts off a reader that takes nothing; before a protocol of asyncio among the bases."""

    limits = Limits()
    loop: asyncio.AbstractEventLoop
    transport: Any
    _stall: asyncio.TimerHandle | None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        _cancel(self._stall)

    def _watch_reader(self) -> None:
        _cancel(self._stall)
        waiting = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.limits.stall_s, self._judge_reader, waiting)

    def _judge_reader(self, waiting_before: int) -> None:
        """Slow is allowed; to take nothing at all is not."""
        if 0 < self.transport.get_write_buffer_size() < waiting_before:
            self._watch_reader()
        else:
            self.transport.abort()


class OneWrite:
    """A transport on which an answer's head goes out together with the begin of its body: each
    write wakes the client, and where it wakes up this thread may have to wait for it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if not head and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
        else:
            self._transport.write(head + data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedSocket(_ReaderWatch, WebSocketsSansIOProtocol):
    """A connection upgraded to a WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stall: asyncio.TimerHandle | None = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._stall)
        super().connection_lost(exc)


class LimitedProtocol(_ReaderWatch, H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._is_socket = False
        self._arrival: float | None = None  # of a head's first bytes
        self._is_refused = len(self.connections) >= self.limits.max_connections
        if self._is_refused:
            self.transport = transport
            transport.write(_refusal(self.limits.max_connections))
            transport.close()
            return
        super().connection_made(cast(asyncio.Transport, OneWrite(transport)))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._stall)
        if not self._is_refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._arrival is None:
            self._arrival = time.perf_counter()
        before = self.cycle
        super().data_received(data)
        if self._is_socket:
            return
        if self.cycle is not before:  # a head is whole; its call has not begun to run
            note_arrival(self.scope, self._arrival)
        if not self._is_idle:
            self._arrival = None
        if self._is_idle:
            self._expect_head()
        else:
            _cancel(self._deadline)
            self._deadline = None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection goes on as a LimitedSocket."""
        self._is_socket = True
        _cancel(self._deadline)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # What the reader has not taken by then is not waited for when the connection closes.
        if self.transport.is_closing():
            self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        """From the first byte (or the connection's begin) on, a request's head has its time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.header_s, self._give_up)

    def _give_up(self) -> None:
        if self._is_idle and not self.transport.is_closing():
            self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def protocol_with(limits: Limits) -> type[LimitedProtocol]:
    """uvicorn makes the protocols itself: the limits come with the class."""
    return type("ConnectionProtocol", (LimitedProtocol,), {"limits": limits})


def socket_protocol_with(limits: Limits) -> type[LimitedSocket]:
    return type("SocketProtocol", (LimitedSocket,), {"limits": limits})


def _refusal(most: int) -> bytes:
    error = unavailable(f"Too many connections: the limit is {most:,}.", "too_many_connections")
    body = json_bytes(error.body())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
