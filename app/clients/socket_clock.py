"""The clock at the socket: when a request went out, and when the bytes of its answer were here,
before anybody looks at them.

    httpx -> httpcore -> TimedStream   write: kept until all of the request is there, then one piece
                             |         read:  the next bytes, and when they came
                         TimedProtocol <- the loop, as soon as the socket has something
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast
from urllib.request import getproxies

import httpcore
import httpx

from app.server.options import is_loopback

STREAM = "inferdeck.stream"
MOST_KEPT = 256 * 1024
"""Bytes of a request that wait for the rest of it, and of an answer that nobody has read."""

CLOSE_S = 1.0
RACE_S = 0.25
"""The head start of the first of several addresses of a name."""


class Arrived(NamedTuple):
    """at: of time.perf_counter."""

    at: float
    data: bytes


class TimedProtocol(asyncio.Protocol):
    """Notes the time of all bytes that come."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.arrived: deque[Arrived] = deque()
        self.is_ended = False
        self.error: Exception | None = None
        self._num_waiting = 0
        self.closed = asyncio.Event()
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.arrived.append(Arrived(time.perf_counter(), data))
        self._num_waiting += len(data)
        if self._num_waiting > MOST_KEPT:
            self.transport.pause_reading()
        self._news.set()

    def eof_received(self) -> None:
        self.is_ended = True
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_ended, self.error = True, exc
        self.closed.set()
        self._news.set()
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def read(self, max_bytes: int) -> Arrived:
        """No bytes where there come no more. Raises OSError where the connection was cut."""
        while not self.arrived:
            if self.error is not None:
                raise self.error
            if self.is_ended:
                return Arrived(time.perf_counter(), b"")
            self._news.clear()
            await self._news.wait()
        at, data = self.arrived.popleft()
        if len(data) > max_bytes:
            self.arrived.appendleft(Arrived(at, data[max_bytes:]))
            data = data[:max_bytes]
        self._num_waiting -= len(data)
        if self._num_waiting <= MOST_KEPT:
            self.transport.resume_reading()
        return Arrived(at, data)

    async def write(self, data: bytes) -> None:
        """Raises OSError where the connection is gone."""
        if self.is_ended or self.transport.is_closing():
            raise self.error or ConnectionResetError("the connection was closed")
        self.transport.write(data)
        await self._may_write.wait()


class TimedStream(httpcore.AsyncNetworkStream):
    """begun_at: when the first bytes of the latest request went out, or the connection for it
    began; read_at: when the bytes that were read last were here."""

    def __init__(self, protocol: TimedProtocol, begun_at: float) -> None:
        self._protocol = protocol
        self._kept = bytearray()
        self._is_sending = True
        self.begun_at = begun_at
        self.read_at = 0.0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await self._flush(timeout)
        with _as_httpcore(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                self.read_at, data = await self._protocol.read(max_bytes)
        self._is_sending = False  # what goes out next is another request
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._kept += buffer
        if len(self._kept) > MOST_KEPT:
            await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> None:
        if not self._kept:
            return
        data = bytes(self._kept)
        self._kept.clear()
        if not self._is_sending:
            self._is_sending, self.begun_at = True, time.perf_counter()
        with _as_httpcore(httpcore.WriteTimeout, httpcore.WriteError):
            async with asyncio.timeout(timeout):
                await self._protocol.write(data)

    async def aclose(self) -> None:
        """When it returns the socket is closed: the loop may end with it."""
        transport = self._protocol.transport
        transport.close()
        await asyncio.sleep(0)
        transport.abort()  # nobody waits for what was not sent
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._protocol.closed.wait()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        protocol, loop = self._protocol, asyncio.get_running_loop()
        with _as_httpcore(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                made = await loop.start_tls(
                    protocol.transport, protocol, ssl_context, server_hostname=server_hostname
                )
        assert made is not None
        protocol.transport = made
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == STREAM:
            return self
        if info == "is_readable":  # of a connection that rests: it was closed there
            return self._protocol.is_ended or bool(self._protocol.arrived)
        name = {"client_addr": "sockname", "server_addr": "peername"}.get(info, info)
        return self._protocol.transport.get_extra_info(name)


class TimedBackend(httpcore.AsyncNetworkBackend):
    """Makes connections that know their times, in asyncio's loop."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        began, loop = time.perf_counter(), asyncio.get_running_loop()
        with _as_httpcore(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                # Where several addresses race and the caller gives up, Python 3.11 may forget a
                # socket: they race where there can be several.
                delay = None if _is_one_address(host) else RACE_S
                _, protocol = await loop.create_connection(
                    TimedProtocol, host, port, happy_eyeballs_delay=delay
                )
        return TimedStream(protocol, began)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _is_one_address(host: str) -> bool:
    return is_loopback(host) or host.replace(".", "").isdigit() or ":" in host


@contextmanager
def _as_httpcore(late: type[Exception], failed: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:  # of ssl too
        raise failed(str(error)) from error


class TimedTransport(httpx.AsyncHTTPTransport):
    """httpx' own, over connections that know their times."""

    def __init__(self, limits: httpx.Limits) -> None:
        context = httpx.create_ssl_context()  # takes a while: once
        super().__init__(verify=context, limits=limits)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=TimedBackend(),
        )


def timed_transport(limits: httpx.Limits, *, is_here: bool) -> httpx.AsyncHTTPTransport | None:
    """None where a proxy stands between, which httpx knows how to ask."""
    return TimedTransport(limits) if is_here or not getproxies() else None


def stream_of(response: httpx.Response) -> TimedStream | None:
    """The connection that a response comes over; None where it does not know its times."""
    stream = response.extensions.get("network_stream")
    found = None if stream is None else stream.get_extra_info(STREAM)
    return found if isinstance(found, TimedStream) else None
