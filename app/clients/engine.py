"""ForeignEngine: another server with the interface of EngineThread.

    window  -- submit(Command) -->  loop of the thread "foreign engine"  -- HTTP -->  server
    window  <-- on_event(Event) --  replies as they stream, /metrics once a second

What the server does not tell is named in each snapshot's `missing`; latencies are measured here,
as a client: from the command that sent a request to the bytes that came.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress

from app.clients.errors import TargetError
from app.clients.http import parse_address
from app.clients.session import Session, said
from app.clients.target import LinkChanged, LinkState, OnEvent, Probe, Target
from engine.errors import describe
from engine.messages import Command, EngineCrashed, LoadFailed, Stop

log = logging.getLogger(__name__)


class ForeignEngine(threading.Thread):
    """Serves commands until `stop`. probe: what was found there, where it was just asked; model:
    which of its models, else its first."""

    def __init__(
        self, on_event: OnEvent, target: Target, probe: Probe | None = None, model: str = ""
    ) -> None:
        super().__init__(name="foreign engine", daemon=True)
        self._emit = on_event
        self._target = target
        self._probe = probe
        self._wanted = model
        self._lock = threading.Lock()
        self._early: list[tuple[Command, float]] = []  # before the loop runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._session: Session | None = None

    # -- called from any thread -------------------------------------------------------------

    @property
    def offers(self) -> tuple[str, ...]:
        """Names of the models that it serves; none before it has answered."""
        return self._session.models if self._session is not None else ()

    @property
    def place(self) -> str:
        """What the window calls it."""
        try:
            return self._target.name or parse_address(self._target.base_url).host
        except TargetError:
            return self._target.base_url

    def submit(self, command: Command) -> None:
        at = time.perf_counter()
        with self._lock:
            if self._loop is None:
                self._early.append((command, at))
                return
            loop = self._loop
        with suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(self._handle, command, at)

    def cancel_load(self) -> None:
        """Give up connecting; where it is connected, nothing happens."""
        with self._lock:
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._cancel_connecting)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Hang up and end the thread; the server elsewhere runs on. True if it ended in time."""
        with self._lock:
            self._is_stopping = True
        self.submit(Stop())
        if self.is_alive():
            self.join(timeout_s)
        return not self.is_alive()

    # -- the thread -------------------------------------------------------------------------

    def run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception as error:
            log.exception("the connection to %s failed", self._target.base_url)
            self._emit(EngineCrashed(describe(error), ""))

    async def _serve(self) -> None:
        with self._lock:
            if self._is_stopping:
                return
            self._loop = asyncio.get_running_loop()
            early, self._early = self._early, []
        try:
            address = parse_address(self._target.base_url)
            session = Session(self._emit, self._target, address, self._probe, self._wanted)
        except TargetError as error:
            self._emit(LinkChanged(LinkState.CLOSED, time.perf_counter(), said(error)))
            self._emit(LoadFailed(error.info()))
            return
        self._session = session
        for command, at in early:
            session.handle(command, at)
        try:
            await session.run()
        finally:
            with self._lock:
                self._loop = None
            await session.close()

    def _handle(self, command: Command, at: float) -> None:
        if self._session is not None:
            self._session.handle(command, at)

    def _cancel_connecting(self) -> None:
        if self._session is not None:
            self._session.cancel_connecting()
