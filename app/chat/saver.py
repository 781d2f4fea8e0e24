"""Saves what changes, about once a second, and again until it has worked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer, Signal, Slot

from app.chat.conversation import Conversation, Message
from app.storage import ChatStore, StorageError
from engine.errors import ErrorInfo

SAVE_INTERVAL_MS = 1000

Done = Callable[[StorageError | None], None]


class Saver(QObject):
    """Between the store, whose futures end in its own thread, and the window.

    `problem` is why saving fails at the moment, or None; `problem_changed(problem)`.
    """

    problem_changed = Signal(object)
    _ended = Signal(object, object)

    def __init__(self, store: ChatStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self.problem: ErrorInfo | None = store.problem
        self._changed: dict[str, Message | Conversation] = {}
        self._unsaved: dict[str, Message | Conversation] = {}  # changed, or on its way
        # queued also for a future that has already ended: `done` never runs inside `watch`
        self._ended.connect(self._call, Qt.ConnectionType.QueuedConnection)
        self._timer = QTimer(self)
        self._timer.setInterval(SAVE_INTERVAL_MS)
        self._timer.timeout.connect(self.save)

    def watch(self, future: Future, done: Done) -> None:
        """Call `done` in the window's thread when `future` has ended, with its error or None."""
        future.add_done_callback(lambda ended: self._ended.emit(done, ended.exception()))

    @Slot(object, object)
    def _call(self, done: Done, error: StorageError | None) -> None:
        done(error)

    def touch(self, *changed: Message | Conversation) -> None:
        """Save these with the next tick."""
        self._changed.update((thing.id, thing) for thing in changed)
        self._unsaved.update((thing.id, thing) for thing in changed)
        if not self._timer.isActive():
            self._timer.start()

    def save_now(self, *changed: Message | Conversation) -> None:
        self.touch(*changed)
        self.save()

    def save(self) -> None:
        """Save everything that was touched; what fails is tried again with the next tick."""
        changed, self._changed = self._changed, {}
        if not changed:
            self._timer.stop()
        for thing in changed.values():
            save = (
                self._store.save_message(thing.record())
                if isinstance(thing, Message)
                else self._store.save_conversation(thing.record())
            )
            self.watch(save, partial(self._saved, thing))

    @property
    def unsaved(self) -> list[Message | Conversation]:
        """What is not known to be saved as it is now."""
        return list(self._unsaved.values())

    def settle(self) -> None:
        """Save what is left and wait until that has worked or failed."""
        self.save()
        if self._unsaved:
            self._store.flush()
            QCoreApplication.sendPostedEvents(self, QEvent.Type.MetaCall)

    def close(self) -> None:
        """Save what is left. The store is closed by its owner, afterwards."""
        self._timer.stop()
        self.save()
        self._timer.stop()

    def report(self, error: StorageError | None) -> None:
        """Say that saving failed, or that it works (again)."""
        problem = error.info() if error is not None else self._store.problem
        if problem != self.problem:
            self.problem = problem
            self.problem_changed.emit(problem)

    def _saved(self, thing: Message | Conversation, error: StorageError | None) -> None:
        if error is not None:
            self._changed.setdefault(thing.id, thing)
            if not self._timer.isActive():
                self._timer.start()
        elif thing.id not in self._changed:
            self._unsaved.pop(thing.id, None)
        self.report(error)
