"""`ChatStore`: conversations in one SQLite file.

    GUI thread -- reads on its own connection ------------------.
        |                                                        v
        '-- add, save, delete --> queue --> writer thread --> chats.sqlite3 (WAL)

A write returns a Future that is done when the change is on the disk (WAL with synchronous=FULL),
and raises StorageError if it failed; then nothing of it was written. Only one process writes: it
holds a lock on `chats.sqlite3.lock`, which the operating system releases however the process ends.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from app.storage.chat_file import ChatFile
from app.storage.copies import sweep
from app.storage.errors import StorageError
from app.storage.records import (
    CONVERSATION,
    MESSAGE,
    NEW,
    StoredConversation,
    StoredMessage,
    conversation_of,
    mapping_of,
    message_of,
    put_conversation,
    put_message,
    put_unsent,
)
from app.storage.search import SearchHit, search, text_of

TOKENS, TIMES = "reply_tokens", "reply_times"
"""Tables of packed data per reply: its tokens, and their times."""


class ChatStore(ChatFile):
    """The conversations in a `ChatFile`. `written`: ids of the conversations added or changed since
    the store was opened."""

    def __init__(self, path: Path | None = None, refusal: StorageError | None = None) -> None:
        self.written: set[str] = set()
        super().__init__(path, refusal)

    # Reading ---------------------------------------------------------------------------------

    def conversations(self) -> list[StoredConversation]:
        """All conversations that are not deleted, last used first."""
        rows = self._read(
            f"SELECT {CONVERSATION} FROM conversations WHERE deleted_at IS NULL"
            " ORDER BY updated DESC, rowid DESC"
        )
        return [conversation_of(row) for row in rows]

    def messages(self, conversation_id: str) -> list[StoredMessage]:
        """All versions of all messages, in the order in which they were added."""
        rows = self._read(
            f"SELECT {MESSAGE} FROM messages WHERE conversation_id = ? ORDER BY number",
            conversation_id,
        )
        return [message_of(row) for row in rows]

    def has_any(self, conversation_id: str, message_ids: Sequence[str]) -> bool:
        """Whether one of these ids is in use, also by deleted conversations that are not purged
        yet."""
        if self._read("SELECT 1 FROM conversations WHERE id = ?", conversation_id):
            return True
        known = "SELECT 1 FROM messages WHERE id IN (SELECT value FROM json_each(?)) LIMIT 1"
        return bool(self._read(known, json.dumps(list(message_ids))))

    def packed(self, table: str, message_id: str) -> bytes | None:
        """The data that `save_packed` stored for a reply in TOKENS or TIMES; None if nothing."""
        rows = self._read(f"SELECT packed FROM {table} WHERE message_id = ?", message_id)
        return rows[0][0] if rows else None

    def messages_with(self, table: str, conversation_id: str) -> set[str]:
        """Ids of the replies with stored TOKENS or TIMES."""
        rows = self._read(
            f"SELECT m.id FROM {table} t JOIN messages m ON m.id = t.message_id"
            " WHERE m.conversation_id = ?",
            conversation_id,
        )
        return {row[0] for row in rows}

    def unsent(self) -> dict[str, str]:
        """Unsent text by the id of its conversation or NEW."""
        rows = self._read("SELECT conversation_id, text FROM unsent")
        return {text_of(key): text_of(text) for key, text in rows}

    def presets(self) -> dict[str, dict[str, Any]]:
        """The user's own sampling presets by name."""
        rows = self._read("SELECT name, sampling FROM presets ORDER BY name COLLATE NOCASE")
        return {text_of(name): mapping_of(sampling) for name, sampling in rows}

    def search(self, query: str, limit: int = 500) -> list[SearchHit]:
        """See `app.storage.search`."""
        return self._reading(lambda connection: search(connection, query, limit))

    def _read(self, sql: str, *values: Any) -> list[tuple]:
        return self._reading(lambda connection: connection.execute(sql, values).fetchall())

    # Writing ---------------------------------------------------------------------------------

    def add_messages(
        self, conversation: StoredConversation, *messages: StoredMessage, unsent: str | None = None
    ) -> Future[None]:
        """Save `messages` and their conversation (new or changed) together: all or nothing.

        Save the user's message and the empty reply to it in one call; send the text when the Future
        is done. `unsent`: replaces the stored unsent text of the conversation, and of NEW if it was
        new; None keeps it.
        """
        self.written.add(conversation.id)

        def job(connection: sqlite3.Connection) -> None:
            known = "SELECT 1 FROM conversations WHERE id = ?"
            is_new = connection.execute(known, (conversation.id,)).fetchone() is None
            put_conversation(connection, conversation)
            for message in messages:
                put_message(connection, message)
            if unsent is not None:
                if is_new:
                    put_unsent(connection, NEW, "")
                put_unsent(connection, conversation.id, unsent)

        return self._writer.submit(job)

    def save_message(self, message: StoredMessage) -> Future[None]:
        """Save the current text, state and figures of a message."""
        self.written.add(message.conversation_id)
        job = lambda connection: put_message(connection, message)
        return self._writer.submit(job, ("message", message.id))

    def save_unsent(self, conversation_id: str, text: str) -> Future[None]:
        """Save the unsent text of a stored conversation or of NEW; "" for none."""
        job = lambda connection: put_unsent(connection, conversation_id, text)
        return self._writer.submit(job, ("unsent", conversation_id))

    def save_packed(self, table: str, message_id: str, pack: Callable[[], bytes]) -> Future[None]:
        """Save the TOKENS of a reply, or their TIMES, if the reply is still stored. `pack` runs in
        the writer's thread."""
        sql = (
            f"INSERT OR REPLACE INTO {table}(message_id, packed)"
            " SELECT id, ? FROM messages WHERE id = ?"
        )

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(sql, (pack(), message_id))

        return self._writer.submit(job, (table, message_id))

    def save_conversation(self, conversation: StoredConversation) -> Future[None]:
        """Save title, system prompt, sampling and times."""
        self.written.add(conversation.id)
        job = lambda connection: put_conversation(connection, conversation)
        return self._writer.submit(job, ("conversation", conversation.id))

    def show_versions(self, shown: Mapping[str, int]) -> Future[None]:
        """Set `shown` of messages by id."""
        values = [(number, message_id) for message_id, number in shown.items()]
        return self._execute("UPDATE messages SET shown = ? WHERE id = ?", *values)

    def delete_conversation(self, conversation_id: str) -> Future[None]:
        """Hide a conversation. `restore_conversation` brings it back until it is purged."""
        sql = "UPDATE conversations SET deleted_at = ? WHERE id = ?"
        return self._execute(sql, (time.time(), conversation_id))

    def restore_conversation(self, conversation_id: str) -> Future[None]:
        sql = "UPDATE conversations SET deleted_at = NULL WHERE id = ?"
        return self._execute(sql, (conversation_id,))

    def purge_deleted(self, conversation_id: str | None = None) -> Future[None]:
        """Remove one deleted conversation, or all, permanently."""
        sql = "DELETE FROM conversations WHERE deleted_at IS NOT NULL AND id = ifnull(?, id)"
        return self._execute(sql, (conversation_id,))

    def save_preset(self, name: str, sampling: Mapping[str, Any]) -> Future[None]:
        sql = "INSERT OR REPLACE INTO presets(name, sampling) VALUES(?, ?)"
        return self._execute(sql, (name, json.dumps(dict(sampling))))

    def delete_preset(self, name: str) -> Future[None]:
        return self._execute("DELETE FROM presets WHERE name = ?", (name,))

    def _execute(self, sql: str, *rows: tuple) -> Future[None]:
        def job(connection: sqlite3.Connection) -> None:
            connection.executemany(sql, rows)

        return self._writer.submit(job)


def open_store(path: Path | None = None) -> ChatStore:
    """The store in `path`; if that cannot be used, a copy of it whose `problem` says why.

    So the window always opens. No chat of the file is changed, but SQLite may move the last ones
    into it from its companion.
    """
    sweep()
    try:
        return ChatStore(path)
    except StorageError as error:
        return ChatStore(path, error)
