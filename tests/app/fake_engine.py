"""An engine for tests of the chat: says what it is told to, when it is told to."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.clients.target import Continues
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.messages import (
    EngineCrashed,
    OutputEvent,
    Prompt,
    RequestFailed,
    TokenLogprob,
    TokensCounted,
)
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, ModelInfo, RequestTimes, TokenEvent

MODEL = ModelInfo(
    "Qwen3-0.6B", "/models/qwen", "Qwen3ForCausalLM", "bfloat16", "cpu", 596_000_000, 1_190_000_000,
    28, 1024, 16, 8, 128, 151_936, 8192, False, True, output_bytes=311_000_000,
)  # fmt: skip


class FakeEngine(QObject):
    """Keeps what was asked; `say` and `finish` answer in simulated time (seconds)."""

    outputs = Signal(object)
    ended = Signal(object)
    request_failed = Signal(object)
    traced = Signal(object)
    crashed = Signal(object)
    loaded = Signal(object)
    state_changed = Signal(object)
    reconfiguring = Signal(object)
    reconfigured = Signal(object)
    reconfigure_failed = Signal(object)
    snapshot = Signal(object)
    tokens_counted = Signal(object)

    def __init__(self, state: str = "ready") -> None:
        super().__init__()
        self.state = state
        self.model: ModelInfo | None = MODEL if state == "ready" else None
        self.config: EngineConfig | None = (
            EngineConfig(max_model_len=8192) if state == "ready" else None
        )
        self.continues, self.is_remote = Continues.TOKENS, False
        self.requests: dict[str, tuple[Prompt, SamplingParams]] = {}
        self.begun_with: dict[str, tuple[int, ...]] = {}
        self.spread: tuple[tuple[int, str, float], ...] = ()  # reported beside every token
        self.ids: dict[str, int] = {}
        self.order: list[str] = []
        self.over: set[str] = set()  # requests that have ended: a reply may go on
        self.aborted: list[str] = []
        self.counted: list[str] = []
        self.times: dict[str, list[TokenEvent]] = {}
        self.clock = 100.0
        self.step_ms = 18.2
        self.prompt_tokens, self.cached_tokens = 803, 768

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    @property
    def last(self) -> str:
        """The id of the newest request."""
        return self.order[-1]

    def prompt(self, request_id: str = "") -> list[tuple[str, str]]:
        """(role, content) of the messages of a request."""
        prompt, _ = self.requests[request_id or self.last]
        return [(m["role"], m["content"]) for m in prompt]  # type: ignore[index]

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        begin_with: tuple[int, ...] = (),
    ) -> None:
        assert request_id not in self.requests or request_id in self.over
        self.over.discard(request_id)
        self.begun_with[request_id] = begin_with
        self.requests[request_id] = (prompt, params or SamplingParams())
        self.order.append(request_id)
        self.times[request_id] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def count_tokens(self, key: str, text: str) -> None:
        """A word is a token."""
        self.counted.append(text)
        if self.is_ready:
            self.tokens_counted.emit(TokensCounted(key, len(text.split())))

    def set_state(self, state: str) -> None:
        self.state = state
        self.model = MODEL if state == "ready" else None
        self.config = EngineConfig(max_model_len=8192) if state == "ready" else None
        self.state_changed.emit(state)

    def output(self, request_id: str, text: str, reason: FinishReason | None = None) -> OutputEvent:
        times = self.times[request_id]
        self.clock += self.step_ms / 1e3
        is_first = not times and bool(text)
        if text:
            times.append(TokenEvent(self.clock, 1))
        token_id = self.ids.setdefault(text, len(self.ids) + 1)
        logprobs: tuple[TokenLogprob, ...] = ()
        if text and self.spread:
            known = ((token_id, text, -0.51), *self.spread)
            logprobs = (TokenLogprob(token_id, text, -0.51, 1, known),)
        first = times[0].time if times else self.clock
        arrival, scheduled = first - 0.084, first - 0.081
        return OutputEvent(
            request_id,
            text,
            (token_id,) if text else (),
            self.clock,
            48_000 + len(times),
            self.prompt_tokens,
            self.cached_tokens,
            logprobs,
            finish_reason=reason,
            times=RequestTimes(arrival, scheduled, tuple(times), self.clock) if reason else None,
            is_first=is_first,
        )

    def say(self, *texts: str, request_id: str = "") -> None:
        """Emit the texts as one batch of outputs."""
        request_id = request_id or self.last
        self.outputs.emit([self.output(request_id, text) for text in texts])

    def finish(
        self, text: str = "", request_id: str = "", reason: FinishReason = FinishReason.STOP
    ) -> None:
        self.over.add(request_id or self.last)
        event = self.output(request_id or self.last, text, reason)
        self.outputs.emit([event])
        self.ended.emit(event)

    def fail(self, cause: str, remedy: str = "", request_id: str = "") -> None:
        self.over.add(request_id or self.last)
        self.request_failed.emit(RequestFailed(request_id or self.last, ErrorInfo(cause, remedy)))

    def crash(self, cause: str, remedy: str = "") -> None:
        self.set_state("crashed")
        self.crashed.emit(EngineCrashed(ErrorInfo(cause, remedy), "traceback"))
