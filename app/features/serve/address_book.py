"""Keys for the window: known at once where they were read, read and kept off its thread."""

from __future__ import annotations

import dataclasses
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.clients.connection import Connection, KeyStore
from app.link.tasks import run_task
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo


class KeyDesk(QObject):
    """`arrived(name)`: a key was read, or is known to be missing. `problem_changed`: whether keys
    outlive this run."""

    arrived = Signal(str)
    problem_changed = Signal()

    def __init__(self, store: KeyStore | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store or KeyStore()
        self._known: dict[str, str] = {}
        self._asked: set[str] = set()
        self._said = ""

    @property
    def problem(self) -> str:
        """Why keys are kept for this run alone, or ""."""
        return self._store.problem

    def is_known(self, name: str) -> bool:
        return name in self._known

    def key(self, name: str) -> str:
        """The key as far as it is known by now, or ""."""
        return self._known.get(name, "")

    def fetch(self, name: str) -> None:
        """Read it, once; `arrived` follows, at once where it is known."""
        if name in self._known:
            self.arrived.emit(name)
        elif name not in self._asked:
            self._asked.add(name)
            run_task(
                self,
                lambda: self._store.read(name),
                lambda key: self._on_read(name, key),
                lambda error: self._on_unreadable(name, error),
            )

    def put(self, name: str, key: str) -> None:
        """Keep a key from now on; "" forgets it."""
        if self._known.get(name) == key:
            return
        self._known[name] = key
        # The last one wins, whichever thread comes first.
        run_task(
            self,
            lambda: self._store.write(name, self._known.get(name, "")),
            lambda _: self._tell_problem(),
            lambda error: self._tell_problem(),
        )

    def _on_read(self, name: str, key: str) -> None:
        self._known.setdefault(name, key)  # what the user wrote meanwhile is newer
        self._tell_problem()
        self.arrived.emit(name)

    def _on_unreadable(self, name: str, error: ErrorInfo) -> None:
        self._on_read(name, "")

    def _tell_problem(self) -> None:
        if self._store.problem != self._said:
            self._said = self._store.problem
            self.problem_changed.emit()


class ConnectionBook(QObject):
    """Every change is kept at once. `changed`: the list, or one of it."""

    changed = Signal()

    def __init__(
        self, settings: SettingsStore, keys: KeyDesk, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._settings, self.keys = settings, keys
        self._all = settings.connections

    @property
    def connections(self) -> list[Connection]:
        return list(self._all)

    def find(self, connection_id: str) -> Connection | None:
        return next((one for one in self._all if one.id == connection_id), None)

    def named(self, name: str) -> Connection | None:
        return next((one for one in self._all if one.name == name), None)

    def beside(self, connection_id: str) -> list[Connection]:
        """All but that one."""
        return [one for one in self._all if one.id != connection_id]

    def key(self, connection: Connection) -> str:
        """As far as it is known by now."""
        return self.keys.key(connection.key_name)

    def keep(self, connection: Connection, key: str | None = None) -> None:
        """Add it, or put it in the place of the one with its id; with `key` where one is given."""
        places = [place for place, one in enumerate(self._all) if one.id == connection.id]
        if key is not None:
            self.keys.put(connection.key_name, key)
        if places and self._all[places[0]] == connection:
            return
        if places:
            self._all[places[0]] = connection
        else:
            self._all.append(connection)
        self._store()

    def update(self, connection_id: str, **changes: Any) -> None:
        """Change fields of one that is still there."""
        known = self.find(connection_id)
        if known is not None:
            self.keep(dataclasses.replace(known, **changes))

    def delete(self, connection_id: str) -> int:
        """Take it off the list; returns its place. Its key stays until `forget_key`: it may be
        brought back."""
        place = next(p for p, one in enumerate(self._all) if one.id == connection_id)
        del self._all[place]
        self._store()
        return place

    def bring_back(self, connection: Connection, place: int) -> None:
        self._all.insert(place, connection)
        self._store()

    def forget_key(self, connection: Connection) -> None:
        """It is gone for good."""
        self.keys.put(connection.key_name, "")

    def _store(self) -> None:
        self._settings.connections = self._all
        self.changed.emit()
