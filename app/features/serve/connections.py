"""The stored connections: `KeyCache`, `ConnectionStore` and a `Watcher` per connection."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.connection import Connection, KeyStore
from app.clients.look import LOOK_TIMEOUT_S as TIMEOUT_S
from app.clients.look import LiveFigures, Looker
from app.clients.target import LinkState, Probe, Target, TargetError, parse_address
from app.link.tasks import Task, run_task
from app.managed.launch import Launch
from app.managed.ports import kv_forwards, traces_port
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from widgets.live.metric_store import RATE_S, SPAN_S
from widgets.live.trends import StatTrends

POLL_MS = 1500
ASKED_EVERY = 5
"""Polls between two probes, while the server type is unknown."""

TREND = "tokens"


class KeyCache(QObject):
    """Caches API keys of the keyring. `arrived(name)`: the key was read, or is missing.
    `problem_changed`: whether keys are stored permanently."""

    arrived = Signal(str)
    problem_changed = Signal()

    def __init__(self, store: KeyStore | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store or KeyStore()
        self._known: dict[str, str] = {}
        self._asked: set[str] = set()
        self._last_problem = ""

    @property
    def problem(self) -> str:
        """Why keys are not stored permanently, or ""."""
        return self._store.problem

    def is_known(self, name: str) -> bool:
        return name in self._known

    def key(self, name: str) -> str:
        """The key, or "" before it is read."""
        return self._known.get(name, "")

    def fetch(self, name: str) -> None:
        """Read it once; `arrived` follows."""
        if name in self._known:
            self.arrived.emit(name)
        elif name not in self._asked:
            self._asked.add(name)
            run_task(
                self,
                lambda: self._store.read(name),
                lambda key: self._on_read(name, key),
                lambda error: self._on_read(name, ""),
            )

    def put(self, name: str, key: str) -> None:
        """Store a key; "" deletes it."""
        if self._known.get(name) == key:
            return
        self._known[name] = key
        # Writes the newest key, whichever task runs first.
        run_task(
            self,
            lambda: self._store.write(name, self._known.get(name, "")),
            self._check_problem,
            self._check_problem,
        )

    def _on_read(self, name: str, key: str) -> None:
        self._known.setdefault(name, key)  # a key typed meanwhile is newer
        self._check_problem()
        self.arrived.emit(name)

    def _check_problem(self, outcome: object = None) -> None:
        if self._store.problem != self._last_problem:
            self._last_problem = self._store.problem
            self.problem_changed.emit()


class ConnectionStore(QObject):
    """Saves every change immediately. `changed`: the list or a connection."""

    changed = Signal()

    def __init__(
        self, settings: SettingsStore, keys: KeyCache, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._settings, self.keys = settings, keys
        self._all = settings.connections
        self._launches = settings.launches

    @property
    def connections(self) -> list[Connection]:
        return list(self._all)

    def find(self, connection_id: str) -> Connection | None:
        return next((one for one in self._all if one.id == connection_id), None)

    def at(self, base_url: str) -> Connection | None:
        """The server at an address, in whichever form."""
        wanted = _root(base_url)
        return next((one for one in self._all if _root(one.base_url) == wanted), None)

    def named(self, name: str) -> Connection | None:
        return next((one for one in self._all if one.name == name), None)

    def beside(self, connection_id: str) -> list[Connection]:
        return [one for one in self._all if one.id != connection_id]

    def key(self, connection: Connection) -> str:
        """The API key, or "" before it is read."""
        return self.keys.key(connection.key_name)

    def target(self, connection: Connection) -> Target:
        """Of an engine that this window runs, with the ports beside its own."""
        found, launch = connection.target(self.key(connection)), self.launch(connection.id)
        if launch is None:
            return found
        port = int(connection.base_url.rpartition(":")[2])
        return dataclasses.replace(
            found, traces_port=traces_port(launch, port), forwards=kv_forwards(launch, port)
        )

    def launch(self, connection_id: str) -> Launch | None:
        """How this window runs the engine; None for one that others run."""
        return self._launches.get(connection_id)

    def set_launch(self, connection_id: str, launch: Launch) -> None:
        self._launches[connection_id] = launch
        self._settings.launches = self._launches

    def keep(self, connection: Connection, key: str | None = None) -> None:
        """Add or replace a connection, with `key` where given."""
        places = [place for place, one in enumerate(self._all) if one.id == connection.id]
        if key is not None:
            self.keys.put(connection.key_name, key)
        if places and self._all[places[0]] == connection:
            return
        if places:
            self._move_replicas(self._all[places[0]].base_url, connection.base_url)
            self._all[places[0]] = connection
        else:
            self._all.append(connection)
        self._store()

    def routers_of(self, base_url: str) -> list[str]:
        """Ids of the routers that have a replica at this address."""
        return [known for known, one in self._launches.items() if base_url in one.replicas]

    def _move_replicas(self, before: str, now: str) -> None:
        for known in self.routers_of(before) if now != before else ():
            moved = tuple(now if one == before else one for one in self._launches[known].replicas)
            self.set_launch(known, replace(self._launches[known], replicas=moved))

    def update(self, connection_id: str, **changes: Any) -> None:
        known = self.find(connection_id)
        if known is not None:
            self.keep(dataclasses.replace(known, **changes))

    def delete(self, connection_id: str) -> int:
        """Delete; returns the index. Its key stays until `forget`, for undo."""
        place = next(p for p, one in enumerate(self._all) if one.id == connection_id)
        del self._all[place]
        self._store()
        return place

    def restore(self, connection: Connection, place: int) -> None:
        self._all.insert(place, connection)
        self._store()

    def forget(self, connection: Connection) -> None:
        """Forget the key and the settings of a deleted connection."""
        self.keys.put(connection.key_name, "")
        if self._launches.pop(connection.id, None) is not None:
            self._settings.launches = self._launches

    def _store(self) -> None:
        self._settings.connections = self._all
        self.changed.emit()


def _root(base_url: str) -> str:
    try:
        return parse_address(base_url).root
    except TargetError:
        return base_url


class Watcher(QObject):
    """Polls one connection. `changed`: state or figures. An unknown server is probed. routed_url:
    see `RouterLook`."""

    changed = Signal()
    recognised = Signal(object)  # Probe

    def __init__(
        self, connection: Connection, key: str, parent: QObject | None = None, routed_url: str = ""
    ) -> None:
        super().__init__(parent)
        self.connection, self._routed_url = connection, routed_url
        self.state = LinkState.CLOSED
        self.words = ""
        """The error, or ""."""
        self.figures: LiveFigures | None = None
        self.trends = StatTrends((TREND,))
        self._key = key
        self._polls = 0
        self._looker: Looker | None = None
        self._task: Task | None = None
        self._timer = QTimer(self, interval=POLL_MS)
        self._timer.timeout.connect(self.look)

    @property
    def is_on(self) -> bool:
        return self._timer.isActive()

    def set_on(self, is_on: bool) -> None:
        if is_on == self.is_on:
            return
        if is_on:
            self._timer.start()
            if self.state is LinkState.CLOSED:
                self._say(LinkState.CONNECTING, "")
            self.look()
        else:
            self._timer.stop()

    def look(self) -> None:
        """Poll now, unless a poll is running."""
        server_type = self.connection.server_type
        if self._task is not None:
            return
        if server_type is None:
            self._polls += 1
            if self._polls % ASKED_EVERY == 1:
                target = self.connection.target(self._key)
                self._task = run_task(
                    self, lambda: probe(target, TIMEOUT_S), self._on_probe, self._on_error
                )
            return
        if self._looker is None:
            target = self.connection.target(self._key)
            self._looker = Looker(target, server_type, RATE_S, SPAN_S, self._routed_url)
        self._task = run_task(self, self._looker.look, self._on_figures, self._on_error)

    def _on_probe(self, probe: Probe) -> None:
        self._task = None
        self.recognised.emit(probe)

    def close(self) -> None:
        """Stop polling and drop a running poll."""
        self._timer.stop()
        looker, self._looker = self._looker, None
        if self._task is not None:
            self._task.cancel()
        if looker is not None:
            looker.close()

    def _on_figures(self, figures: LiveFigures) -> None:
        self._task = None
        self.figures = figures
        rate = figures.tokens_per_s
        if rate is not None and rate == rate:
            self.trends.add(time.perf_counter(), {TREND: rate})
        self._say(LinkState.LIVE, "")

    def _on_error(self, error: ErrorInfo) -> None:
        self._task = None
        state = LinkState.STALE if self.figures is None else LinkState.RECONNECTING
        self._say(state, f"{error.cause} {error.remedy}".strip())

    def _say(self, state: LinkState, words: str) -> None:
        self.state, self.words = state, words
        self.changed.emit()


def probe(target: Target, timeout_s: float = 5.0) -> Probe:
    """Asks a server what it is. Runs in a task: imports and network."""
    from app.clients.probe import probe

    return probe(target, timeout_s)
