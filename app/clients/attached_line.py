"""Window side of the attach WebSocket: connect, greet, send, receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from websockets import exceptions
from websockets.asyncio.client import ClientConnection, connect

from app.clients.attached_session import Talk
from app.clients.target import Address, Target
from app.paths import program_version
from app.wire.codec import OPTIONAL
from app.wire.protocol import (
    BEAT_S,
    HELLO_S,
    MAX_SERVER_FRAME,
    SILENT_S,
    STALE_S,
    STREAM_PATH,
    VERSION,
    Hello,
    Ping,
    ProtocolError,
    Refused,
    Welcome,
    encode,
    read_answer,
    read_frame,
    read_pong,
)
from engine.heartbeat import Pulse
from engine.units import rough_duration


def stream_url(address: Address) -> str:
    return address.root.replace("http", "ws", 1) + STREAM_PATH


ACK_BYTES, ACK_FRAMES = 1 << 20, 32
"""Acknowledge at once after this much; otherwise with the next heartbeat."""
FIRST_PINGS = 4
_LOOK_S = 0.25


class LineError(Exception):
    """No connection; `str` is a sentence. `for_good`: do not retry."""

    def __init__(self, words: str, *, for_good: bool = False) -> None:
        super().__init__(words)
        self.for_good = for_good


async def connected(
    target: Target, address: Address, talk: Talk, on_silence: Callable[[float | None], None]
) -> Line:
    """Raises LineError."""
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    try:
        socket = await connect(
            stream_url(address),
            additional_headers=headers,
            user_agent_header=f"inferdeck/{program_version()}",
            compression=None,
            proxy=None if address.is_here else True,
            open_timeout=HELLO_S,
            close_timeout=1.0,
            ping_interval=None,  # our own beats
            max_size=MAX_SERVER_FRAME,
        )
    except exceptions.InvalidStatus as error:
        raise _not_let_in(error, address) from None
    except exceptions.InvalidMessage as error:
        if isinstance(error.__cause__, EOFError):  # closed early: a proxy is not ready
            raise LineError(f"{address.host} closed the connection.") from None
        raise LineError(f"{address.host} is not an HTTP server.", for_good=True) from None
    except exceptions.InvalidHandshake as error:
        raise LineError(
            f"{address.host} is not an Inferdeck server: {error}.", for_good=True
        ) from None
    except TimeoutError:
        raise LineError(f"{address.host} does not respond.") from None
    except (OSError, exceptions.WebSocketException) as error:
        raise LineError(f"Cannot reach {address.host}: {_reason(error)}.") from None
    return Line(socket, address, talk, on_silence)


def _not_let_in(error: exceptions.InvalidStatus, address: Address) -> LineError:
    status, place = error.response.status_code, address.host
    if status == 401:
        return LineError(f"{place} rejected the API key.", for_good=True)
    if status == 403:
        return LineError(f"{place} rejected the connection: {_said(error)}", for_good=True)
    if status in (404, 405, 426, 501) or 200 <= status < 400:
        return LineError(f"{place} has no Inferdeck attach endpoint.", for_good=True)
    return LineError(f"{place} returned HTTP {status}: {_said(error)}")


def _said(error: exceptions.InvalidStatus) -> str:
    """The message in an Inferdeck server's error object."""
    try:
        said = msgspec.json.decode(error.response.body or b"")["error"]["message"]
    except (msgspec.MsgspecError, RecursionError, ValueError, KeyError, TypeError):
        return "no reason given."
    return str(said)[:300]


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.rstrip(".") or type(error).__name__


