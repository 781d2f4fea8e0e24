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

SAVE_INTERVAL_MS, RESUME_INTERVAL_MS = 1000, 5000

Done = Callable[[StorageError | None], None]
Save = Callable[[], Future[None]]
Data = TypeVar("Data")


class Saver(QObject):
    """Saves changes about once a second, and retries until they are saved.

    `problem`: why saving fails at the moment, or None; `problem_changed(problem)`. `resumed`: the
    chat file can be written again, and has everything.
    """

    problem_changed = Signal(object)
    resumed = Signal()
    _ended = Signal(object, object)

    def __init__(self, store: ChatStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self.problem: ErrorInfo | None = store.problem
        self._changed: dict[str, Save] = {}  # how to save what changed, by key
        self._unsaved: dict[str, Message | Conversation] = {}  # changed, or on its way
        self._latest: dict[str, Save] = {}  # of those on their way, the last one of each key
        # queued also for a future that has already ended: `done` never runs inside `watch`
        self._ended.connect(self._call, Qt.ConnectionType.QueuedConnection)
        self._timer = QTimer(self, interval=SAVE_INTERVAL_MS)
        self._timer.timeout.connect(self.save)
        self._resume = QTimer(self, interval=RESUME_INTERVAL_MS, singleShot=True)
        self._resume.timeout.connect(lambda: self.watch(store.resume(), self._resumed))
        self._wait_for_file()

    def watch(self, future: Future, done: Done) -> None:
        """Call `done` in the GUI thread with the error of `future`, or None."""
        future.add_done_callback(lambda ended: self._ended.emit(done, ended.exception()))

    @Slot(object, object)
    def _call(self, done: Done, error: StorageError | None) -> None:
        done(error)

    def touch(self, *changed: Message | Conversation) -> None:
        """Save these with the next tick."""
        self._changed.update((thing.id, partial(self._store_thing, thing)) for thing in changed)
        self._unsaved.update((thing.id, thing) for thing in changed)
        if not self._timer.isActive():
            self._timer.start()

    def save_now(self, *changed: Message | Conversation) -> None:
        self.touch(*changed)
        self.save()

    def submit(self, key: str, save: Save) -> None:
        """Call `save` now, and again with each tick until it succeeds, or until another one of this
        key is submitted."""
        self._changed.pop(key, None)
        self._latest[key] = save
        self.watch(save(), partial(self._saved, key, save))

    def save(self) -> None:
        """Save everything that was touched; failures are retried with the next tick."""
        changed, self._changed = self._changed, {}
        if not changed:
            self._timer.stop()
        for key, save in changed.items():
            self.submit(key, save)

    def _store_thing(self, thing: Message | Conversation) -> Future[None]:
        if isinstance(thing, Message):
            return self._store.save_message(thing.record())
        return self._store.save_conversation(thing.record())

    @property
    def unsaved(self) -> list[Message | Conversation]:
        """Objects whose latest version may not be saved."""
        return list(self._unsaved.values())

    def settle(self) -> None:
        """Save the rest and wait for the result."""
        self.save()
        if self._store.problem is not None:
            self._store.resume().exception()
            self.report(None)
        if self._unsaved:
            self._store.flush()
            QCoreApplication.sendPostedEvents(self, QEvent.Type.MetaCall)

    def close(self) -> None:
        """Save what is left. The store is closed by its owner, afterwards."""
        self._timer.stop()
        self.save()
        self._timer.stop()
        self._resume.stop()

    def report(self, error: StorageError | None) -> None:
        """Saving failed, or works again."""
        problem = error.info() if error is not None else self._store.problem
        if problem != self.problem:
            self.problem = problem
            self.problem_changed.emit(problem)
        self._wait_for_file()

    def _wait_for_file(self) -> None:
        """Look for the file again as long as there is a copy of it."""
        if self._store.problem is None or self._store.spoiled is not None:
            self._resume.stop()
        elif not self._resume.isActive():
            self._resume.start()

    def _resumed(self, error: StorageError | None) -> None:
        self.report(None)
        if error is None:
            self.resumed.emit()

    def save_draft(self, conversation: Conversation, text: str) -> None:
        """Save the draft of a conversation."""
        text = storable(text)
        if text != conversation.draft:
            conversation.draft = text
            self.submit(f"draft {conversation.id}", partial(self._store_draft, conversation))

    def _store_draft(self, conversation: Conversation) -> Future[None]:
        key = conversation.id if conversation.messages else NEW
        return self._store.save_unsent(key, conversation.draft)

    def _saved(self, key: str, save: Save, error: StorageError | None) -> None:
        if self._latest.get(key) is save:  # else a later one decides
            del self._latest[key]
            if error is not None:
                self._changed.setdefault(key, save)
                if not self._timer.isActive():
                    self._timer.start()
            elif key not in self._changed:
                self._unsaved.pop(key, None)
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
        self._saver.submit(f"{self._name} {reply_id}", partial(self._save, reply_id, data))

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
        except (ValueError, TypeError) as error:  # TypeError: a damaged file has a text there
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
