"""`ManagedEngines`: the engines that this window runs, each with a connection in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import shiboken6
from PySide6.QtCore import QObject, Signal

from app.clients.connection import Connection, new_connection, suggested_name
from app.features.serve.connections import ConnectionStore
from app.managed.launch import Launch
from app.managed.process import ManagedProcess, State, Status
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo, InferdeckError

AWAITED_S = 2.0
NOT_RUNNING = Status(State.ENDED)


class ManagedEngines(QObject):
    """`changed(connection id)`: its status. `ready(Connection)`: it answers; use it.
    `failed(Connection, ErrorInfo)`: it did not start, or ended by itself."""

    changed = Signal(str)
    ready = Signal(object)
    failed = Signal(object, object)
    _moved = Signal(str)  # from the threads of the processes

    def __init__(
        self, settings: SettingsStore, store: ConnectionStore, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._settings, self._store = settings, store
        self._launches = settings.launches
        self._processes: dict[str, ManagedProcess] = {}
        self._told: dict[str, State] = {}
        self._again: set[str] = set()  # they start once they have ended
        self._moved.connect(self._on_moved)
        store.changed.connect(self._drop_deleted)

    # What the user does ------------------------------------------------------------------------

    def launch(self, connection_id: str) -> Launch | None:
        return self._launches.get(connection_id)

    def status(self, connection_id: str) -> Status:
        process = self._processes.get(connection_id)
        return NOT_RUNNING if process is None else process.status

    def lines(self, connection_id: str) -> list[str]:
        """The last of its log."""
        process = self._processes.get(connection_id)
        return [] if process is None else process.lines

    def start(self, launch: Launch, connection_id: str = "") -> str:
        """Start a new engine, or that of a connection again with another description. Returns the
        connection's id."""
        connection = self._store.find(connection_id)
        if connection is None:
            connection = self._new_connection(launch)
        self._launches[connection.id] = launch
        self._settings.launches = self._launches
        if self.status(connection.id).is_running:
            self._again.add(connection.id)
            self._processes[connection.id].stop()
        else:
            self._begin(connection, launch)
        return connection.id

    def restart(self, connection_id: str) -> None:
        launch = self.launch(connection_id)
        if launch is not None:
            self.start(launch, connection_id)

    def stop(self, connection_id: str) -> None:
        self._again.discard(connection_id)
        process = self._processes.get(connection_id)
        if process is not None:
            process.stop()

    def close_down(self) -> None:
        """Their supervisors end them, also without this window; those that end soon are awaited."""
        for process in self._processes.values():
            process.stop()
        for process in self._processes.values():
            process.wait(AWAITED_S)

    # On the way --------------------------------------------------------------------------------

    def _new_connection(self, launch: Launch) -> Connection:
        model = PurePath(launch.model).name
        name = suggested_name(f"{launch.kind.value} {model}".strip(), self._store.connections)
        return new_connection(name, "http://127.0.0.1:1", launch.model)

    def _begin(self, connection: Connection, launch: Launch) -> None:
        known = connection.id

        def moved() -> None:
            if shiboken6.isValid(self):
                self._moved.emit(known)

        try:
            process = ManagedProcess(launch, moved, f"inferdeck-{known}")
        except InferdeckError as error:
            self.failed.emit(connection, error.info())
            return
        except OSError as error:
            cause = f"{launch.kind.value} cannot be started: {error.strerror}."
            self.failed.emit(connection, ErrorInfo(cause, "Check its settings."))
            return
        self._processes[known] = process
        self._told[known] = State.STARTING
        self._store.keep(
            replace(connection, base_url=process.base_url, model="", server_type=None, version="")
        )
        self.changed.emit(known)

    def _on_moved(self, connection_id: str) -> None:
        status, told = self.status(connection_id), self._told.get(connection_id)
        self._told[connection_id] = status.state
        connection = self._store.find(connection_id)
        self.changed.emit(connection_id)
        if connection is None or status.state is told:
            return
        if status.state is State.READY:
            self.ready.emit(connection)
        elif status.state is State.ENDED:
            launch = self.launch(connection_id)
            if connection_id in self._again and launch is not None:
                self._again.discard(connection_id)
                self._begin(connection, launch)
            elif status.error is not None:
                self.failed.emit(connection, status.error)

    def _drop_deleted(self) -> None:
        for gone in set(self._processes) - {one.id for one in self._store.connections}:
            self.stop(gone)
