"""`UnsentKeeper`: what is written and was not sent outlives the program."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, QTimer

from app.chat.conversation import Conversation
from app.chat.saver import SAVE_INTERVAL_MS, Saver
from app.storage import NEW, ChatStore, StorageError


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
