"""Rows of the store as immutable records. Times are seconds since the epoch."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from app.storage.search import indexed, text_of, time_of

WAITING, STREAMING, INTERRUPTED = "waiting", "streaming", "interrupted"
"""States that the store uses: opening it marks replies that were waiting or streaming as
interrupted."""

NEW = ""
"""Id of the new conversation, which has no message yet and is not stored."""


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """`sampling` holds the sampling parameters that differ from their defaults."""

    id: str
    title: str
    title_is_automatic: bool = True
    system_prompt: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    created: float = 0.0
    updated: float = 0.0
    deleted_at: float | None = None
    is_pinned: bool = False
    is_archived: bool = False


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the tree of a conversation.

    Messages with the same parent are versions of each other; the one with the highest `shown` is
    visible. `figures` are the reply's measurements, `error` its cause and remedy, `attachments` the
    user's files, each with "name" and "text". `passages`: which part of a reply was generated at
    which precision (see `app.features.chat.figures`).
    """

    id: str
    conversation_id: str
    parent_id: str | None
    role: str
    text: str
    state: str = "complete"
    shown: int = 0
    created: float = 0.0
    figures: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None
    attachments: tuple[Mapping[str, str], ...] = ()
    passages: tuple[Mapping[str, Any], ...] = ()


CONVERSATION = ", ".join(field.name for field in fields(StoredConversation))
MESSAGE = ", ".join(field.name for field in fields(StoredMessage))
"""Columns, in the order of the records."""


def mark_interrupted(connection: sqlite3.Connection) -> None:
    """Replies that were waiting or streaming belong to a process that ended."""
    rows = connection.execute(
        "UPDATE messages SET state = ? WHERE state IN (?, ?) RETURNING number, text",
        (INTERRUPTED, WAITING, STREAMING),
    ).fetchall()
    for number, text in rows:
        _index(connection, number, text_of(text))


def put_conversation(connection: sqlite3.Connection, c: StoredConversation) -> None:
    _put(connection, "conversations", c, ("id", "created", "deleted_at"))


def _put(
    connection: sqlite3.Connection,
    table: str,
    record: StoredConversation | StoredMessage,
    kept: tuple[str, ...],
) -> int:
    """Insert a record, or update an existing one except for the columns `kept`; returns the row
    number."""
    values = {field.name: _packed(getattr(record, field.name)) for field in fields(record)}
    changes = ", ".join(f"{name} = excluded.{name}" for name in values if name not in kept)
    ((number,),) = connection.execute(
        f"INSERT INTO {table}({', '.join(values)}) VALUES({', '.join('?' * len(values))})"
        f" ON CONFLICT(id) DO UPDATE SET {changes} RETURNING rowid",
        list(values.values()),
    ).fetchall()
    return int(number)


def _packed(value: Any) -> Any:
    """A column's value: JSON for types that SQLite lacks; NULL for no entries."""
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, tuple):
        return json.dumps(list(map(dict, value))) if value else None
    return value


def put_message(connection: sqlite3.Connection, m: StoredMessage) -> None:
    kept = ("id", "conversation_id", "parent_id", "role", "created", "attachments")
    number = _put(connection, "messages", m, kept)
    # a tail that is saved every second is indexed once, when it is finished
    if m.state not in (WAITING, STREAMING):
        files = "".join(f"\n{a['name']}\n{a['text']}" for a in m.attachments)
        _index(connection, number, m.text + files)


def put_unsent(connection: sqlite3.Connection, conversation_id: str, text: str) -> None:
    """Save the unsent text of NEW or of a stored conversation; ignored for others, which may have
    been deleted."""
    if not text:
        connection.execute("DELETE FROM unsent WHERE conversation_id = ?", (conversation_id,))
    elif conversation_id == NEW:
        connection.execute("INSERT OR REPLACE INTO unsent VALUES(?, ?)", (NEW, text))
    else:
        connection.execute(
            "INSERT OR REPLACE INTO unsent SELECT id, ? FROM conversations WHERE id = ?",
            (text, conversation_id),
        )


def _index(connection: sqlite3.Connection, number: int, text: str) -> None:
    connection.execute("DELETE FROM messages_fts WHERE rowid = ?", (number,))
    connection.execute(
        "INSERT INTO messages_fts(rowid, text) VALUES(?, ?)", (number, indexed(text))
    )


def conversation_of(row: tuple) -> StoredConversation:
    """The record of a row of CONVERSATION's columns. SQLite keeps any type in any column: values of
    another one are converted, or replaced by the default."""
    chat, title, automatic, prompt, sampling, preset, created, updated, deleted, *flags = row
    return StoredConversation(
        text_of(chat), text_of(title), bool(automatic), text_of(prompt), mapping_of(sampling),
        text_of(preset), time_of(created), time_of(updated),
        None if deleted is None else time_of(deleted), *map(bool, flags),
    )  # fmt: skip


def message_of(row: tuple) -> StoredMessage:
    """The record of a row of MESSAGE's columns, like `conversation_of`."""
    own, chat, parent, role, text, state, shown, created, figures, error, files, passages = row
    return StoredMessage(
        text_of(own), text_of(chat), None if parent is None else text_of(parent), text_of(role),
        text_of(text), text_of(state), shown if isinstance(shown, int) else 0, time_of(created),
        None if figures is None else mapping_of(figures),
        None if error is None else mapping_of(error),
        tuple({"name": a["name"], "text": a["text"]} for a in _mappings_of(files)
              if isinstance(a.get("name"), str) and isinstance(a.get("text"), str)),
        _mappings_of(passages),
    )  # fmt: skip


def mapping_of(text: Any) -> dict[str, Any]:
    """A JSON object; empty if there is none, or if a damaged file has something else there."""
    found = _from_json(text)
    return found if isinstance(found, dict) else {}


def _mappings_of(text: Any) -> tuple[dict[str, Any], ...]:
    found = _from_json(text)
    return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()


def _from_json(text: Any) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
