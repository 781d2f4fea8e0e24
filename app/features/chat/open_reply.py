"""A reply while it is generated: its tokens, text and figures so far. No Qt."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.features.chat.conversation import Conversation, Message
from app.features.chat.figures import Figures
from engine.messages import OutputEvent
from engine.snapshot import RequestTimes
from widgets.tokens.record import Alternative, TokenRecord


class Progress:
    """Figures of a reply while it is generated."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_prompt_tokens = 0
        self.step_index = 0
        self._first: float | None = None
        self._first_tokens = 0
        self._last = 0.0

    def add(self, event: OutputEvent) -> None:
        self.num_tokens += len(event.token_ids)
        self.num_prompt_tokens = event.num_prompt_tokens
        self.step_index = event.step_index
        self._last = event.time
        if self._first is None and event.token_ids:
            self._first, self._first_tokens = event.time, self.num_tokens

    @property
    def itl_s(self) -> float | None:
        """Mean gap between tokens so far."""
        gaps = self.num_tokens - self._first_tokens
        if self._first is None or gaps < 1:
            return None
        return (self._last - self._first) / gaps


@dataclass(frozen=True, slots=True)
class Earlier:
    """A reply as it was before it is continued. `num_tokens`: of its text."""

    num_tokens: int
    figures: Figures | None
    times: RequestTimes | None
    passes_text: bool
    """Whether the server gets its text in place of its tokens, and sends only new text."""
    tokens: tuple[TokenRecord, ...] = ()
    """Its saved tokens, if any."""


@dataclass(slots=True)
class OpenReply:
    conversation: Conversation
    reply: Message
    is_sent: bool = False
    progress: Progress = field(default_factory=Progress)
    tokens: list[TokenRecord] = field(default_factory=list)
    model: str = ""  # whose tokens the reply begins with
    earlier: Earlier | None = None
    awaits_text: bool = False
    """The engine sends the text of the opening tokens again, before the new text."""
    state: str = ""
    """Why no token is generated now, as shown."""

    @property
    def num_before(self) -> int:
        """Tokens that the reply begins with."""
        return self.earlier.num_tokens if self.earlier is not None else len(self.reply.opening)

    def take_text(self, text: str) -> str | None:
        """Add the engine's text; returns the part to append on the screen, or None if the text
        already shown has changed."""
        if not text:
            return ""
        known, self.awaits_text = self.reply.text if self.awaits_text else "", False
        if known and not text.startswith(known):
            self.reply.text = text  # the last characters were held back, or never had a token
            return None
        new = text[len(known) :]
        self.reply.text += new
        return new


def records_of(event: OutputEvent) -> list[TokenRecord]:
    """The tokens of an event: accepted drafts, then the model's own token in place of the rejected
    ones."""
    records = [
        TokenRecord(
            token.token_id, token.token, token.logprob, token.rank,
            tuple(Alternative(*alternative) for alternative in token.alternatives),
        )
        for token in event.logprobs
    ]  # fmt: skip
    if event.drafts is not None and records:
        for i in range(min(event.drafts.num_accepted, len(records))):
            records[i] = records[i]._replace(is_draft=True)
        if event.drafts.rejected:
            records[-1] = records[-1]._replace(rejected=event.drafts.rejected)
    return records
