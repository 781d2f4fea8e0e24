"""`ManagedWaits`: what precedes the start of a router and the end of any engine.

start of a router: its replicas are checked -> started
restart:           its requests are finished, or `DRAIN_S` are over -> stopped
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.clients.connection import Connection
from app.clients.target import ServerType, Target
from app.features.serve.connections import ConnectionStore
from app.link.tasks import Task, run_task
from app.managed.drain import drain
from app.managed.launch import Launch
from app.managed.replicas import check
from engine.errors import ErrorInfo

DRAIN_S = 30.0


class ManagedWaits(QObject):
    """By connection id. `go_on` and `fail` are called when a wait is over, unless it was ended."""

    def __init__(self, store: ConnectionStore, parent: QObject) -> None:
        super().__init__(parent)
        self._store = store
        self._drains: dict[str, Task] = {}
        self._checks: dict[str, Task] = {}

    def is_draining(self, connection_id: str) -> bool:
        return connection_id in self._drains

    def is_checking(self, connection_id: str) -> bool:
        return connection_id in self._checks

    def drain(self, connection: Connection, go_on: Callable[[], None]) -> None:
        """Wait for its requests."""
        target, kind = self._store.target(connection), connection.server_type or ServerType.OPENAI

        def over(outcome: object) -> None:
            self._drains.pop(connection.id, None)
            go_on()

        self._drains[connection.id] = run_task(
            self, lambda: drain(target, kind, DRAIN_S), over, over
        )

    def check(
        self, connection: Connection, launch: Launch, go_on: Callable[[], None],
        fail: Callable[[ErrorInfo], None],
    ) -> None:  # fmt: skip
        """Whether the replicas can be those of one router, which then has their key."""
        targets = [self._target_at(url) for url in launch.replicas]
        if key := next((one.api_key for one in targets if one.api_key), None):
            self._store.keys.put(connection.key_name, key)  # the router passes it on

        def over(do: Callable[[], None]) -> None:
            self._checks.pop(connection.id, None)
            do()

        self._checks[connection.id] = run_task(
            self, lambda: check(targets), lambda _: over(go_on),
            lambda error: over(lambda: fail(error)),
        )  # fmt: skip

    def _target_at(self, url: str) -> Target:
        known = self._store.at(url)
        return self._store.target(known) if known is not None else Target(url)

    def end(self, connection_id: str) -> None:
        for tasks in (self._drains, self._checks):
            task = tasks.pop(connection_id, None)
            if task is not None:
                task.cancel()

    def close_down(self) -> None:
        for connection_id in {*self._drains, *self._checks}:
            self.end(connection_id)
