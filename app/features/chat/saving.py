"""Saves conversations and reply data; results of the store's thread arrive in the GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer, Signal, Slot

from app.features.chat.conversation import Conversation, Message
from app.link.tasks import run_task
from app.storage import NEW, ChatStore, StorageError
from engine.errors import ErrorInfo

SAVE_INTERVAL_MS = 1000

Done = Callable[[StorageError | None], None]
Data = TypeVar("Data")


class Saver(QObject):
    """Saves changes about once a second, and retries until they are saved.

    `problem`: why saving fails at the moment, or None; `problem_changed(problem)`.
    """

    problem_changed = Signal(object)
    _ended = Signal(object, object)

    def __init__(self, store: ChatStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self.problem: ErrorInfo | None = store.problem
        self._changed: dict[str, Message | Conversation] = {}
        self._unsaved: dict[str, Message | Conversation] = {}  # changed, or on its way
        self._drafts: dict[str, Conversation] = {}  # whose drafts could not be saved
        # queued also for a future that has already ended: `done` never runs inside `watch`
        self._ended.connect(self._call, Qt.ConnectionType.QueuedConnection)
        self._timer = QTimer(self, interval=SAVE_INTERVAL_MS)
        self._timer.timeout.connect(self.save)

    def watch(self, future: Future, done: Done) -> None:
        """Call `done` in the GUI thread with the error of `future`, or None."""
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
        """Save everything that was touched; failures are retried with the next tick."""
        changed, self._changed = self._changed, {}
        drafts, self._drafts = self._drafts, {}
        if not (changed or drafts):
            self._timer.stop()
        for conversation in drafts.values():
            self._save_draft(conversation)
        for thing in changed.values():
            save = (
                self._store.save_message(thing.record())
                if isinstance(thing, Message)
                else self._store.save_conversation(thing.record())
            )
            self.watch(save, partial(self._saved, thing))

    @property
    def unsaved(self) -> list[Message | Conversation]:
        """Objects whose latest version may not be saved."""
        return list(self._unsaved.values())

    def settle(self) -> None:
        """Save the rest and wait for the result."""
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
        """Saving failed, or works again."""
        problem = error.info() if error is not None else self._store.problem
        if problem != self.problem:
            self.problem = problem
            self.problem_changed.emit(problem)

    def save_draft(self, conversation: Conversation, text: str) -> None:
        """Save the draft of a conversation."""
        text = storable(text)
        if text != conversation.draft:
            conversation.draft = text
            self._save_draft(conversation)

    def _save_draft(self, conversation: Conversation) -> None:
        key = conversation.id if conversation.messages else NEW
        future = self._store.save_unsent(key, conversation.draft)
        self.watch(future, partial(self._draft_saved, conversation))

    def _draft_saved(self, conversation: Conversation, error: StorageError | None) -> None:
        self._drafts.pop(conversation.id, None)
        if error is not None:
            self._drafts[conversation.id] = conversation
            self._timer.start()
        self.report(error)

    def _saved(self, thing: Message | Conversation, error: StorageError | None) -> None:
        if error is not None:
            self._changed.setdefault(thing.id, thing)
            if not self._timer.isActive():
                self._timer.start()
        elif thing.id not in self._changed:
            self._unsaved.pop(thing.id, None)
        self.report(error)


class ReplyStore(Generic[Data]):
    """One kind of reply data: in the store, with a cache of the last used. `name`: for errors."""

    def __init__(
        self,
        saver: Saver,
        name: str,
        find: Callable[[str], set[str]],
        load: Callable[[str], bytes | None],
        unpack: Callable[[bytes], Data],
        save: Callable[[str, Data], Future],
        num_cached: int,
    ) -> None:
        """`find`: the replies of a conversation that have it; `unpack` may raise ValueError;
        `num_cached`: replies whose data stay in memory."""
        self._saver, self._name, self._num_cached = saver, name, num_cached
        self._find, self._load, self._unpack, self._save = find, load, unpack, save
        self._known: set[str] = set()
        self._cache: dict[str, Data] = {}  # the last used last

    def has(self, reply_id: str) -> bool:
        return reply_id in self._known

    def learn(self, conversation_id: str) -> None:
        """Find the replies of a conversation that have data. Raises StorageError."""
        self._known |= self._find(conversation_id)

    def keep(self, reply_id: str, data: Data) -> None:
        """Save the data of a finished reply."""
        self._known.add(reply_id)
        self._remember(reply_id, data)
        self._saver.watch(self._save(reply_id, data), self._saver.report)

    def of(self, reply_id: str) -> Data | None:
        """The data; None if there is none or it is not in memory (see `read`)."""
        found = self._cache.get(reply_id)
        if found is not None:
            self._remember(reply_id, found)
        return found

    def read(
        self,
        owner: QObject,
        reply_id: str,
        done: Callable[[Data], None],
        failed: Callable[[ErrorInfo], None],
    ) -> None:
        """Call `done` with the data, at once if in memory; long replies are unpacked in another
        thread. `failed` is called if they cannot be read."""
        found = self.of(reply_id)
        if found is not None:
            done(found)
            return

        def got(data: Data) -> None:
            self._remember(reply_id, data)
            done(data)

        run_task(owner, lambda: self._unpacked(reply_id), got, failed)

    def _unpacked(self, reply_id: str) -> Data:
        packed = self._load(reply_id)
        if packed is None:
            raise StorageError(f"This reply has no saved {self._name}.", "Regenerate the reply.")
        try:
            return self._unpack(packed)
        except ValueError as error:
            raise StorageError(
                f"Cannot read this reply's {self._name}: {error}.", "Regenerate the reply."
            ) from error

    def _remember(self, reply_id: str, data: Data) -> None:
        self._cache.pop(reply_id, None)
        self._cache[reply_id] = data
        if len(self._cache) > self._num_cached:
            del self._cache[next(iter(self._cache))]


def storable(text: str) -> str:
    """`text` without unpaired surrogates, which cannot be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
