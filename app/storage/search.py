"""Finding words in conversations."""

from __future__ import annotations

import re
import sqlite3

from app.storage.records import SearchHit

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
