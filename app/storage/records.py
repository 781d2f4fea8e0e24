"""Rows of the store as immutable records. Times are seconds since the epoch."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WAITING, STREAMING, INTERRUPTED = "waiting", "streaming", "interrupted"
"""States that the store itself knows: what was waiting or streaming when the process ended is
interrupted when the store is opened again."""

NEW = ""
"""In place of the id of a conversation: the one that has no message yet, and is not stored."""


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

    Messages with the same parent are versions of one another; the one with the greatest `shown`
    is the one on the screen. `figures` are the reply's measurements, `error` its cause and remedy,
    `attachments` the files that the user gave with it: each a "name" and a "text". `passages`: from
    where on a reply was written in which precision (see `app.features.chat.figures`).
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
    `message_id` is None where the title was hit.
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
    """What the index gets to read of `text`: sqlite's tokenizers end at a NUL."""
    return text.replace("\0", " ")


def search(connection: sqlite3.Connection, query: str, limit: int) -> list[SearchHit]:
    """Every title and every message that contains every word of `query`, at most `limit`: those of
    the conversation used last first; of one conversation its title, then its newest message. A
    title that was made from the first message does not count beside it."""
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
    """(conversation, message, text, updated) of every message that is hit."""
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
    """One line around the first of `terms` in `text`, and where the terms lie in it."""
    pattern = re.compile("|".join(re.escape(t) for t in sorted(terms, key=len, reverse=True)), re.I)
    first = pattern.search(text)
    start = max(0, first.start() - SNIPPET_BEFORE) if first else 0
    if start and (space := text.find(" ", start, first.start() if first else None)) >= 0:
        start = space + 1
    line = re.sub(r"\s", " ", text[start : start + SNIPPET_LENGTH])
    line = ("…" if start else "") + line + ("…" if start + SNIPPET_LENGTH < len(text) else "")
    return line, tuple((m.start(), m.end()) for m in pattern.finditer(line))


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
