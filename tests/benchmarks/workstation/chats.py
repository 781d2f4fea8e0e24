"""Chats for the measurements: written straight into the store, as records."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.features.chat.conversation import Conversation, Message, Role
from app.features.chat.figures import Figures
from app.storage import ChatStore
from app.storage.records import StoredConversation, StoredMessage, put_conversation, put_message

REPLY = """Here is what a *block* of the KV cache is, **in short**:

- it holds the keys and values of 16 tokens;
- several requests may share it, where their prompts begin alike.

```python
def num_blocks(num_tokens: int, block_size: int = 16) -> int:
    return -(-num_tokens // block_size)
```

| tokens | blocks |
|---|---|
| 16 | 1 |
| 17 | 2 |

Reply number {number} goes on in prose for a while: a step of the engine computes one token of
every running request, and whoever waits joins the batch with the next step.
"""
_FIGURES = Figures(120, 800, 768, "starter", "stop", 84.0, 3.0, 18.2, 18.0, 24.0, 31.0)


def conversation(title: str, num_messages: int, age_s: float = 0.0) -> tuple[
    StoredConversation, list[StoredMessage]
]:  # fmt: skip
    """Questions and answers in turns, as they are stored."""
    made = Conversation(title=title, title_is_automatic=False)
    now = time.time() - age_s
    parent: str | None = None
    messages = []
    for number in range(num_messages):
        role = Role.ASSISTANT if number % 2 else Role.USER
        text = REPLY.format(number=number) if number % 2 else f"Question {number}: what is a block?"
        message = Message(made.id, parent, role, text, shown=1, created=now + number)
        if role is Role.ASSISTANT:
            message.figures = _FIGURES
        messages.append(message.record())
        parent = message.id
    record = replace(made.record(), created=now, updated=now)
    return record, messages


def many(count: int) -> Iterator[tuple[StoredConversation, list[StoredMessage]]]:
    """Short conversations, one an hour older than the other."""
    for number in range(count):
        yield conversation(f"Chat {number} about blocks and steps", 2, 3600.0 * (number + 1))


def fill(path: Path, chats: Iterator[tuple[StoredConversation, list[StoredMessage]]]) -> None:
    """Put chats into a new store, all of them in one go."""

    def put(connection: sqlite3.Connection) -> None:
        for record, messages in chats:
            put_conversation(connection, record)
            for message in messages:
                put_message(connection, message)

    store = ChatStore(path)
    store._writer.submit(put).result()
    store.close()
