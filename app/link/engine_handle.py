"""The current engine: a local one, whose kind may change with the next model, or a remote one.
No Qt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread
from typing import Any, Protocol

from app.clients.target import Event
from engine import messages

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_MS = 250
"""Minimum interval of a local engine's snapshots. Each has the steps and samples since the previous
one."""


class EngineThreadLike(Protocol):
    """What the bridge needs of `engine.engine_thread.EngineThread`."""

    def start(self) -> None: ...
    def is_alive(self) -> bool: ...
    def submit(self, command: messages.Command) -> None: ...
    def cancel_load(self) -> None: ...
    def stop(self, timeout_s: float = ...) -> Any: ...


OnEvent = Callable[[Event], None]
ThreadFactory = Callable[[OnEvent], EngineThreadLike]


def engine_thread(on_event: OnEvent) -> EngineThreadLike:
    """The engine's thread. Imports torch only after the window shows."""
    from engine.engine_thread import EngineThread

    return EngineThread(on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_MS / 1000)


class EngineHandle:
    """Starts the engine with its first command, and replaces it on request.

    `make_own` makes local engines; `make_next` replaces it with the next model.
    """

    def __init__(self, make_own: ThreadFactory, on_event: OnEvent) -> None:
        self.make_own = make_own
        self.make_next: ThreadFactory | None = None
        self.engine: EngineThreadLike | None = None
        self.make = make_own
        """Makes the current engine, and restarts it."""
        self._on_event = on_event
        self._number = 0  # events of replaced engines are ignored
        self._leaving: list[Thread] = []  # these end replaced engines

    @property
    def is_remote(self) -> bool:
        return self.make is not self.make_own

    def start(self) -> EngineThreadLike:
        if self.engine is None or not self.engine.is_alive():
            number = self._number
            self.engine = self.make(
                lambda event: self._on_event(event) if number == self._number else None
            )
            self.engine.start()
        return self.engine

    def use_next(self) -> None:
        """Apply `make_next`; a running engine keeps running."""
        if self.make_next is not None:
            self.make_own = self.make = self.make_next
            self.make_next = None

    def leave(self, make: ThreadFactory) -> None:
        """Drop the current engine and its events; `make` makes the next."""
        before, self.engine = self.engine, None
        self._number += 1
        self.make = make
        if before is not None and before.is_alive():
            before.cancel_load()
            # in a thread: the engine may be in a step or a load
            self._leaving = [thread for thread in self._leaving if thread.is_alive()]
            self._leaving.append(Thread(target=before.stop, name="engine-shutdown", daemon=True))
            self._leaving[-1].start()

    def end(self, timeout_s: float) -> None:
        """End the engine; wait for it and for replaced ones."""
        engine, self.engine = self.engine, None
        if engine is not None and engine.is_alive():
            engine.cancel_load()
            engine.stop(timeout_s=timeout_s)
            if engine.is_alive():
                log.error("the engine thread did not exit within %.1f s", timeout_s)
        for leaving in self._leaving:
            leaving.join(timeout_s)