class Line:
    """One connection. `on_silence`: called with the seconds without data; with None when data
    arrives again. `heard_at`: when data last arrived, of `time.perf_counter`."""

    def __init__(
        self,
        socket: ClientConnection,
        address: Address,
        talk: Talk,
        on_silence: Callable[[float | None], None],
    ) -> None:
        self._socket = socket
        self._host = address.host
        self._talk = talk
        self._on_silence = on_silence
        self.heard_at = time.perf_counter()
        self._num_unacknowledged = self._bytes_unacknowledged = 0
        self._is_stale = False

    async def greet(self) -> Welcome:
        """Raises LineError."""
        try:
            async with asyncio.timeout(HELLO_S):
                return await self._greet()
        except TimeoutError:
            raise LineError(f"{self._host} does not respond.") from None
        except exceptions.ConnectionClosed as error:
            raise self._cut(error) from None
        except ProtocolError as error:
            raise LineError(str(error), for_good=True) from None

    async def _greet(self) -> Welcome:
        talk = self._talk
        hello = Hello(
            VERSION, program_version(), talk.session, talk.sequencer.received,
            tuple(OPTIONAL.values()),
        )  # fmt: skip
        await self._socket.send(encode(hello))
        answer = read_answer(await self._receive())
        if isinstance(answer, Refused):
            raise LineError(answer.words, for_good=answer.for_good)
        if answer.version != VERSION:
            raise ProtocolError(
                f"Protocol mismatch: server version {answer.version}, window version "
                f"{VERSION}. Install the same Inferdeck version on both machines."
            )
        again = talk.welcomed(answer)
        talk.clock.reset()
        for _ in range(FIRST_PINGS):
            await self._ping()
            self._take(await self._receive())
        await self._note(("ready", encode(Ping(0.0))))
        for data in again:
            await self._socket.send(data)
        return answer

    async def serve(self, leaving: asyncio.Event) -> None:
        """Run until the connection ends or `leaving` is set. Raises LineError."""
        works = (self._hear(), self._say(leaving), self._beat())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except exceptions.ConnectionClosed as error:
            raise self._cut(error) from None
        except ProtocolError as error:
            raise LineError(str(error), for_good=True) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        await self._socket.close()

    async def _hear(self) -> None:
        while True:
            data = await self._receive()
            self.heard_at = time.perf_counter()
            if self._is_stale:
                self._is_stale = False
                self._on_silence(None)
            self._take(data)
            self._num_unacknowledged += 1
            self._bytes_unacknowledged += len(data)
            if self._num_unacknowledged >= ACK_FRAMES or self._bytes_unacknowledged >= ACK_BYTES:
                await self._note()

    def _take(self, data: bytes) -> None:
        for kind, body in self._talk.hear(read_frame(data)):
            if kind != "pong":
                raise ProtocolError(f"Unknown message type: {kind[:40]!r}.")
            pong = read_pong(body)
            self._talk.clock.heard(pong.sent, pong.now, time.perf_counter())
            seconds = pong.seconds
            self._talk.pulse = None if seconds is None else Pulse(pong.doing, seconds)

    async def _say(self, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            for data in self._talk.frames():
                await self._socket.send(data)
            await self._talk.changed()
        await self._note(("bye", encode(Ping(0.0))))

    async def _beat(self) -> None:
        ping_at = time.perf_counter() + BEAT_S
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.perf_counter()
            silent = now - self.heard_at
            if silent > SILENT_S:
                self._socket.transport.abort()
                raise LineError(f"No data from {self._host} for {rough_duration(silent)}.")
            if silent > STALE_S and not self._is_stale:
                self._is_stale = True
                self._on_silence(silent)
            if now >= ping_at:
                ping_at = now + BEAT_S
                await self._ping()

    async def _ping(self) -> None:
        await self._note(("ping", encode(Ping(time.perf_counter()))))

    async def _note(self, *messages: tuple[str, bytes]) -> None:
        self._num_unacknowledged = self._bytes_unacknowledged = 0
        await self._socket.send(self._talk.sequencer.unnumbered(messages))

    async def _receive(self) -> bytes:
        data = await self._socket.recv()
        if isinstance(data, str):
            raise ProtocolError("Expected a binary message, got text.")
        return data

    def _cut(self, error: exceptions.ConnectionClosed) -> LineError:
        """The error for a lost connection, with the reason in its close frame."""
        received = error.rcvd
        if received is not None and received.code == 4001:
            return LineError("Another window took over this session.", for_good=True)
        if received is not None and received.code == 1002:
            return LineError(f"The server closed the connection: {received.reason}", for_good=True)
        if received is not None and received.code in (1001, 1012):
            return LineError("The server shut down.")
        return LineError(f"Connection to {self._host} lost.")
