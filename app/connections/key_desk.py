"""Keys for the window: known at once where they were read, read and kept off its thread."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.connections.keys import KeyStore
from app.tasks import run_task
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
