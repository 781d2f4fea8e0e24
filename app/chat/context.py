"""How full the context is, and what would be cut: said before it happens. No Qt."""

from __future__ import annotations

from typing import NamedTuple

NEARLY = 0.9
"""From this share on the context counts as nearly full."""
SHORT_REPLY = 256
"""With fewer tokens left a reply is likely to be cut."""
_REMEDY = "Shorten it, begin a new chat, or open the model with a longer context."


class ContextUse(NamedTuple):
    """Tokens: `used` by the conversation (None: not known), `draft` by what is being written,
    `limit` of the model, `max_tokens` that a reply may have, `unanswered` in messages after the
    last reply: they are sent again with the next one."""

    used: int | None = None
    draft: int = 0
    limit: int | None = None
    max_tokens: int | None = None
    unanswered: int = 0

    @property
    def total(self) -> int:
        return (self.used or 0) + self.estimated

    @property
    def estimated(self) -> int:
        """What no prompt has shown yet."""
        return self.unanswered + self.draft

    @property
    def is_stuck(self) -> bool:
        """Whether nothing short enough can be written any more."""
        return bool(
            self.unanswered and self.limit and (self.used or 0) + self.unanswered >= self.limit
        )

    @property
    def room(self) -> int | None:
        """What is left for the reply."""
        return None if self.limit is None else self.limit - self.total

    @property
    def is_nearly_full(self) -> bool:
        return self.limit is not None and self.total > NEARLY * self.limit


def context_text(use: ContextUse) -> str:
    """What the context meter says."""
    draft = f" + about {use.estimated:,}" if use.estimated else ""
    if use.limit is None:
        return "" if use.used is None else f"context {use.used:,}{draft} tokens"
    if use.used is None:
        here = f"about {use.estimated:,} of " if use.estimated else "of "
        return f"context {here}{use.limit:,} tokens"
    return f"context {use.used:,}{draft} of {use.limit:,} tokens"


def context_short(use: ContextUse) -> str:
    """The same where there is little room."""
    return "" if use.limit is None else f"{use.total:,} / {use.limit:,}"


def context_warning(use: ContextUse) -> str:
    """What will be refused or cut if this is sent; "" where everything fits."""
    if use.limit is None or use.room is None:
        return ""
    if use.is_stuck:
        return (
            f"The message without a reply does not fit: about {use.total:,} tokens with it, and "
            f"the context holds {use.limit:,}. It is sent along with what follows: edit it, begin "
            "a new chat, or open the model with a longer context."
        )
    if use.draft and use.room <= 0:
        return (
            f"This does not fit: about {use.total:,} tokens, and the context holds "
            f"{use.limit:,}, the reply included. It would be refused. {_REMEDY}"
        )
    if use.room <= 0:
        return f"The context is full: {use.total:,} of {use.limit:,} tokens. {_REMEDY}"
    if use.max_tokens is not None and use.draft and use.room < use.max_tokens:
        return (
            f"About {use.room:,} tokens are left for the reply, which may have "
            f"{use.max_tokens:,}: it would be cut there. {_REMEDY}"
        )
    if use.room < SHORT_REPLY and use.is_nearly_full:
        return f"About {use.room:,} tokens are left: a reply would be cut there. {_REMEDY}"
    return ""
