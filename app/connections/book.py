"""The connections that the user keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.connections.connection import Connection
from app.connections.key_desk import KeyDesk
from app.settings_store import SettingsStore


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
