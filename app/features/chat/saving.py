"""Saves what changes, about once a second, and again until it has worked."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer, Signal, Slot

from app.features.chat.conversation import Conversation, Message
from app.storage import NEW, ChatStore, StorageError
from engine.errors import ErrorInfo
from engine.snapshot import RequestTimes, TokenEvent

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


class UnsentKeeper(QObject):
    """The text of every conversation, and of the one that has no message yet, in the store. What
    could not be kept is tried again until it is."""

    def __init__(self, store: ChatStore, saver: Saver, parent: QObject) -> None:
        super().__init__(parent)
        self._store = store
        self._saver = saver
        self._failed: dict[str, Conversation] = {}
        self._again = QTimer(self)
        self._again.setSingleShot(True)
        self._again.setInterval(SAVE_INTERVAL_MS)
        self._again.timeout.connect(self._try_again)

    def keep(self, conversation: Conversation, text: str) -> None:
        """This is written to `conversation` now."""
        text = storable(text)
        if text != conversation.unsent:
            conversation.unsent = text
            self._save(conversation)

    def close(self) -> None:
        self._again.stop()
        self._try_again()

    def _save(self, conversation: Conversation) -> None:
        key = conversation.id if conversation.messages else NEW
        future = self._store.save_unsent(key, conversation.unsent)
        self._saver.watch(future, partial(self._saved, conversation))

    def _saved(self, conversation: Conversation, error: StorageError | None) -> None:
        self._failed.pop(conversation.id, None)
        if error is not None:
            self._failed[conversation.id] = conversation
            self._again.start()
        self._saver.report(error)

    def _try_again(self) -> None:
        for conversation in list(self._failed.values()):
            self._save(conversation)


def storable(text: str) -> str:
    """`text` without halves of surrogate pairs, which no encoding can write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


VERSION = 1


def pack_times(times: RequestTimes) -> bytes:
    return zlib.compress(json.dumps(as_columns(times), separators=(",", ":")).encode())


def as_columns(times: RequestTimes) -> dict[str, Any]:
    """What is written of them, here and in files of chats."""

    def since_arrival(moment: float | None) -> int | None:
        return None if moment is None else round((moment - times.arrival) * 1e6)

    moments = [0, *(round((event.time - times.arrival) * 1e6) for event in times.tokens)]
    return {
        "version": VERSION,
        "scheduled": since_arrival(times.first_scheduled),
        "finished": since_arrival(times.finished),
        "gaps": [after - before for before, after in pairwise(moments)],
        "counts": [event.num_tokens for event in times.tokens],
    }


def unpack_times(packed: bytes) -> RequestTimes:
    """The arrival is at 0. Raises ValueError for bytes that `pack_times` did not make."""
    try:
        columns = json.loads(zlib.decompress(packed))
    except zlib.error as error:
        raise ValueError(f"not the times of a reply: {error!r}") from error
    return from_columns(columns)


def from_columns(columns: Any) -> RequestTimes:
    """The arrival is at 0. Raises ValueError for what `as_columns` did not make."""
    try:
        if columns["version"] != VERSION:
            raise ValueError(f"times of version {columns['version']}")
        whole = [*columns["gaps"], *columns["counts"]]
        whole += [us for us in (columns["scheduled"], columns["finished"]) if us is not None]
        if not all(type(number) is int and number >= 0 for number in whole):
            raise ValueError("not the times of a reply: they are whole numbers")
        moments = (us / 1e6 for us in accumulate(columns["gaps"]))
        tokens = zip(moments, columns["counts"], strict=True)
        scheduled, finished = (
            None if us is None else us / 1e6 for us in (columns["scheduled"], columns["finished"])
        )
        return RequestTimes(0.0, scheduled, tuple(TokenEvent(*t) for t in tokens), finished)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the times of a reply: {error!r}") from error


class TimesKeeper:
    """The times of all replies that have them, in the store."""

    def __init__(self, store: ChatStore, saver: Saver) -> None:
        self._store, self._saver = store, saver
        self._known: set[str] = set()

    def has(self, reply_id: str) -> bool:
        return reply_id in self._known

    def learn(self, conversation_id: str) -> None:
        """Which replies of a conversation have times. Raises StorageError."""
        self._known |= self._store.messages_with_times(conversation_id)

    def keep(self, reply_id: str, times: RequestTimes) -> None:
        """Save the times of a reply that has ended."""
        self._known.add(reply_id)
        future = self._store.save_times(reply_id, lambda: pack_times(times))
        self._saver.watch(future, self._saver.report)

    def read(self, reply_id: str) -> RequestTimes:
        """Raises StorageError where they are not kept, or cannot be read."""
        packed = self._store.packed_times(reply_id)
        if packed is None:
            raise StorageError("The times of this reply are not kept.", "Write it again.")
        try:
            times = unpack_times(packed)
        except ValueError as error:
            raise StorageError(
                f"The times of this reply cannot be read: {error}.", "Write it again."
            ) from error
        if not times.tokens:
            raise StorageError("This reply has no token that took time.", "Write it again.")
        return times
