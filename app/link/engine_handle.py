"""Which engine the window talks to: one of its own, of a kind that may change with the next model,
or one that runs elsewhere. No Qt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread
from typing import Any, Protocol

from app.clients.target import Event
from engine import messages

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_MS = 250
"""As often as an engine of ours tells its state at most. A snapshot has the steps and samples since
the one before, so nothing is lost between two."""


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
    """The real engine's thread. Imported late: what it needs is loaded after the window shows."""
    from engine.engine_thread import EngineThread

    return EngineThread(on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_MS / 1000)


class EngineHandle:
    """Holds the engine of now, from when something is asked of it until it is left.

    `make_own` makes engines of our own; `make_next` takes its place with the next model.
    """

    def __init__(self, make_own: ThreadFactory, on_event: OnEvent) -> None:
        self.make_own = make_own
        self.make_next: ThreadFactory | None = None
        self.engine: EngineThreadLike | None = None
        self._make = make_own
        self._on_event = on_event
        self._number = 0  # what an engine says that was left is not heard
        self._leaving: list[Thread] = []  # these end engines that were left

    @property
    def is_remote(self) -> bool:
        return self._make is not self.make_own

    @property
    def offers(self) -> tuple[str, ...] | None:
        return getattr(self.engine, "offers", ()) if self.is_remote else None

    @property
    def place(self) -> str:
        return str(getattr(self.engine, "place", "")) if self.is_remote else ""

    @property
    def look_only(self) -> str:
        if not self.is_remote or getattr(self.engine, "may_control", True):
            return ""
        return f"{self.place} lets windows look and ask, not change it (--no-control)."

    @property
    def maker(self) -> ThreadFactory:
        """Of the engine of now, and of one that is started in its place."""
        return self._make

    def start(self) -> EngineThreadLike:
        """The engine, which runs."""
        if self.engine is None or not self.engine.is_alive():
            self.engine = self._make(self._ear())
            self.engine.start()
        return self.engine

    def _ear(self) -> OnEvent:
        """For the engine of now."""
        number = self._number

        def hear(event: Event) -> None:
            if number == self._number:
                self._on_event(event)

        return hear

    def use_next(self) -> None:
        """Engines of our own are of the kind of `make_next`; one that runs is left to run."""
        if self.make_next is not None:
            self.make_own = self._make = self.make_next
            self.make_next = None

    def leave(self, make: ThreadFactory) -> None:
        """What the engine says is not heard any more; `make` makes the next."""
        before, self.engine = self.engine, None
        self._number += 1
        self._make = make
        if before is not None and before.is_alive():
            self._end_aside(before)

    def _end_aside(self, engine: EngineThreadLike) -> None:
        """An engine may be in the midst of a step, or of a load."""
        engine.cancel_load()
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]
        self._leaving.append(Thread(target=engine.stop, name="leaving engine", daemon=True))
        self._leaving[-1].start()

    def end(self, timeout_s: float) -> None:
        """Ends the engine, and waits for it and for those that were left."""
        engine, self.engine = self.engine, None
        if engine is not None and engine.is_alive():
            engine.cancel_load()
            engine.stop(timeout_s=timeout_s)
            if engine.is_alive():
                log.error("the engine's thread did not end within %.1f s", timeout_s)
        for leaving in self._leaving:
            leaving.join(timeout_s)
