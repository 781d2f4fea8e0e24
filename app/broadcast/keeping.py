"""A reply of a broadcast as the exchange of a chat. No Qt of its own."""

from __future__ import annotations

from app.broadcast.replies import Reply, Stage
from app.chat.controller import Exchange
from app.chat.conversation import State


def exchange_of(reply: Reply, model: str) -> Exchange:
    """A reply that has ended, written by `model`."""
    has_all = len(reply.tokens) == reply.num_tokens > 0
    return Exchange(
        reply.prompt,
        reply.text,
        State.COMPLETE if reply.stage is Stage.DONE else State.STOPPED,
        reply.params,
        reply.figures,
        model,
        tuple(reply.tokens) if has_all else (),
    )
