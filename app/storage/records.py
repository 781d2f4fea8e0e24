"""Rows of the store as immutable records. Times are seconds since the epoch."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

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


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A title or a message that contains every word of a query.

    `snippet` is the text around the first word; `marks` are (start, end) of the words in it.
    `message_id` is None for a title.
    """

    conversation_id: str
    message_id: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]


TRIGRAM = 3
SNIPPET_BEFORE, SNIPPET_LENGTH = 24, 120


def terms_of(query: str) -> list[str]:
    """The words of a query: all of them must occur, in any order and case, also within words."""
    return [term for term in re.split(r"[\s\0]+", query) if term]


def contains(text: str, term: str) -> bool:
    return term.casefold() in text.casefold()


def indexed(text: str) -> str:
    """`text` as the index reads it: SQLite's tokenizers stop at NUL."""
    return text.replace("\0", " ")


def search(connection: sqlite3.Connection, query: str, limit: int) -> list[SearchHit]:
    """Every title and every message that contains every word of `query`, at most `limit`: the last
    used conversation first; in each, its title, then its newest message. An automatic title is not
    listed in addition to the message that it was made from."""
    terms = terms_of(query)
    if not terms:
        return []
    where = " AND ".join("contains(title, ?)" for _ in terms)
    titles = connection.execute(
        "SELECT id, NULL, title, updated, title_is_automatic FROM conversations"
        f" WHERE deleted_at IS NULL AND {where} ORDER BY updated DESC LIMIT ?",
        [*terms, limit],
    ).fetchall()
    messages = _messages(connection, terms, limit)
    told = {row[0] for row in messages}
    own = [row[:4] for row in titles if not (row[4] and row[0] in told)]
    found = [*own, *messages]
    found.sort(key=lambda row: (row[3], row[0]), reverse=True)  # stable: titles stay before
    return [SearchHit(c, message, *snippet(text, terms)) for c, message, text, _ in found[:limit]]


def _messages(
    connection: sqlite3.Connection, terms: list[str], limit: int
) -> list[tuple[str, str | None, str, float]]:
    """(conversation, message, text, updated) of every matching message."""
    long = [term for term in terms if len(term) >= TRIGRAM]
    short = [term for term in terms if len(term) < TRIGRAM]
    conditions, values = ["c.deleted_at IS NULL"], []
    if long:
        conditions.append("messages_fts MATCH ?")
        values.append(" ".join('"' + term.replace('"', '""') + '"' for term in long))
    for term in short:
        conditions.append("contains(f.text, ?)")
        values.append(term)
    return connection.execute(
        "SELECT c.id, m.id, m.text, c.updated FROM messages_fts f"
        " JOIN messages m ON m.number = f.rowid JOIN conversations c ON c.id = m.conversation_id"
        f" WHERE {' AND '.join(conditions)} ORDER BY c.updated DESC, m.number DESC LIMIT ?",
        [*values, limit],
    ).fetchall()


def snippet(text: str, terms: list[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """One line around the first of `terms` in `text`, and the terms' positions in it."""
    pattern = re.compile("|".join(re.escape(t) for t in sorted(terms, key=len, reverse=True)), re.I)
    first = pattern.search(text)
    start = max(0, first.start() - SNIPPET_BEFORE) if first else 0
    if start and (space := text.find(" ", start, first.start() if first else None)) >= 0:
        start = space + 1
    line = re.sub(r"\s", " ", text[start : start + SNIPPET_LENGTH])
    line = ("…" if start else "") + line + ("…" if start + SNIPPET_LENGTH < len(text) else "")
    return line, tuple((m.start(), m.end()) for m in pattern.finditer(line))


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
        _index(connection, number, text)


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
    """The record of a row of CONVERSATION's columns."""
    found = StoredConversation(*row)
    return replace(
        found,
        title_is_automatic=bool(found.title_is_automatic),
        sampling=mapping_of(row[4]),
        is_pinned=bool(found.is_pinned),
        is_archived=bool(found.is_archived),
    )


def message_of(row: tuple) -> StoredMessage:
    """The record of a row of MESSAGE's columns."""
    figures, error = (None if text is None else mapping_of(text) for text in row[-4:-2])
    attachments, passages = map(_mappings_of, row[-2:])
    values = (*row[:-4], figures, error, attachments, passages)
    return StoredMessage(*values)


def mapping_of(text: str | None) -> dict[str, Any]:
    """A JSON object; empty if there is none, or if a damaged file has something else there."""
    found = _from_json(text)
    return found if isinstance(found, dict) else {}


def _mappings_of(text: str | None) -> tuple[dict[str, Any], ...]:
    found = _from_json(text)
    return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()


def _from_json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
