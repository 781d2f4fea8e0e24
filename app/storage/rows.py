"""Records to rows and back; every function runs inside a transaction of the writer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from app.storage.records import (
    INTERRUPTED,
    NEW,
    STREAMING,
    WAITING,
    StoredConversation,
    StoredMessage,
)
from app.storage.search import indexed

CONVERSATION = (
    "id, title, title_is_automatic, system_prompt, sampling, preset, created, updated, deleted_at,"
    " is_pinned, is_archived"
)
MESSAGE = (
    "id, conversation_id, parent_id, role, text, state, shown, created, figures, error,"
    " attachments, passages"
)


def mark_interrupted(connection: sqlite3.Connection) -> None:
    """What was waiting or streaming belongs to a process that ended."""
    rows = connection.execute(
        "UPDATE messages SET state = ? WHERE state IN (?, ?) RETURNING number, text",
        (INTERRUPTED, WAITING, STREAMING),
    ).fetchall()
    for number, text in rows:
        _index(connection, number, text)


def put_conversation(connection: sqlite3.Connection, c: StoredConversation) -> None:
    connection.execute(
        f"INSERT INTO conversations({CONVERSATION}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(id) DO UPDATE SET title = excluded.title,"
        " title_is_automatic = excluded.title_is_automatic,"
        " system_prompt = excluded.system_prompt, sampling = excluded.sampling,"
        " preset = excluded.preset, updated = excluded.updated,"
        " is_pinned = excluded.is_pinned, is_archived = excluded.is_archived",
        (
            c.id, c.title, c.title_is_automatic, c.system_prompt, json.dumps(dict(c.sampling)),
            c.preset, c.created, c.updated, c.deleted_at, c.is_pinned, c.is_archived,
        ),
    )  # fmt: skip


def put_message(connection: sqlite3.Connection, m: StoredMessage) -> None:
    ((number,),) = connection.execute(
        f"INSERT INTO messages({MESSAGE}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(id) DO UPDATE SET text = excluded.text, state = excluded.state,"
        " shown = excluded.shown, figures = excluded.figures, error = excluded.error,"
        " passages = excluded.passages"
        " RETURNING number",
        (
            m.id, m.conversation_id, m.parent_id, m.role, m.text, m.state, m.shown, m.created,
            to_json(m.figures), to_json(m.error),
            json.dumps([dict(a) for a in m.attachments]) if m.attachments else None,
            json.dumps([dict(p) for p in m.passages]) if m.passages else None,
        ),
    ).fetchall()  # fmt: skip
    # a tail that is saved every second is indexed once, when it is finished
    if m.state not in (WAITING, STREAMING):
        files = "".join(f"\n{a['name']}\n{a['text']}" for a in m.attachments)
        _index(connection, number, m.text + files)


def put_unsent(connection: sqlite3.Connection, conversation_id: str, text: str) -> None:
    """Keep what is written to the new conversation, or to one that is stored; for another, which
    may be deleted by now, nothing."""
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
    """The record of a row of CONVERSATION's columns."""
    return StoredConversation(
        row[0], row[1], bool(row[2]), row[3], json.loads(row[4]), row[5], row[6], row[7], row[8],
        bool(row[9]), bool(row[10]),
    )  # fmt: skip


def message_of(row: tuple) -> StoredMessage:
    """The record of a row of MESSAGE's columns."""
    figures, error = from_json(row[8]), from_json(row[9])
    attachments = tuple(json.loads(row[10])) if row[10] else ()
    passages = tuple(json.loads(row[11])) if row[11] else ()
    return StoredMessage(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], figures, error, attachments,
        passages,
    )  # fmt: skip


def to_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(dict(value))


def from_json(text: str | None) -> dict[str, Any] | None:
    return None if text is None else json.loads(text)
