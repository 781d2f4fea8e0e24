"""`ChatLibrary`: the conversations and the file that they are in: recovery, copies, a new file."""

from __future__ import annotations

from concurrent.futures import Future

from app.features.chat.conversation import Message
from app.features.chat.saving import Done
from app.features.chat.shelf import ChatShelf
from app.storage import ChatStore, StorageError, StoredMessage
from app.storage.chat_file import Renewed
from app.storage.recovery import Recovery


class ChatLibrary(ChatShelf):
    """A damaged file is recovered while its copy is in use."""

    def __init__(self, store: ChatStore) -> None:
        super().__init__(store)
        self._is_draft_unread = store.recovery is not None and not self._drafts
        self._has_retried = False  # a recovery after one that failed
        self._watched: Recovery | None = None
        self._restart: Future[None] | None = None  # of the recovery, done once it runs
        self.saver.problem_changed.connect(self._watch_recovery)
        self.saver.report(None)  # the file may have turned out to be damaged
        self._watch_recovery()
        self.saver.resumed.connect(self._on_resumed)

    @property
    def recovery(self) -> Recovery | None:
        """The recovery that runs, if any."""
        return self._store.recovery if self._store.is_recovering else None

    @property
    def can_recover(self) -> bool:
        """Whether a recovery was cancelled, or failed for the first time."""
        found = self._store.recovery
        if found is None or found.is_complete or not self.can_replace_file:
            return False
        return found.is_cancelled or not self._has_retried

    def recover(self) -> None:
        """Start a cancelled or failed recovery again."""
        found = self._store.recovery
        if found is not None and self.can_recover:
            self._has_retried |= not found.is_cancelled
            self._restart = self._store.recover()
            self.saver.watch(self._restart, self._on_recovery)
            self.saver.problem_changed.emit(self.saver.problem)

    def _watch_recovery(self) -> None:
        found = self._store.recovery
        if found is not None and found is not self._watched:
            self._watched = found
            self.saver.watch(found.ended, self._on_recovery)
            # the copy is empty, and not all that was read may be readable again
            for chat in self._conversations.values():
                if chat.id in self._loaded:
                    self.saver.touch(chat, *chat.messages.values())
            self.saver.save()

    def _on_recovery(self, error: StorageError | None) -> None:
        """It has begun again, or has ended."""
        self._watch_recovery()
        if not self._store.is_recovering:
            self._add_stored()
            self._read_again()
            self._return_unsent()
            self.list_changed.emit()
            self.presets_changed.emit()
        self.saver.report(error)
        self.saver.problem_changed.emit(self.saver.problem)  # `can_recover` may differ

    def _read_again(self) -> None:
        """Conversations that were read before their messages were recovered."""
        known, current = self._conversations, self.current
        self._loaded -= {i for i in self._loaded if i in known and not known[i].messages}
        # not only where it was read: a read between two recoveries may have found nothing
        if current.id in known and not current.messages and self._read(current):
            self.messages_changed.emit(current.id)

    def _return_unsent(self) -> None:
        """Show the recovered text of the new conversation, if it could not be read at the start."""
        found = self._store.recovery
        if self._is_draft_unread and found is not None and found.is_complete:
            self._is_draft_unread = False
            if found.found.unsent:
                self.text_returned.emit(self._unused().id, found.found.unsent, [])

    def _on_resumed(self) -> None:
        """Another window may have written to the file meanwhile."""
        try:
            self._add_new()
        except StorageError as error:
            self._report_read(error)
        self.list_changed.emit()

    def saved_store(self) -> ChatStore:
        """The store, including pending changes; `flush` waits for them."""
        self.saver.save()
        return self._store

    @property
    def unsaved_chats(self) -> list[str]:
        """Ids of conversations that closing the window would lose: added or changed since the
        start, while the chats file cannot be written."""
        self.saver.settle()
        if self._store.problem is None:
            unsaved = self.saver.unsaved
            lost = {t.conversation_id if isinstance(t, Message) else t.id for t in unsaved}
            return [i for i in self._conversations if i in lost]
        return [i for i in self._conversations if i in self._store.written]

    def unsaved_messages(self) -> list[StoredMessage]:
        """Messages whose latest version may not be in the chats file."""
        return [thing.record() for thing in self.saver.unsaved if isinstance(thing, Message)]

    @property
    def can_replace_file(self) -> bool:
        """Whether the chats file is damaged, and can be moved aside."""
        is_starting = self._restart is not None and not self._restart.done()
        return self._store.spoiled is not None and not (is_starting or self._store.is_recovering)

    def replace_file(self, ended: Done = lambda error: None) -> Future[Renewed]:
        """Move the damaged file aside and save everything in a new one, then call `ended`; else
        raises StorageError; then nothing has changed."""

        def end(error: StorageError | None) -> None:
            self.saver.report(None)
            ended(error)

        self._watch_recovery()  # which may have ended before its notice arrived
        self.saver.save()
        renewed = self._store.start_new_file()
        self.saver.watch(renewed, end)
        return renewed
