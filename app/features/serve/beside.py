"""`Beside`: starts an engine with new settings beside the one that runs, where memory allows.

old:  ready ------------------------ drained - left - stopped
new:       starting - ready ---------------- used               its failure leaves the old as it was
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import shiboken6
from PySide6.QtCore import QObject, QTimer, Signal

from app.link.tasks import Task, run_task
from app.managed.launch import Launch, Place
from app.managed.process import ManagedProcess, State
from app.managed.room import has_room_beside
from engine.errors import ErrorInfo, InferdeckError, describe


def may_run_beside(launch: Launch) -> bool:
    """Elsewhere memory is not known; one that stays has one log and one record; a router starts
    within seconds."""
    return launch.place is Place.HERE and not launch.stays and not launch.is_router


class Beside(QObject):
    """`ready`, `failed`, `changed`: of an engine's connection id. `moved`: one that was taken."""

    ready = Signal(str)
    failed = Signal(str, object)  # ErrorInfo
    changed = Signal(str)
    moved = Signal(str, object)  # ManagedProcess
    _moved = Signal(str, object)  # from a thread of the process, which it is given in a list

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._tasks: dict[str, Task] = {}
        self._new: dict[str, ManagedProcess] = {}
        self._tried: dict[str, ManagedProcess] = {}  # that failed last
        self._told: set[str] = set()  # of `_new`: those said to be ready
        self._gone: list[ManagedProcess] = []
        self._moved.connect(self._on_moved)

    def begin(
        self, known: str, launch: Launch, old: ManagedProcess, otherwise: Callable[[], None]
    ) -> None:
        """`otherwise`: where memory does not suffice."""
        self.cancel(known)

        def go_on(has_room: bool) -> None:
            del self._tasks[known]
            if has_room:
                self._start(known, launch)
            else:
                otherwise()

        self._tasks[known] = run_task(
            self, lambda: has_room_beside(old.pid), go_on, lambda error: go_on(False)
        )
        self.changed.emit(known)

    def text(self, known: str) -> str:
        """Of a start in progress; "" for none."""
        if known in self._tasks:
            return "Checking memory"
        process = self._new.get(known)
        return f"New settings: {process.status.text.lower()}" if process is not None else ""

    def lines(self, known: str) -> list[str]:
        """Of the log of the newest, until it is used."""
        process = self._new.get(known) or self._tried.get(known)
        return process.lines if process is not None else []

    def take(self, known: str) -> ManagedProcess:
        """The one that is ready."""
        self._told.discard(known)
        return self._new.pop(known)

    def end(self, process: ManagedProcess, after_ms: int = 0) -> None:
        """Stop one that is used no longer."""
        self._gone = [one for one in self._gone if one.status.is_running] + [process]
        if after_ms:
            QTimer.singleShot(after_ms, self, process.stop)
        else:
            process.stop()

    def cancel(self, known: str) -> None:
        self._tried.pop(known, None)
        self._told.discard(known)
        task, process = self._tasks.pop(known, None), self._new.pop(known, None)
        if task is not None:
            task.cancel()
        if process is not None:
            self.end(process)

    def close_down(self) -> list[ManagedProcess]:
        """Those that end now."""
        for known in {*self._tasks, *self._new}:
            self.cancel(known)
        for process in self._gone:
            process.stop()
        return self._gone

    def _start(self, known: str, launch: Launch) -> None:
        made: list[ManagedProcess] = []  # filled before its first signal is delivered
        try:
            made.append(ManagedProcess(launch, partial(self._tell, known, made)))
            self._new[known] = made[0]
        except (InferdeckError, OSError) as error:
            self.failed.emit(known, describe(error))
        self.changed.emit(known)

    def _tell(self, known: str, made: list[ManagedProcess]) -> None:
        if shiboken6.isValid(self):
            self._moved.emit(known, made)

    def _on_moved(self, known: str, made: list[ManagedProcess]) -> None:
        [process] = made
        if process is not self._new.get(known):
            self.moved.emit(known, process)
            return
        status = process.status
        if status.state is State.READY:
            if known not in self._told:  # several moves may be delivered when it is
                self._told.add(known)
                self.ready.emit(known)
        elif not status.is_running:
            self._tried[known] = self._new.pop(known)
            error = status.error or ErrorInfo("It was stopped.", "")
            self.failed.emit(known, error)
        self.changed.emit(known)
