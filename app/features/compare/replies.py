"""`Reply`: one request of a comparison or a broadcast, its text and its figures. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

from app.features.chat.controller import ChatController
from app.features.chat.conversation import State
from app.features.chat.figures import Figures, decode_text
from app.features.chat.generation import records_of
from app.features.chat.reply_data import ReplyTokens
from engine.errors import ErrorInfo
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason
from engine.units import counted, duration_text, figure, rate_text
from widgets.tokens.record import TokenRecord

COMPARE, BROADCAST = "compare", "broadcast"
STOPPED = "stopped"


class Stage(Enum):
    QUEUED = auto()
    GENERATING = auto()
    DONE = auto()
    STOPPED = auto()
    FAILED = auto()

    @property
    def is_open(self) -> bool:
        return self in (Stage.QUEUED, Stage.GENERATING)


_ENDS = {
    FinishReason.STOP: Stage.DONE,
    FinishReason.LENGTH: Stage.DONE,
    FinishReason.ABORT: Stage.STOPPED,
    FinishReason.ERROR: Stage.FAILED,
}


@dataclass(slots=True)
class Reply:
    """One reply. `sent`: when the window asked, on its clock; `first`, `last`: when its first and
    newest tokens came, on the engine's clock. `tokens_per_s`: of decoding, after the first
    token."""

    request_id: str = ""
    prompt: str = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    number: int = 1
    sent: float = 0.0
    stage: Stage = Stage.QUEUED
    text: str = ""
    num_tokens: int = 0
    num_first: int = 0
    first: float | None = None
    last: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    figures: Figures | None = None
    error: ErrorInfo | None = None
    tokens: list[TokenRecord] = field(default_factory=list)

    def add(self, event: OutputEvent, model: str) -> None:
        """Add the next event of the request."""
        self.text += event.text
        self.num_tokens += len(event.token_ids)
        self.tokens += records_of(event)
        if event.token_ids:
            self.stage, self.last = Stage.GENERATING, event.time
            if self.first is None:
                self.first, self.num_first = event.time, self.num_tokens
                self.ttft_s = max(0.0, event.time - self.sent)
            elif event.time > self.first:
                written = self.num_tokens - self.num_first
                self.tokens_per_s = written / (event.time - self.first)
        if event.finish_reason is not None:
            self.figures = Figures.of(event, self.num_tokens, model)
            self.tokens_per_s = self.figures.tokens_per_s
            self.ttft_s = event.times.ttft_s if event.times is not None else None
            self.stage, self.error = _ENDS[event.finish_reason], event.error

    def fail(self, error: ErrorInfo) -> None:
        self.stage, self.error = Stage.FAILED, error

    @property
    def problem(self) -> str:
        """Why the reply is incomplete; "" while it is open or when it is done."""
        if self.stage is Stage.STOPPED:
            return STOPPED
        error = self.error if self.stage is Stage.FAILED else None
        return f"{error.cause} {error.remedy}".strip() if error is not None else ""

    @property
    def is_done(self) -> bool:
        return self.stage is Stage.DONE

    @property
    def summary(self) -> str:
        """ "TTFT 81.0 ms · decode 18.2 tok/s · 64 tokens", or the error."""
        if self.stage is Stage.QUEUED or self.stage is Stage.FAILED:
            return self.problem or self.stage.name.lower()
        parts = []
        if self.ttft_s is not None:
            parts.append(f"TTFT {duration_text(self.ttft_s)}")
        if self.tokens_per_s is not None:
            parts.append(decode_text(self.tokens_per_s))
        parts.append(counted(self.num_tokens, "token"))
        if self.stage is Stage.STOPPED:
            parts.append(STOPPED)
        elif self.figures is not None and self.figures.finish_reason == "length":
            parts.append("max tokens reached")
        return " · ".join(parts)


def totals_text(replies: Sequence[Reply]) -> str:
    """Totals of a broadcast: replies per stage, tokens per second from the first request to the
    newest token (and the median of a reply), TTFT."""
    stages = [reply.stage for reply in replies]
    counts = (
        (stages.count(Stage.GENERATING), "generating"), (stages.count(Stage.QUEUED), "queued"),
        (sum(not stage.is_open for stage in stages), "finished"),
    )  # fmt: skip
    began = min((reply.sent for reply in replies), default=0.0)
    newest = max((reply.last for reply in replies if reply.last is not None), default=began)
    num_tokens, seconds = sum(reply.num_tokens for reply in replies), max(0.0, newest - began)
    parts = [", ".join(f"{count:,} {name}" for count, name in counts if count)]
    if num_tokens and seconds > 0:
        rates = [reply.tokens_per_s for reply in replies if reply.tokens_per_s is not None]
        each = f" ({figure(median(rates), 3)} per reply)" if rates else ""
        parts.append(f"{rate_text(num_tokens / seconds)} total{each}")
    if ttft_ms := [1e3 * reply.ttft_s for reply in replies if reply.ttft_s is not None]:
        middle, longest = duration_text(median(ttft_ms) / 1e3), duration_text(max(ttft_ms) / 1e3)
        parts.append(f"TTFT median {middle}, max {longest}")
    parts.append(f"{counted(num_tokens, 'token')} in {duration_text(seconds)}")
    return " · ".join(filter(None, parts))


def name_of(request_id: str) -> str:
    """Display name of a request: "broadcast 3", "comparison"; "" for all others."""
    kind, _, rest = request_id.partition("-")
    if kind == BROADCAST:
        return f"broadcast {rest.rpartition('-')[2]}"
    return "comparison" if kind == COMPARE else ""


def keep_as_chat(chats: ChatController, reply: Reply, model: str) -> None:
    """Turn a finished reply of `model` into a chat."""
    has_all = len(reply.tokens) == reply.num_tokens > 0
    tokens = ReplyTokens(model, tuple(reply.tokens)) if has_all else None
    state = State.COMPLETE if reply.is_done else State.STOPPED
    chats.keep_exchange(reply.prompt, reply.text, state, reply.params, reply.figures, tokens)
