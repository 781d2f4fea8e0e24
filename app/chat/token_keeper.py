"""`TokenKeeper`: where the tokens of replies are, and how one gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject

from app.chat.saver import Saver
from app.chat.tokens import ReplyTokens
from app.storage import ChatStore, StorageError
from app.tasks import run_task
from engine.errors import ErrorInfo
from widgets.tokens.record import TokenRecord

NUM_CACHED = 8
"""Replies whose tokens stay in memory."""

Failed = Callable[[ErrorInfo], None]


class TokenKeeper:
    """The tokens of all replies that have them: in the store, the last used in memory too."""

    def __init__(self, store: ChatStore, saver: Saver) -> None:
        self._store = store
        self._saver = saver
        self._known: set[str] = set()
        self._cache: dict[str, ReplyTokens] = {}  # the last used last

    def has(self, reply_id: str) -> bool:
        return reply_id in self._known

    def learn(self, conversation_id: str) -> None:
        """Which replies of a conversation have tokens. Raises StorageError."""
        self._known |= self._store.messages_with_tokens(conversation_id)

    def keep(self, reply_id: str, model: str, records: Sequence[TokenRecord]) -> None:
        """Save the tokens of a reply that has ended."""
        tokens = ReplyTokens(model, tuple(records))
        self._known.add(reply_id)
        self._remember(reply_id, tokens)
        self._saver.watch(self._store.save_tokens(reply_id, tokens.pack), self._saver.report)

    def of(self, reply_id: str) -> ReplyTokens | None:
        """None where they are not kept, or were not read (see `read`)."""
        found = self._cache.get(reply_id)
        if found is not None:
            self._remember(reply_id, found)
        return found

    def read(
        self, owner: QObject, reply_id: str, done: Callable[[ReplyTokens], None], failed: Failed
    ) -> None:
        """Call `done` with a reply's tokens, at once where they are in memory; `failed` where they
        cannot be read. A long reply takes a while to unpack: that is done off the window."""
        found = self.of(reply_id)
        if found is not None:
            done(found)
            return

        def got(tokens: ReplyTokens) -> None:
            self._remember(reply_id, tokens)
            done(tokens)

        run_task(owner, lambda: self._unpacked(reply_id), got, failed)

    def _unpacked(self, reply_id: str) -> ReplyTokens:
        packed = self._store.packed_tokens(reply_id)
        if packed is None:
            raise StorageError("The tokens of this reply are not kept.", "Write it again.")
        try:
            return ReplyTokens.unpack(packed)
        except ValueError as error:
            raise StorageError(
                f"The tokens of this reply cannot be read: {error}.", "Write it again."
            ) from error

    def _remember(self, reply_id: str, tokens: ReplyTokens) -> None:
        self._cache.pop(reply_id, None)
        self._cache[reply_id] = tokens
        while len(self._cache) > NUM_CACHED:
            del self._cache[next(iter(self._cache))]
