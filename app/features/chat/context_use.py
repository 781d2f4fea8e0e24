"""`ContextUse`: the tokens that a message takes of the context, and what to warn of."""

from __future__ import annotations

from typing import NamedTuple

NEARLY = 0.9
"""Share of the context that counts as nearly full."""
SHORT_REPLY = 256
"""With fewer tokens left, a reply is likely to be cut off."""
SHOWN = 40
"""Characters by which a message is named."""


class ContextUse(NamedTuple):
    """Tokens: `used` by the conversation (None: unknown), `draft`, `limit` of the model,
    `max_tokens` of a reply, `unanswered`: in messages after the last reply, sent again; the longest
    of them has `longest` tokens and this text. `is_guess`: the engine cannot count them."""

    used: int | None = None
    draft: int = 0
    limit: int | None = None
    max_tokens: int | None = None
    unanswered: int = 0
    longest: int = 0
    longest_text: str = ""
    is_guess: bool = False

    @property
    def total(self) -> int:
        return (self.used or 0) + self.estimated

    @property
    def estimated(self) -> int:
        """Tokens that no prompt has counted yet."""
        return self.unanswered + self.draft

    @property
    def is_stuck(self) -> bool:
        """Whether even the shortest message does not fit."""
        return bool(
            self.unanswered and self.limit and (self.used or 0) + self.unanswered >= self.limit
        )

    @property
    def is_too_long(self) -> bool:
        """Whether the engine would refuse the message."""
        return bool(self.draft and self.limit and self.total >= self.limit and not self.is_guess)

    @property
    def remedy(self) -> str:
        """A new chat has more room than one with messages only."""
        if self.used or self.unanswered:
            return "Shorten the message, start a new chat, or increase the context length."
        return "Shorten the message or increase the context length."

    @property
    def room(self) -> int | None:
        return None if self.limit is None else self.limit - self.total

    @property
    def is_nearly_full(self) -> bool:
        return self.limit is not None and self.total > NEARLY * self.limit


def _beginning(text: str) -> str:
    words = " ".join(text[: 2 * SHOWN].split())
    return words if len(words) <= SHOWN else words[:SHOWN].rstrip() + "…"


def context_text(use: ContextUse) -> str:
    draft = f" + ~{use.estimated:,}" if use.estimated else ""
    if use.limit is None:
        return "" if use.used is None else f"context: {use.used:,}{draft} tokens"
    if use.used is None:
        whole = f"{use.limit:,} tokens"
        return f"context: ~{use.estimated:,} of {whole}" if use.estimated else f"context: {whole}"
    return f"context: {use.used:,}{draft} of {use.limit:,} tokens"


def context_short(use: ContextUse) -> str:
    """The same in a narrow window."""
    return "" if use.limit is None else f"{use.total:,} / {use.limit:,}"


def context_warning(use: ContextUse) -> str:
    """What would be refused or cut off, or ""."""
    if use.limit is None or use.room is None:
        return ""
    if use.is_stuck:
        others = (use.used or 0) + use.unanswered - use.longest
        beside = f" beside {others:,} of other messages" if use.longest < use.limit else ""
        return (
            f"The earlier message “{_beginning(use.longest_text)}” is too long: about "
            f"{use.longest:,} tokens{beside}; the context length is {use.limit:,}. Edit it, start "
            "a new chat, or increase the context length."
        )
    if use.draft and use.room <= 0:
        return (
            f"The prompt is too long: about {use.total:,} tokens. Prompt and reply share a "
            f"{use.limit:,}-token context. {use.remedy}"
        )
    if use.room <= 0:
        return f"The context is full: {use.total:,} of {use.limit:,} tokens. {use.remedy}"
    if use.max_tokens is not None and use.draft and use.room < use.max_tokens:
        return (
            f"About {use.room:,} tokens left for the reply (max tokens: {use.max_tokens:,}). "
            f"It may be truncated. {use.remedy}"
        )
    if use.room < SHORT_REPLY and use.is_nearly_full:
        return f"About {use.room:,} tokens left: the reply may be truncated. {use.remedy}"
    return ""
