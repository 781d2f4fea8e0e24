"""One connection: what uvicorn leaves unlimited has a limit here.

more connections than allowed       answered with 503 and closed
a head that does not come           closed (also the head of a later request)
a reader that takes nothing         cut off; its requests are aborted with it
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.server.call_log import note_arrival
from app.server.errors import RETRY_AFTER_S, unavailable
from app.server.options import Limits
from app.server.reply import json_bytes


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
    """A connection that became a WebSocket."""

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
    error = unavailable(f"The server has {most} connections open already.", "too_many_connections")
    body = json_bytes(error.as_object())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
