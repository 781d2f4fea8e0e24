"""`BenchTargets`: the other engines of a comparison, for the thread that measures them.

Managed engines that are stopped are started, without switching the window to them, and stopped at
the end. Where memory does not suffice for one beside those that were started, these stop first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeoutError
from functools import partial
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal

from app.bench.engines import OWN, Reached
from app.bench.sweep import SweepCancelledError
from app.clients.connection import Connection
from app.features.serve.connections import ConnectionStore
from app.features.serve.managed import ManagedEngines
from app.managed.process import State
from app.managed.room import has_room_beside
from engine.errors import ConfigError, InferdeckError

POLL_S = 0.1
KEY_S = 10.0
"""For the keyring."""

T = TypeVar("T")
IsOver = Callable[[], bool]


class BenchTargets(QObject):
    """Made in the GUI thread; `reach` is for another one."""

    _asked = Signal(object)

    def __init__(self, store: ConnectionStore, engines: ManagedEngines, parent: QObject) -> None:
        super().__init__(parent)
        self._store, self._engines = store, engines
        self._started: list[str] = []
        self._asked.connect(lambda run: run())

    def names(self) -> list[str]:
        return [one.name for one in self._store.connections if one.name != OWN]

    def reach(self, name: str, is_over: IsOver) -> Reached:
        """The server of this connection, started if need be. Raises InferdeckError,
        SweepCancelledError."""
        connection = self._in_window(partial(self._store.named, name), is_over)
        if connection is None:
            raise ConfigError(f"There is no engine {name!r}.", "Choose one of the connections.")
        if self._in_window(partial(self._store.launch, connection.id), is_over) is not None:
            self._run(connection, is_over)
        end = time.monotonic() + KEY_S
        self._in_window(partial(self._store.keys.fetch, connection.key_name), is_over)
        while not self._store.keys.is_known(connection.key_name) and time.monotonic() < end:
            _check(is_over)
            time.sleep(POLL_S)
        return self._in_window(partial(self._reached, connection.id), is_over)

    def release(self) -> None:
        """Stop the engines that were started for it, except one that the window uses by now."""
        for connection_id in self._started:
            if not self._engines.is_used(connection_id):
                self._engines.stop(connection_id)
        self._started.clear()

    def _reached(self, connection_id: str) -> Reached:
        connection = self._store.find(connection_id)  # it may have another port now
        if connection is None:
            raise InferdeckError("The engine was deleted.", "Run again without it.")
        return Reached(self._store.target(connection), connection.model)

    # The thread that measures --------------------------------------------------------------------

    def _run(self, connection: Connection, is_over: IsOver) -> None:
        known, engines = connection.id, self._engines
        if engines.status(known).state is State.STOPPING:  # after the run before
            self._until_ended(known, is_over)
        if not engines.is_running(known):
            self._make_room(is_over)
            self._started.append(known)  # before: a call that was cancelled may still run
            self._in_window(partial(engines.run, known), is_over)
        while not engines.is_ready(known):
            _check(is_over)
            status = engines.status(known)
            if status.error is not None:
                raise InferdeckError(status.error.cause, status.error.remedy)
            if not status.is_running:
                raise InferdeckError(f"{connection.name} was stopped.", "Run again.")
            time.sleep(POLL_S)

    def _make_room(self, is_over: IsOver) -> None:
        for known in filter(self._engines.is_running, tuple(self._started)):
            pid = self._engines.pid(known)
            if pid is not None and not has_room_beside(pid):
                self._started.remove(known)
                self._in_window(partial(self._engines.stop, known), is_over)
                self._until_ended(known, is_over)

    def _until_ended(self, known: str, is_over: IsOver) -> None:
        while self._engines.is_running(known):
            _check(is_over)
            time.sleep(POLL_S)

    def _in_window(self, do: Callable[[], T], is_over: IsOver) -> T:
        """The result of a call in the GUI thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(do())
            except BaseException as error:
                future.set_exception(error)

        self._asked.emit(run)
        while True:
            try:
                found: T = future.result(timeout=POLL_S)
                return found
            except WaitTimeoutError:
                if future.done():
                    raise
                _check(is_over)


def _check(is_over: IsOver) -> None:
    if is_over():
        raise SweepCancelledError
