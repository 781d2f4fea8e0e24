"""Rows of the store as immutable records. Times are seconds since the epoch."""

from __future__ import annotations

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
    where on a reply was written in which precision (see `app.chat.passages`).
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
