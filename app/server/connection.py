"""Access control (API key, origins) and limits of connections.

Web pages in a browser on this machine reach 127.0.0.1 too. Their calls carry the page's origin, and
after DNS rebinding its name as the host: without a key the server checks both.

uvicorn limits heads (64 KiB), WebSocket frames (`ws_max_size`) and idle connections after a
response (`timeout_keep_alive`). Version 0.54 does not limit the rest; the protocol classes here do:

    connections      limit_concurrency answers only after a whole head: silent clients stay open
    time of a head   timeout_keep_alive starts after the first response
    stalled readers  uvicorn waits for them without end
"""

from __future__ import annotations

import asyncio
import hmac
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from app.server.call_log import note_arrival
from app.server.errors import ApiError, unavailable
from app.server.lingering import LingeringClose
from app.server.options import Limits, ServerOptions, is_loopback
from app.server.reply import error_response, json_bytes
from app.wire.protocol import STREAM_PATH
from engine.units import duration_text

OPEN_PATHS = ("/health",)
DRAIN_S, REFUSED_S = 10.0, 1.0
"""Time of reading after a last response, and from a client beyond max_connections."""
INVALID_HTTP = "invalid_http"
T = TypeVar("T")


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._key = options.api_key.encode() if options.api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope)
            except ApiError as error:
                # also for a socket: before accept it is a plain request
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        _check_framing(headers)
        is_socket = scope["type"] == "websocket"
        if not is_socket and scope["path"] in OPEN_PATHS:
            return
        self._check_client(headers)
        if is_socket and "origin" in headers:  # browsers send the page's with every socket
            raise ApiError(
                403, f"Web pages cannot attach (origin {headers['origin'][:100]!r}).",
                code="origin_not_allowed",
            )  # fmt: skip

    def _check_client(self, headers: Headers) -> None:
        if self._key is not None:
            self._check_key(headers.get("authorization", ""))
            return
        host = headers.get("host", "")
        if self._options.is_loopback and not _is_local(host, self._options.host):
            raise ApiError(
                403, f"Host header {host[:100]!r} is not allowed. Use 127.0.0.1 or localhost.",
                code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and not self._may_call(origin, host):
            raise ApiError(
                403, f"Origin {origin[:100]!r} is not allowed. "
                "Add it with --cors-origin.", code="origin_not_allowed",
            )  # fmt: skip

    def _check_key(self, given: str) -> None:
        assert self._key is not None
        scheme, _, key = given.partition(" ")
        # Header values are Latin-1; compared as bytes in constant time.
        is_right = hmac.compare_digest(key.strip().encode("latin-1", "replace"), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                "Invalid API key."
                if given
                else "API key required. Send the header Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _may_call(self, origin: str, host: str) -> bool:
        named = self._options.cors_origins
        return "*" in named or origin in named or origin in (f"http://{host}", f"https://{host}")


def _check_framing(headers: Headers) -> None:
    """Two lengths of a body: a proxy may believe the other one (RFC 9112, 6.1)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400, "Content-Length and Transfer-Encoding are mutually exclusive. Send only one.",
            code="invalid_framing", headers={"Connection": "close"},
        )  # fmt: skip


def _is_local(host: str, own: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return not name or name == own or is_loopback(name)


class _ReaderWatch:
    """Disconnects readers that stall. Mixin for an asyncio protocol."""

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
        self._stall = self.loop.call_later(self.limits.stall_s, self._check_reader, waiting)

    def _check_reader(self, waiting_before: int) -> None:
        """Slow readers may stay; stalled readers may not."""
        if 0 < self.transport.get_write_buffer_size() < waiting_before:
            self._watch_reader()
        else:
            self.transport.abort()


class OneWrite:
    """Sends a response's head together with the start of its body: each write wakes the client,
    which may then take this thread's core."""

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        """lingers(): whether the connection is to be closed later, when the client has read."""
        self._transport = transport
        self._lingers = lingers
        self._head = b""
        self._is_closing = False

    def write(self, data: bytes) -> None:
        if self._is_closing:
            return
        head, self._head = self._head, b""
        if not head and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
        else:
            self._transport.write(head + data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        was_closing, self._is_closing = self._is_closing, True
        if was_closing or not self._lingers():
            self._transport.close()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

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
        self._linger: LingeringClose | None = None
        self._socket_transport = transport
        self._is_refused = len(self.connections) >= self.limits.max_connections
        if self._is_refused:
            self.transport = transport
            transport.write(_refusal(self.limits.max_connections))
            self._linger = LingeringClose(transport, REFUSED_S)
            return
        super().connection_made(cast(asyncio.Transport, OneWrite(transport, self._lingers)))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._stall)
        if self._linger is not None:
            self._linger.end()
        if not self._is_refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._linger is not None:
            return  # and drop it
        if self._arrival is None:
            self._arrival = time.perf_counter()
        before = self.cycle
        super().data_received(data)
        if self._is_socket:
            return
        if self.cycle is not before:  # the head is complete; its handler has not run yet
            note_arrival(self.scope, self._arrival)
        if not self._is_idle:
            self._arrival = None
        if self._is_idle:
            self._expect_head()
        else:
            _cancel(self._deadline)
            self._deadline = None

    def _should_upgrade(self) -> bool:
        """Other paths ignore the header (RFC 9110, 7.8)."""
        return self.scope["path"] == STREAM_PATH and super()._should_upgrade()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection continues as a LimitedSocket."""
        if (error := _handshake_error(event)) is not None:
            self._answer_raw(error)
            return
        self._is_socket = True
        _cancel(self._deadline)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A closing connection does not wait for a stalled reader.
        if self.transport.is_closing():
            self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP. uvicorn calls it while it handles h11's error."""
        error = sys.exc_info()[1]
        hint = getattr(error, "error_status_hint", 400)
        fault = str(error).partition(": bytearray(")[0]  # without the bytes of the client
        status, words = hint, f"{msg.rstrip('.')}: {fault[:200]}."
        if hint == 431:
            words = "The request headers exceed the limit of 65,536 bytes."
        self._answer_raw(ApiError(status, words, code=INVALID_HTTP))

    def _answer_raw(self, error: ApiError) -> None:
        """Answer in place of a call, and close."""
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(raw_response(error))
        if cycle is not None:  # its body will not come
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _lingers(self) -> bool:
        """Whether the client may still be sending, so that the end of the connection waits."""
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return False
        self._linger = LingeringClose(self._socket_transport, DRAIN_S)
        return True

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        """The head must be complete `header_s` after its first byte or the connection's start."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.header_s, self._on_deadline)

    def _on_deadline(self) -> None:
        if not self._is_idle or self.transport.is_closing():
            return
        if self._arrival is None:
            self.transport.close()
        else:
            words = f"Request headers not received within {duration_text(self.limits.header_s)}."
            self._answer_raw(ApiError(408, words, code="timeout"))


def _handshake_error(request: h11.Request) -> ApiError | None:
    """Tried on another parser first: uvicorn's answers in plain text, or not at all."""
    trial = ServerProtocol()
    lines = [b"%s %s HTTP/1.1" % (request.method, request.target)]
    lines += [b"%s: %s" % header for header in request.headers]
    trial.receive_data(b"\r\n".join([*lines, b"", b""]))
    head = next((event for event in trial.events_received() if isinstance(event, Request)), None)
    if head is None:
        return ApiError(400, "Invalid WebSocket handshake.", code=INVALID_HTTP)
    answer = trial.accept(head)
    if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        return None
    words = answer.body.decode(errors="replace").partition("\n")[0][:200]
    headers = {
        name: answer.headers[name] for name in ("Allow", "Upgrade") if name in answer.headers
    }
    return ApiError(answer.status_code, words, code=INVALID_HTTP, headers=headers)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def with_limits(protocol: type[T], limits: Limits) -> type[T]:
    """uvicorn instantiates the class itself, so the class carries the limits."""
    return type(protocol.__name__, (protocol,), {"limits": limits})


def _refusal(most: int) -> bytes:
    error = unavailable(f"Too many connections: the limit is {most:,}.", "too_many_connections")
    return raw_response(error)


def raw_response(error: ApiError) -> bytes:
    """A whole response, after which the connection closes."""
    body = json_bytes(error.body())
    headers = {
        "Content-Type": "application/json", "Content-Length": len(body), "Connection": "close",
        **error.headers,
    }  # fmt: skip
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
