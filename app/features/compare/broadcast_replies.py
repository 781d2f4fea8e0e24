"""The replies of a broadcast and what is measured of them, each and together. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

from app.features.chat.controller import Exchange
from app.features.chat.conversation import State
from app.features.chat.figures import Figures
from app.features.chat.tokens import records_of
from engine.errors import ErrorInfo
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason
from widgets.controls.text import milliseconds
from widgets.tokens.record import TokenRecord


class Stage(Enum):
    WAITING = auto()
    WRITING = auto()
    DONE = auto()
    STOPPED = auto()
    FAILED = auto()

    @property
    def is_open(self) -> bool:
        return self in (Stage.WAITING, Stage.WRITING)


@dataclass(slots=True)
class Reply:
    """One conversation: `prompt` as it was asked, and what came. `first`, `last`: when its first
    and its newest tokens came (seconds of the engine's clock); `ttft_s` is known with its end, and
    before it from `sent`, the window's time of asking."""

    number: int
    request_id: str
    prompt: str
    params: SamplingParams
    sent: float
    stage: Stage = Stage.WAITING
    text: str = ""
    num_tokens: int = 0
    num_first: int = 0
    first: float | None = None
    last: float | None = None
    step_index: int = 0
    figures: Figures | None = None
    error: ErrorInfo | None = None
    tokens: list[TokenRecord] = field(default_factory=list)

    def add(self, event: OutputEvent, model: str) -> None:
        """The next event of it."""
        self.text += event.text
        self.num_tokens += len(event.token_ids)
        self.tokens += records_of(event)
        self.step_index = event.step_index
        if event.token_ids:
            self.stage = Stage.WRITING
            self.last = event.time
            if self.first is None:
                self.first, self.num_first = event.time, self.num_tokens
        if event.finish_reason is not None:
            self.figures = Figures.of(event, self.num_tokens, model)
            self.stage, self.error = _ENDS[event.finish_reason], event.error

    @property
    def ttft_ms(self) -> float | None:
        if self.figures is not None:
            return self.figures.ttft_ms
        return None if self.first is None else 1e3 * max(0.0, self.first - self.sent)

    @property
    def tokens_per_s(self) -> float | None:
        """Of decoding, after the first token."""
        if self.figures is not None:
            return self.figures.tokens_per_s
        if self.first is None or self.last is None or self.last <= self.first:
            return None
        return (self.num_tokens - self.num_first) / (self.last - self.first)

    @property
    def words(self) -> str:
        """ "TTFT 81.0 ms · 18.2 tok/s · 64 tokens"."""
        if self.stage is Stage.WAITING:
            return "waiting"
        parts = []
        if self.ttft_ms is not None:
            parts.append(f"TTFT {milliseconds(self.ttft_ms)}")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.1f} tok/s")
        parts.append(f"{self.num_tokens:,} token{'s' * (self.num_tokens != 1)}")
        if self.stage is Stage.STOPPED:
            parts.append("stopped")
        elif self.stage is Stage.FAILED:
            parts.append("failed")
        elif self.figures is not None and self.figures.finish_reason == "length":
            parts.append("cut at the limit")
        return " · ".join(parts)


_ENDS = {
    FinishReason.STOP: Stage.DONE,
    FinishReason.LENGTH: Stage.DONE,
    FinishReason.ABORT: Stage.STOPPED,
    FinishReason.ERROR: Stage.FAILED,
}


@dataclass(frozen=True, slots=True)
class Together:
    """All replies of a broadcast as one. `num_tokens` in `seconds`, from the first request to the
    newest token; `alone` is the median rate of a reply."""

    num_waiting: int
    num_writing: int
    num_ended: int
    num_tokens: int
    seconds: float
    ttft_ms: tuple[float, ...]
    alone: float | None

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_tokens / self.seconds if self.num_tokens and self.seconds > 0 else None

    @property
    def words(self) -> str:
        counts = (
            (self.num_writing, "writing"), (self.num_waiting, "waiting"), (self.num_ended, "ended"),
        )  # fmt: skip
        parts = [", ".join(f"{count:,} {name}" for count, name in counts if count)]
        if self.tokens_per_s is not None:
            alone = f" ({self.alone:,.1f} in each)" if self.alone is not None else ""
            parts.append(f"{self.tokens_per_s:,.1f} tok/s together{alone}")
        if self.ttft_ms:
            parts.append(
                f"TTFT median {milliseconds(median(self.ttft_ms))}, "
                f"longest {milliseconds(max(self.ttft_ms))}"
            )
        parts.append(f"{self.num_tokens:,} tokens in {self.seconds:,.1f} s")
        return " · ".join(filter(None, parts))


def together(replies: Sequence[Reply]) -> Together:
    stages = [reply.stage for reply in replies]
    newest = max((reply.last for reply in replies if reply.last is not None), default=None)
    began = min((reply.sent for reply in replies), default=0.0)
    rates = [rate for reply in replies if (rate := reply.tokens_per_s) is not None]
    return Together(
        num_waiting=stages.count(Stage.WAITING),
        num_writing=stages.count(Stage.WRITING),
        num_ended=sum(not stage.is_open for stage in stages),
        num_tokens=sum(reply.num_tokens for reply in replies),
        seconds=max(0.0, newest - began) if newest is not None else 0.0,
        ttft_ms=tuple(ms for reply in replies if (ms := reply.ttft_ms) is not None),
        alone=median(rates) if rates else None,
    )


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
