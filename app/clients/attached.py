"""RemoteEngine: an attached engine in another process, with the interface of EngineThread.

    GUI thread    submit(command) --> queue                  on_event(event) --> EngineBridge
    this thread                       Talk ==== line ====> server

The session survives lost connections: commands wait, and replies resume. What the server no longer
has fails with a message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from app.clients.attached_line import Line, LineError, connected
from app.clients.attached_session import Talk
from app.clients.loop_thread import LoopThread
from app.clients.target import LinkChanged, LinkState, OnEvent, Target, parse_address
from app.wire.codec import CancelLoad, WireCommand
from app.wire.protocol import SESSION_S, Welcome
from engine import messages as m
from engine.errors import ErrorInfo
from engine.heartbeat import Pulse
from engine.units import rough_duration

if TYPE_CHECKING:
    from app.link.bridge import EngineBridge


log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
MAX_WAITING = 256
"""Maximum commands waiting for a connection."""
GIVE_UP_S = SESSION_S + 5.0
"""By then the server has dropped the session: pending replies fail."""


class RemoteEngine(LoopThread):
    """Uses engine.messages like EngineThread, plus LinkChanged. Raises TargetError for an invalid
    address.

    `welcome`: the server's last greeting; None before. Times in events are of this process's clock,
    accurate to half a round trip (see `app.clients.attached_session`).
    """

    def __init__(self, on_event: OnEvent, target: Target) -> None:
        self.target = target
        self.address = parse_address(target.base_url)
        super().__init__("remote engine")
        self.welcome: Welcome | None = None
        self._emit = on_event
        self._talk = Talk(on_event)
        self._leaving = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._line: Line | None = None
        self._heard_at = 0.0
        self._is_live = False
        self._closed_for = ""  # the final cause, as a sentence
        self._cut_at: float | None = None
        self._tries = 0  # since it was live

    # Any thread ------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return self.target.name or self.address.host

    @property
    def heard_at(self) -> float:
        """When data last arrived, of `time.perf_counter`; 0 before the first."""
        line = self._line
        return line.heard_at if line is not None else self._heard_at

    @property
    def pulse(self) -> Pulse | None:
        """The engine's, at most about a second ago; None: not reported."""
        return self._talk.pulse

    @property
    def offers(self) -> tuple[str, ...] | None:
        """Names of the models that the server offers; None if it reads this machine's folders."""
        welcome = self.welcome
        if welcome is None:
            return ()
        return None if welcome.trusts_paths else tuple(offer.name for offer in welcome.offers)

    @property
    def may_control(self) -> bool:
        """Whether this window may open models and change settings."""
        return self.welcome is None or self.welcome.may_control

    def submit(self, command: m.Command) -> None:
        self._post(self._take, command)

    def cancel_load(self) -> None:
        self._post(self._take, CancelLoad())

    # The thread ------------------------------------------------------------------------------

    def _on_failed(self, error: BaseException) -> None:
        log.exception("connection to %s failed", self.address.host)
        self._tell(LinkState.CLOSED, f"Connection failed: {error!r}.")

    async def _live(self) -> None:
        self._main = asyncio.current_task()
        wait = FIRST_WAIT_S
        words = ""
        try:
            while not self._leaving.is_set() and not self._closed_for:
                self._say_trying(words)
                try:
                    await self._one_line()
                    words = "The server closed the connection."
                except LineError as error:
                    words = str(error)
                    if error.for_good:
                        self._close(words)
                        break
                was_live = not self._tries
                wait = FIRST_WAIT_S if was_live else min(2 * wait, LONGEST_WAIT_S)
                await self._pause(wait)
            await self._leaving.wait()  # closed: every command fails with the cause
        finally:
            if not self._closed_for:
                self._tell(LinkState.CLOSED)

    async def _one_line(self) -> None:
        """Run one connection to its end. Raises LineError."""
        line = self._line = await connected(self.target, self.address, self._talk, self._on_silence)
        try:
            self.welcome = await line.greet()
            self._cut_at, self._tries, self._is_live = None, 0, True
            self._tell(LinkState.LIVE)
            await line.serve(self._leaving)
        finally:
            if self._is_live:
                self._cut_at = time.perf_counter()
            self._heard_at = line.heard_at
            self._line, self._is_live = None, False
            await line.close()

    async def _pause(self, seconds: float) -> None:
        """Wait between two attempts; fail pending requests once the session has expired."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        cut = self._cut_at
        if cut is not None and time.perf_counter() - cut > GIVE_UP_S:
            self._talk.give_up(time.perf_counter() - cut)
            self._cut_at = None

    def _leave(self) -> None:
        """A live connection says goodbye and ends by itself."""
        self._leaving.set()
        self._talk.wake()
        if not self._is_live and self._main is not None:
            self._main.cancel()

    def _take(self, command: WireCommand) -> None:
        if self._closed_for:
            self._talk.refuse(command, ErrorInfo(self._closed_for, "Reconnect."))
        elif self._line is None and self._talk.num_waiting >= MAX_WAITING:
            why = f"Not connected to {self.address.host}; {MAX_WAITING} commands are pending."
            self._talk.refuse(command, ErrorInfo(why, "Try again once connected."))
        else:
            self._talk.give(command)

    def _close(self, words: str) -> None:
        self._closed_for = words
        self._talk.close(words)
        self._tell(LinkState.CLOSED, words)

    def _say_trying(self, words: str) -> None:
        self._tries += 1
        if self.welcome is None:
            self._tell(LinkState.CONNECTING, words)
        else:
            numbered = f"Attempt {self._tries}. {words}".strip()
            self._tell(LinkState.RECONNECTING, numbered, self._tries)

    def _on_silence(self, seconds: float | None) -> None:
        """`seconds` without data; None: data arrives again."""
        if seconds is None:
            self._tell(LinkState.LIVE)
        else:
            self._tell(LinkState.STALE, f"No data for {rough_duration(seconds)}.")

    def _tell(self, state: LinkState, words: str = "", attempt: int = 0) -> None:
        log.info("%s: %s %s", self.address.host, state, words)
        self._emit(LinkChanged(state, time.perf_counter(), words, attempt))


def attach(bridge: EngineBridge, target: Target) -> None:
    """Switch `bridge` to the engine at `target`; `bridge.link_changed` reports the connection's
    state. Raises TargetError for an invalid address."""
    parse_address(target.base_url)

    bridge.attach(lambda on_event: RemoteEngine(on_event, target))
