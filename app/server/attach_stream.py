"""Server side of an attached window's WebSocket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from app.server.attach_hub import Hub
from app.server.attach_session import Session
from app.wire.codec import Message, read_command
from app.wire.protocol import (
    BEAT_S,
    HELLO_S,
    SILENT_S,
    Pong,
    ProtocolError,
    Refused,
    encode,
    read_frame,
    read_hello,
    read_ping,
)

log = logging.getLogger(__name__)

PACE_S = 0.015
"""Interval between frames that are not urgent."""
_REFUSED, _PROTOCOL, _REPLACED = 4000, 1002, 4001


class Stream:
    """One WebSocket."""

    def __init__(self, hub: Hub, socket: WebSocket) -> None:
        self._hub = hub
        self._socket = socket
        self._session: Session | None = None

    async def run(self) -> None:
        await self._socket.accept()
        try:
            async with asyncio.timeout(2 * HELLO_S):
                session = await self._greet()
            if session is not None:
                await self._serve(session)
        except ProtocolError as error:
            log.warning("disconnected a window: %s", error)
            await self._close(_PROTOCOL, str(error))
        except (WebSocketDisconnect, TimeoutError, RuntimeError):
            pass  # it went away
        finally:
            session = self._session
            if session is not None and session.line is self and not session.is_ended:
                session.line = None
                if session.was_ready:
                    self._hub.cut(session)
                else:
                    self._hub.forget(session)

    async def _greet(self) -> Session | None:
        """None if the window is refused. Raises ProtocolError."""
        hello = read_hello(await self._receive(HELLO_S))
        try:
            session, welcome = self._hub.open(hello)
        except ProtocolError as error:
            await self._socket.send_bytes(encode(Refused(str(error))))
            await self._close(_REFUSED, str(error))
            return None
        before, session.line, session.cut_at = session.line, self, None
        self._session = session
        if isinstance(before, Stream):  # the window knows that its old connection is dead
            await before._close(_REPLACED, "The window opened a new connection.")
        await self._socket.send_bytes(encode(welcome))
        while True:  # pings, until the window has set its clock
            frame = read_frame(await self._receive(HELLO_S))
            kinds = [kind for kind, _ in frame.messages]
            if kinds == ["ready"]:
                session.was_ready = True
                return session
            if kinds != ["ping"]:
                raise ProtocolError("Expected a ready message from the window.")
            await self._pong(session, frame.messages[0][1])

    async def _serve(self, session: Session) -> None:
        """Run until one side disconnects. Raises the cause."""
        tasks = [asyncio.create_task(work(session)) for work in (self._hear, self._send)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # What the window says -----------------------------------------------------------------------

    async def _hear(self, session: Session) -> None:
        while session.line is self and not session.is_ended:
            frame = read_frame(await self._receive(SILENT_S))
            messages = session.sequencer.receive(frame)
            session.heard()
            for kind, body in messages:
                if kind == "ping":
                    await self._pong(session, body)
                elif kind == "bye":
                    self._hub.forget(session)
                else:
                    self._hub.command(session, read_command(kind, body))

    async def _receive(self, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        data = message.get("bytes")
        if data is None:
            raise ProtocolError("Expected a binary message, got text.")
        return bytes(data)

    async def _pong(self, session: Session, body: bytes) -> None:
        pulse = self._hub.pulse
        told = (pulse.doing, pulse.seconds) if pulse is not None else ()
        pong = Pong(read_ping(body).sent, time.perf_counter(), *told)
        await self._note(session, [("pong", encode(pong))])

    async def _note(self, session: Session, messages: Sequence[Message] = ()) -> None:
        await self._socket.send_bytes(session.sequencer.unnumbered(messages))

    # What the window hears -----------------------------------------------------------------------

    async def _send(self, session: Session) -> None:
        for data in [sent.data for sent in session.sequencer.unacknowledged]:
            await self._socket.send_bytes(data)
        next_at = beat_at = time.monotonic()
        while session.line is self and not session.is_ended:
            now = time.monotonic()
            if session.may_send and (session.is_urgent or now >= next_at):
                await self._socket.send_bytes(session.frame())
                next_at, beat_at = time.monotonic() + PACE_S, now + BEAT_S
            elif now >= beat_at:
                await self._note(session)
                beat_at = now + BEAT_S
            else:
                await session.wait((next_at if session.may_send else beat_at) - now)

    async def _close(self, code: int, words: str) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(code, words.encode()[:120].decode(errors="ignore"))
