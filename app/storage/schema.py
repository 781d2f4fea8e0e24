"""The tables, as a list of migrations: the n-th brings a file of version n to version n + 1.

    conversations 1 --- n messages; messages form a tree by parent_id
    messages 1 --- 0..1 reply_tokens: the tokens of a reply, packed (see app.chat.tokens)
    messages 1 --- 0..1 reply_times: when they came, packed (see app.chat.times)
    conversations 1 --- 0..1 unsent: what is written to a conversation and was not sent; "" is the
        conversation that has no message yet, which is in no other table
    messages_fts: the words of every message that is not being written any more, by rowid

The trigram tokenizer finds any three characters in a row: parts of words, code, and languages
that put no space between words.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.storage.errors import StorageNewerError

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE conversations(
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        title_is_automatic INTEGER NOT NULL,
        system_prompt TEXT NOT NULL,
        sampling TEXT NOT NULL,
        preset TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        deleted_at REAL
    );
    CREATE TABLE messages(
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
        parent_id TEXT,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        state TEXT NOT NULL,
        shown INTEGER NOT NULL,
        created REAL NOT NULL,
        figures TEXT,
        error TEXT
    );
    CREATE INDEX messages_of_conversation ON messages(conversation_id, number);
    CREATE INDEX messages_unfinished ON messages(state) WHERE state IN ('waiting', 'streaming');
    CREATE VIRTUAL TABLE messages_fts USING fts5(text, tokenize = 'trigram');
    CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
        DELETE FROM messages_fts WHERE rowid = old.number;
    END;
    CREATE TABLE presets(name TEXT PRIMARY KEY, sampling TEXT NOT NULL);
    """,
    """
    ALTER TABLE conversations ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN is_archived INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE messages ADD COLUMN attachments TEXT;
    CREATE TABLE reply_tokens(
        message_id TEXT PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
    """,
    """
    ALTER TABLE messages ADD COLUMN passages TEXT;
    """,
    """
    CREATE TABLE reply_times(
        message_id TEXT PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
    """,
    """
    CREATE TABLE unsent(conversation_id TEXT PRIMARY KEY, text TEXT NOT NULL);
    CREATE TRIGGER conversations_deleted AFTER DELETE ON conversations BEGIN
        DELETE FROM unsent WHERE conversation_id = old.id;
    END;
    """,
)

VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to VERSION, each step in a transaction of its own.

    Raises StorageNewerError for a file of a newer program, which is left as it is.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StorageNewerError(
            f"The chats in {path} were written by a newer Inferdeck: format {version}, this one "
            f"knows up to {VERSION}.",
            "Start the newer version, set INFERDECK_DATA_DIR to another folder, or keep the file "
            "aside and begin anew.",
        )
    for number in range(version, VERSION):
        script = MIGRATIONS[number]
        connection.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number + 1}; COMMIT;"
        )
