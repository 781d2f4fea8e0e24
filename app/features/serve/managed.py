"""`ManagedEngines`: starts, restarts and stops the engines that this window runs.

start --> starting --(ready)--> used by the window
restart: drain --> stop --> start on the same port, and used again where it was in use
apply: beside the old where memory allows (`Beside`), else restart

An engine is a connection with a `Launch`; the window attaches to it as to any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import shiboken6
from PySide6.QtCore import QObject, Signal

from app.clients.connection import Connection, new_connection
from app.features.serve.beside import Beside, may_run_beside
from app.features.serve.connections import ConnectionStore
from app.features.serve.managed_notices import ManagedNotices
from app.features.serve.managed_waits import ManagedWaits
from app.features.serve.switch import EngineSwitch
from app.managed.command import LOOPBACK, free_port
from app.managed.launch import Launch, changes_text
from app.managed.ports import num_served
from app.managed.process import ManagedProcess, State, Status
from engine.errors import ErrorInfo, InferdeckError, describe
from widgets.live.figures import StateKind

CLOSE_S = 3.0
"""For engines to end by themselves at the exit; their supervisors end them later otherwise."""
LEAVING_MS = 2000
"""For the window to leave an engine before it stops."""
DRAINING = "Finishing requests before the restart"
KINDS: dict[State, StateKind] = {
    State.STARTING: "loading",
    State.READY: "busy",
    State.STOPPING: "loading",
    State.ENDED: "idle",
}


class ManagedEngines(QObject):
    """`changed(connection id)`. `notices`: of engines that ended."""

    changed = Signal(str)
    _moved = Signal(str)  # from a thread of the process

    def __init__(self, store: ConnectionStore, switch: EngineSwitch, parent: QObject) -> None:
        super().__init__(parent)
        self._store, self._switch = store, switch
        self._processes: dict[str, ManagedProcess] = {}
        self._failures: dict[str, ErrorInfo] = {}  # of engines that could not be started
        self._before: dict[str, Launch] = {}  # the settings that worked last
        self._to_use: set[str] = set()
        self._to_restart: set[str] = set()
        self._waits = ManagedWaits(store, self)
        self.notices = ManagedNotices(self)
        self.notices.start_wanted.connect(self.start)
        self.notices.apply_wanted.connect(self.apply)
        self._beside = Beside(self)
        self._beside.changed.connect(self.changed)
        self._beside.ready.connect(self._on_ready_beside)
        self._beside.failed.connect(self._on_failed_beside)
        self._beside.moved.connect(self._on_taken_moved)
        self._moved.connect(self._on_moved)
        store.changed.connect(self._stop_deleted)
        for one in store.connections:
            self._find_again(one)

    # What is so ----------------------------------------------------------------------------------

    def status(self, connection_id: str) -> Status:
        process = self._processes.get(connection_id)
        if self._waits.is_checking(connection_id):
            return Status(State.STARTING)
        if process is not None:
            return process.status
        return Status(State.ENDED, error=self._failures.get(connection_id))

    def text(self, connection_id: str) -> tuple[str, StateKind]:
        """Its state for the user."""
        if self._waits.is_draining(connection_id):
            return DRAINING, "loading"
        if beside := self._beside.text(connection_id):
            return beside, "loading"
        status = self.status(connection_id)
        if status.error is not None:
            return f"{status.error.cause} {status.error.remedy}".strip(), "error"
        return status.text, KINDS[status.state]

    def is_running(self, connection_id: str) -> bool:
        return self.status(connection_id).is_running

    def is_ready(self, connection_id: str) -> bool:
        return self.status(connection_id).state is State.READY

    def is_used(self, connection_id: str) -> bool:
        """Whether the window uses it."""
        return self._switch.used_id == connection_id

    def pid(self, connection_id: str) -> int | None:
        """Of its supervisor."""
        process = self._processes.get(connection_id)
        return None if process is None else process.pid

    def lines(self, connection_id: str) -> list[str]:
        """The last lines of its log."""
        process = self._processes.get(connection_id)
        return self._beside.lines(connection_id) or (process.lines if process is not None else [])

    # What the user does --------------------------------------------------------------------------

    def add(self, name: str, launch: Launch) -> Connection:
        """A new engine; not started yet."""
        port = free_port(num_served(launch) + 1)
        made = new_connection(name, f"http://{LOOPBACK}:{port}")
        self._store.set_launch(made.id, launch)
        self._store.keep(made)
        return made

    def apply(self, connection_id: str, launch: Launch) -> None:
        """Start with these settings. A running engine continues until the new one is ready, where
        memory allows; else it is restarted."""
        self._store.set_launch(connection_id, launch)
        old = self._processes.get(connection_id)
        is_free = self.is_ready(connection_id) and not self._waits.is_draining(connection_id)
        if old is not None and is_free and may_run_beside(launch):
            self._beside.begin(connection_id, launch, old, partial(self.restart, connection_id))
        elif self.is_running(connection_id):
            self.restart(connection_id)
        else:
            self.start(connection_id)

    def start(self, connection_id: str) -> None:
        """Start; the window uses it once it is ready."""
        if not self.is_ready(connection_id):
            self._to_use.add(connection_id)
            self.run(connection_id)

    def run(self, connection_id: str) -> None:
        """Start it, without switching the window to it. One that stops starts when it has ended."""
        if self.status(connection_id).state is State.STOPPING:
            self._to_restart.add(connection_id)
        elif not self.is_running(connection_id):
            self._start(connection_id)

    def use(self, connection: Connection) -> None:
        """Use an engine of either kind: one of this window that does not run is started first."""
        if self._store.launch(connection.id) is None or self.is_ready(connection.id):
            self._switch.use(connection)
        else:
            self.start(connection.id)

    def restart(self, connection_id: str) -> None:
        """Restart once its requests are finished, or after 30 s. A second call does not wait
        for them."""
        connection = self._store.find(connection_id)
        if connection is None or not self._goes_on(connection_id):
            self.start(connection_id)
            return
        self._beside.cancel(connection_id)
        if self._waits.is_checking(connection_id):  # there is nothing to end yet
            self._end(connection_id)
            self._start(connection_id)
            return
        self._to_restart.add(connection_id)
        if self._switch.used_id == connection_id:
            self._to_use.add(connection_id)
        if self.is_ready(connection_id) and not self._waits.is_draining(connection_id):
            self._drain(connection, partial(self._end, connection_id))
        else:
            self._end(connection_id)

    def _goes_on(self, connection_id: str) -> bool:
        """Whether it runs, or stops only to restart."""
        is_stopping = self.status(connection_id).state is State.STOPPING
        return self.is_running(connection_id) and (
            not is_stopping or connection_id in self._to_restart
        )

    def _drain(self, connection: Connection, go_on: Callable[[], None]) -> None:
        self._waits.drain(connection, go_on)
        self.changed.emit(connection.id)

    def stop(self, connection_id: str) -> None:
        """Stop it; the window goes back to its own engine where it used this one."""
        self._to_restart.discard(connection_id)
        self._to_use.discard(connection_id)
        self._beside.cancel(connection_id)
        if self._switch.used_id == connection_id:
            self._switch.back()
        self._end(connection_id)

    def close_down(self) -> None:
        """The program exits, and its engines with it, except those that stay."""
        self._waits.close_down()
        for process in self._processes.values():
            process.leave()
        end = time.monotonic() + CLOSE_S
        for process in (*self._processes.values(), *self._beside.close_down()):
            process.wait(max(0.0, end - time.monotonic()))

    # The processes -------------------------------------------------------------------------------

    def _start(self, connection_id: str) -> None:
        launch, connection = self._store.launch(connection_id), self._store.find(connection_id)
        if launch is None or connection is None:
            return
        self.notices.clear(connection_id)
        self._failures.pop(connection_id, None)
        self._processes.pop(connection_id, None)
        if launch.is_router:
            go_on = partial(self._launch, connection, launch)
            self._waits.check(connection, launch, go_on, partial(self._fail, connection))
            self.changed.emit(connection_id)
        else:
            self._launch(connection, launch)

    def _fail(self, connection: Connection, error: ErrorInfo) -> None:
        self._to_use.discard(connection.id)
        self._failures[connection.id] = error
        self._complain(connection, error)
        self.changed.emit(connection.id)

    def _launch(self, connection: Connection, launch: Launch) -> None:
        connection_id = connection.id
        port = int(connection.base_url.rpartition(":")[2])
        tell = partial(self._tell, connection_id)
        try:
            process = ManagedProcess(launch, tell, _name(connection_id), port)
        except (InferdeckError, OSError) as error:
            self._fail(connection, describe(error))
            return
        self._take(connection, process)

    def _take(self, connection: Connection, process: ManagedProcess) -> None:
        """From now on it is the engine of this connection."""
        self._processes[connection.id] = process
        kind = process.launch.kind if not process.launch.is_command else None
        self._store.update(connection.id, base_url=process.base_url, server_type=kind)
        self.changed.emit(connection.id)
        if process.base_url != connection.base_url:
            for router in filter(self.is_running, self._store.routers_of(process.base_url)):
                self.restart(router)

    # Beside the old ------------------------------------------------------------------------------

    def _on_ready_beside(self, connection_id: str) -> None:
        connection = self._store.find(connection_id)
        if connection is None:
            self._beside.cancel(connection_id)
        else:
            self._drain(connection, partial(self._swap, connection))

    def _swap(self, connection: Connection) -> None:
        """Use the new one, and stop the old one when the window has left it."""
        new = self._beside.take(connection.id)
        old, is_used = self._processes[connection.id], self.is_used(connection.id)
        self._before[connection.id] = new.launch
        self._take(connection, new)
        found = self._store.find(connection.id)
        if is_used and found is not None:
            self._switch.use(found, changes_text(old.launch, new.launch))
        self._beside.end(old, LEAVING_MS if is_used else 0)

    def _on_failed_beside(self, connection_id: str, error: ErrorInfo) -> None:
        """The old engine continues with its settings."""
        self._waits.end(connection_id)
        connection, old = self._store.find(connection_id), self._processes.get(connection_id)
        if connection is not None and old is not None:
            self._store.set_launch(connection_id, old.launch)
            self.notices.kept(connection, error)

    def _on_taken_moved(self, connection_id: str, process: ManagedProcess) -> None:
        if self._processes.get(connection_id) is process:
            self._on_moved(connection_id)

    def _tell(self, connection_id: str) -> None:
        """On a thread of the process."""
        if shiboken6.isValid(self):
            self._moved.emit(connection_id)

    def _find_again(self, connection: Connection) -> None:
        """An engine that stayed when an earlier window closed."""
        launch = self._store.launch(connection.id)
        if launch is not None and launch.stays:
            tell = partial(self._tell, connection.id)
            process = ManagedProcess.find(tell, _name(connection.id))
            if process is not None:
                self._processes[connection.id] = process

    def _end(self, connection_id: str) -> None:
        self._waits.end(connection_id)
        process = self._processes.get(connection_id)
        if process is not None:
            process.stop()
        self.changed.emit(connection_id)

    def _on_moved(self, connection_id: str) -> None:
        connection, process = self._store.find(connection_id), self._processes.get(connection_id)
        if connection is None or process is None:
            return
        status = process.status
        if status.state is State.READY:
            before = self._before.get(connection_id, process.launch)
            self._before[connection_id] = process.launch
            if connection_id in self._to_use:
                self._to_use.discard(connection_id)
                is_again = self.is_used(connection_id)
                change = changes_text(before, process.launch) if is_again else ""
                self._switch.use(connection, change)
        elif not status.is_running and connection_id in self._to_restart:
            self._to_restart.discard(connection_id)
            self._start(connection_id)
        elif not status.is_running:
            self._to_use.discard(connection_id)  # else a later `run` would use it
            if status.error is not None:
                self._complain(connection, status.error)
        self.changed.emit(connection_id)

    def _complain(self, connection: Connection, error: ErrorInfo) -> None:
        known, tried = self._before.get(connection.id), self._store.launch(connection.id)
        self.notices.ended(connection, error, known if known != tried else None)

    def _stop_deleted(self) -> None:
        for connection_id in set(self._processes):
            if self._store.find(connection_id) is None and self.is_running(connection_id):
                self.stop(connection_id)


def _name(connection_id: str) -> str:
    """Of its container and its files."""
    return f"inferdeck-{connection_id}"
