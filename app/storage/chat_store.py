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
import logging
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from app import paths
from app.storage.database import (
    StorageCorruptError,
    StorageError,
    StorageLockedError,
    StorageNewerError,
    StorageReadOnlyError,
    Writer,
    connect,
    copy_readable,
    explain,
    migrate,
    process_lock,
    set_aside,
)
from app.storage.records import (
    CONVERSATION,
    MESSAGE,
    NEW,
    SearchHit,
    StoredConversation,
    StoredMessage,
    conversation_of,
    mark_interrupted,
    message_of,
    put_conversation,
    put_message,
    put_unsent,
    search,
)
from engine.errors import ErrorInfo

TOKENS, TIMES = "reply_tokens", "reply_times"
"""Tables of packed data per reply: its tokens, and their times."""

log = logging.getLogger(__name__)


class ChatStore:
    """The conversations in `path` (default: the user's data folder).

    `problem`: why changes do not reach the user's file (see `open_store`), else None; `spoiled`:
    that file, if it is damaged or newer. `written`: ids of the conversations added or changed since
    the store was opened. Raises StorageError if the file cannot be opened for writing.
    """

    problem: ErrorInfo | None = None
    spoiled: Path | None = None

    def __init__(self, path: Path | None = None) -> None:
        try:
            self.path = Path(path) if path is not None else paths.chats_file()
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, Path(path) if path else Path("chats.sqlite3")) from error
        self._read_lock = threading.Lock()
        self._temporary: Path | None = None
        self.written: set[str] = set()
        opened: list[sqlite3.Connection] = []
        try:
            self._lock = process_lock(self.path)
            opened.append(self._lock)
            self._reader = connect(self.path)
            opened.append(self._reader)
            migrate(self._reader, self.path)
            self._writer = Writer(self.path, lambda: connect(self.path))
        except (sqlite3.Error, OSError, StorageError) as error:
            for connection in opened:
                connection.close()
            raise explain(error, self.path) from error
        try:
            self._writer.submit(mark_interrupted).result()
        except StorageError:
            self.close()
            raise
        self.purge_deleted()

    def close(self) -> None:
        """Write what is queued, then close the file."""
        self._writer.close()
        self._reader.close()
        self._lock.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def flush(self) -> None:
        """Wait until all queued changes are written or have failed."""
        done: Future[None] = self._writer.submit(lambda connection: None)
        done.exception()

    def start_new_file(self) -> Path:
        """Rename the spoiled file and replace it with what was written since; returns its new name.
        Call it from the thread that submits changes. Raises StorageError; then nothing has
        changed."""
        target = self.spoiled
        if target is None:
            raise StorageError("The chat file is not damaged.", "No action needed.")
        fresh = target.with_name(target.name + ".new")
        self._writer.close()  # what was queued is in the temporary file now
        opened: list[sqlite3.Connection] = []
        try:
            opened.append(process_lock(target))
            fresh.unlink(missing_ok=True)
            with self._read_lock, closing(sqlite3.connect(fresh)) as copy:
                self._reader.backup(copy)
            aside = set_aside(target)
            fresh.rename(target)
            opened.append(connect(target))
            writer = Writer(target, lambda: connect(target))
        except (sqlite3.Error, OSError) as error:
            for connection in opened:
                connection.close()
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            self._writer = Writer(self.path, lambda: connect(self.path))
            raise explain(error, target) from error
        with self._read_lock:
            for connection in (self._reader, self._lock):
                connection.close()
            (self._lock, self._reader), self._writer, self.path = opened, writer, target
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary, self.problem, self.spoiled = None, None, None
        log.warning("started a new chat file; the old file is now %s", aside)
        return aside

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
        return dict(self._read("SELECT conversation_id, text FROM unsent"))

    def presets(self) -> dict[str, dict[str, Any]]:
        """The user's own sampling presets by name."""
        rows = self._read("SELECT name, sampling FROM presets ORDER BY name COLLATE NOCASE")
        return {name: json.loads(sampling) for name, sampling in rows}

    def search(self, query: str, limit: int = 500) -> list[SearchHit]:
        """See `app.storage.records.search`."""
        with self._read_lock:
            try:
                return search(self._reader, query, limit)
            except sqlite3.Error as error:
                raise explain(error, self.path) from error

    def _read(self, sql: str, *values: Any) -> list[tuple]:
        with self._read_lock:
            try:
                return self._reader.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise explain(error, self.path) from error

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
        return self._writer.submit(lambda connection: put_message(connection, message))

    def save_unsent(self, conversation_id: str, text: str) -> Future[None]:
        """Save the unsent text of a stored conversation or of NEW; "" for none."""
        return self._writer.submit(lambda connection: put_unsent(connection, conversation_id, text))

    def save_packed(self, table: str, message_id: str, pack: Callable[[], bytes]) -> Future[None]:
        """Save the TOKENS of a reply, or their TIMES, if the reply is still stored. `pack` runs in
        the writer's thread."""
        sql = (
            f"INSERT OR REPLACE INTO {table}(message_id, packed)"
            " SELECT id, ? FROM messages WHERE id = ?"
        )

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(sql, (pack(), message_id))

        return self._writer.submit(job)

    def save_conversation(self, conversation: StoredConversation) -> Future[None]:
        """Save title, system prompt, sampling and times."""
        self.written.add(conversation.id)
        return self._writer.submit(lambda connection: put_conversation(connection, conversation))

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
    """The store in `path`; if that is not writable, a temporary one whose `problem` says so.

    So the window always opens. The chats of a locked or read-only file are copied and can be read;
    a damaged or newer file is not touched.
    """
    try:
        return ChatStore(path)
    except StorageError as error:
        log.warning("cannot open the chat file: %s", error)
        folder = Path(tempfile.mkdtemp(prefix="inferdeck-chats-"))
        copy = folder / "chats.sqlite3"
        if isinstance(error, StorageLockedError | StorageReadOnlyError):
            copy_readable(Path(path) if path is not None else paths.chats_file(), copy)
        store = ChatStore(copy)
        store._temporary = folder
        kept = "New chats will be lost when this window closes."
        if isinstance(error, StorageCorruptError | StorageNewerError):
            store.spoiled = Path(path) if path is not None else paths.chats_file()
        store.problem = error.info()._replace(remedy=f"{error.remedy} {kept}".strip())
        return store
