"""Search in the titles and messages of the chats: every word of a query, in any order and case.

Words of three characters and more are found by the index (FTS5, trigrams), shorter ones in each
text that the index leaves.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Any


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


def contains(text: Any, terms: str) -> bool:
    """Whether a column has all of `terms`, which NUL separates: SQLite limits the depth of a
    condition of many parts."""
    folded = text_of(text).casefold()
    return all(term in folded for term in terms.casefold().split("\0"))


def text_of(value: Any) -> str:
    """A text of a column, which in a damaged file may have another type."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


LATEST_TIME = 2.5e11
"""In the year 9892: a time zone's offset is still possible."""


def time_of(value: Any) -> float:
    """A time of a column; 0 for what is none."""
    is_time = isinstance(value, int | float) and 0 <= value <= LATEST_TIME
    return float(value) if is_time else 0.0


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
    titles = connection.execute(
        "SELECT id, NULL, title, updated, title_is_automatic FROM conversations"
        " WHERE deleted_at IS NULL AND contains(title, ?) ORDER BY updated DESC LIMIT ?",
        ("\0".join(terms), limit),
    ).fetchall()
    messages = _messages(connection, terms, limit)
    told = {row[0] for row in messages}
    own = [row[:4] for row in titles if not (row[4] and row[0] in told)]
    found = [*own, *messages]
    # stable: titles stay before
    found.sort(key=lambda row: (time_of(row[3]), text_of(row[0])), reverse=True)
    return [
        SearchHit(text_of(c), message and text_of(message), *snippet(text_of(text), terms))
        for c, message, text, _ in found[:limit]
    ]


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
    if short:
        conditions.append("contains(f.text, ?)")
        values.append("\0".join(short))
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
