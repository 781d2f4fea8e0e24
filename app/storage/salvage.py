"""Reads a damaged chat file row by row, and skips what its damaged pages hold. No Qt."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.storage.records import (
    CONVERSATION,
    MESSAGE,
    NEW,
    StoredConversation,
    StoredMessage,
    conversation_of,
    message_of,
    put_conversation,
    put_message,
)
from app.storage.search import text_of
from app.storage.writer import transact

FINE_STEPS = 10_000
"""Row numbers tried one by one after a damaged page; then in doubling steps."""
LAST = 2**63 - 1

R = TypeVar("R")


@dataclass(slots=True)
class Salvaged:
    """Rows that were read. `expected_*`: how many the file has; None where that is unreadable.
    `unsent`: the text of the new conversation."""

    conversations: int = 0
    messages: int = 0
    expected_conversations: int | None = None
    expected_messages: int | None = None
    unsent: str = ""

    @property
    def text(self) -> str:
        """ "Recovered chats: 12 of 14; messages: 310 of 342."."""
        chats = _of(self.conversations, self.expected_conversations)
        messages = _of(self.messages, self.expected_messages)
        return f"Recovered chats: {chats}; messages: {messages}."


def _of(count: int, expected: int | None) -> str:
    return f"{count:,}" if expected is None else f"{count:,} of {max(count, expected):,}"


class RecoveryCancelled(Exception):  # noqa: N818 - not an error, a way out
    """The user cancelled the recovery."""


def salvage(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    found: Salvaged,
    stops: Callable[[], bool] = lambda: False,
) -> None:
    """Copy what can be read of `source` into the empty `target`, and count it in `found`. Raises
    RecoveryCancelled as soon as `stops` is true; then `target` is unchanged."""
    source.text_factory = lambda data: data.decode(errors="replace")
    found.expected_conversations = _count(source, "conversations")
    found.expected_messages = _count(source, "messages")

    def job(connection: sqlite3.Connection) -> None:
        for conversation in _records(source, "conversations", CONVERSATION, conversation_of):
            put_conversation(connection, conversation)
            found.conversations += 1
            _go_on(stops)
        for message in _records(source, "messages", MESSAGE, message_of):
            _add_missing(connection, message)
            put_message(connection, message)
            found.messages += 1
            _go_on(stops)
        for table in ("reply_tokens", "reply_times", "presets", "unsent"):
            present = _columns(source, table)
            columns = [name for name in _columns(connection, table) if name in present]
            places = ", ".join("?" * len(columns))
            for row in _rows(source, table, columns):
                _go_on(stops)
                with suppress(sqlite3.IntegrityError):  # its reply is lost
                    connection.execute(
                        f"INSERT OR IGNORE INTO {table}({', '.join(columns)}) VALUES({places})", row
                    )
        text = connection.execute("SELECT text FROM unsent WHERE conversation_id = ?", (NEW,))
        found.unsent = text_of(next(text, (None,))[0])
        _go_on(stops)  # what interrupted a statement looks like damage

    transact(target, job)


def _go_on(stops: Callable[[], bool]) -> None:
    if stops():
        raise RecoveryCancelled


def _add_missing(connection: sqlite3.Connection, message: StoredMessage) -> None:
    """Add the conversation of `message` if it is lost. A lost parent is left to the reader of the
    messages (`app.features.chat.conversation`)."""
    known = "SELECT 1 FROM conversations WHERE id = ?"
    if connection.execute(known, (message.conversation_id,)).fetchone() is None:
        made = StoredConversation(
            message.conversation_id, "Recovered chat",
            created=message.created, updated=message.created,
        )  # fmt: skip
        put_conversation(connection, made)


def _records(
    source: sqlite3.Connection, table: str, names: str, record_of: Callable[[tuple], R]
) -> Iterator[R]:
    """`names`: the columns of a record; an older file may lack some."""
    present = [name for name in names.split(", ") if name in _columns(source, table)]
    for row in _rows(source, table, present):
        values = dict(zip(present, row, strict=True))
        if isinstance(values.get("id"), str):
            yield record_of(tuple(map(values.get, names.split(", "))))


def _rows(
    source: sqlite3.Connection, table: str, columns: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Every readable row in the order of their numbers."""
    if not columns:
        return
    after = f"FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid"
    select = f"SELECT rowid, {', '.join(columns)} {after}"
    position = -LAST
    while True:
        repeated = 0  # pages that refer to each other repeat rows, perhaps for ever
        try:
            for number, *row in source.execute(select, (position,)):
                if number > position:
                    position = number
                    yield tuple(row)
                elif (repeated := repeated + 1) > FINE_STEPS:
                    raise sqlite3.DatabaseError("pages in a circle")
            return
        except sqlite3.DatabaseError:
            step = _next_readable(source, f"SELECT rowid {after} LIMIT 1", position)
            if step is None:
                return
            position = step


def _next_readable(source: sqlite3.Connection, sql: str, position: int) -> int | None:
    """The position from which to read on after an error; None if there is nothing to be read."""

    def number_after(position: int) -> int | None:
        """The number of the next row; raises sqlite3.DatabaseError on a damaged page."""
        row = source.execute(sql, (position,)).fetchone()
        if row is not None and row[0] <= position:
            raise sqlite3.DatabaseError("rows out of order")
        return None if row is None else row[0]

    def reads(position: int) -> bool:
        try:
            number_after(position)
        except sqlite3.DatabaseError:
            return False
        return True

    with suppress(sqlite3.DatabaseError):
        return number_after(position)  # that row has a number, and content that cannot be read
    start = max(position, 0)
    for candidate in range(start + 1, start + FINE_STEPS):
        if reads(candidate):
            return candidate
    low, high = start + FINE_STEPS - 1, start + 2 * FINE_STEPS
    while not reads(high):
        if high >= LAST // 2:
            return None
        low, high = high, start + 2 * (high - start)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reads(middle) else (middle, high)
    return high


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Of a table: a damaged schema may have a view of that name, whose rows have no numbers."""
    try:
        is_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if not connection.execute(is_table, (table,)).fetchone():
            return []
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    except sqlite3.DatabaseError:
        return []  # the schema is damaged


def _count(source: sqlite3.Connection, table: str) -> int | None:
    try:
        return int(source.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    except sqlite3.DatabaseError:
        return None
