"""How one request samples its tokens. Names and meaning follow vLLM's SamplingParams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InvalidRequestError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    temperature: 0 is greedy. top_k: 0 or -1 keeps all tokens. max_tokens: None runs to the end
    of the context. seed: None draws from the engine's own stream; with a seed the tokens are the
    same whatever runs beside the request. logprobs: None for none, else how many alternatives are
    reported beside the chosen token (0 reports the chosen token alone).
    Raises InvalidRequestError naming the parameter, its value and the range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        # A bare string is a sequence of its characters: the commonest mistake with `stop`.
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_range("temperature", self.temperature, 0.0, 100.0)
        self._check_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.top_k < -1:
            self._refuse("top_k", self.top_k, "0 (all tokens) or a positive number")
        if self.max_tokens is not None and self.max_tokens < 1:
            self._refuse("max_tokens", self.max_tokens, "at least 1, or none for no limit")
        if self.min_tokens < 0:
            self._refuse("min_tokens", self.min_tokens, "0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            self._refuse("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            self._refuse("logprobs", self.logprobs, f"between 0 and {MAX_LOGPROBS}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            self._refuse("seed", self.seed, "a 64-bit integer")
        if any(not text for text in self.stop):
            self._refuse("stop", self.stop, "strings that are not empty")
        for token_id, bias in self.logit_bias.items():
            if token_id < 0 or not math.isfinite(bias):
                self._refuse("logit_bias", {token_id: bias}, "token ids >= 0 with finite values")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def _check_range(
        self, name: str, value: float, low: float, high: float, *, low_open: bool = False
    ) -> None:
        inside = (low < value if low_open else low <= value) and value <= high
        if not inside:  # also refuses NaN
            bracket = "(" if low_open else "["
            self._refuse(name, value, f"in {bracket}{low:g}, {high:g}]")

    @staticmethod
    def _refuse(name: str, value: object, wanted: str) -> None:
        raise InvalidRequestError(f"{name} is {value}; it must be {wanted}.", f"Change {name}.")
