"""How one request samples its tokens, and one registry of these parameters (`PARAMETERS`).

Each parameter is declared once: name, type, default, range, label and help. The chat, the command
line, the server, its clients and the checks are made from it. Names and meaning follow vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_INTEGER = 2**31 - 1
"""Of counts and token ids, which tensors hold in 32 bits."""
MAX_BIAS = 1e30
"""Logits in float32 stay finite."""


class Control(NamedTuple):
    """How the chat offers a parameter as a number. `unset` is shown as `unset_text`."""

    minimum: float
    maximum: float
    step: float
    decimals: int = 0
    unset: float | None = None
    unset_text: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One declared sampling parameter; None is allowed where it is the default.

    type: int, float, bool, tuple[str, ...], tuple[int, ...] or Mapping[int, float].
    minimum, maximum: inclusive; both or none are set.
    in_openai: OpenAI's API has it too; the others are vLLM's. neutral: values beside the default
    that change nothing. control: None: the chat does not offer it as a number.
    """

    name: str
    type: Any
    default: Any
    label: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    excludes_minimum: bool = False
    in_openai: bool = False
    neutral: tuple[Any, ...] = ()
    control: Control | None = None

    def is_neutral(self, value: Any) -> bool:
        """Whether `value` does not change the reply."""
        return value == self.default or value in self.neutral

    def check(self, value: Any) -> None:
        """Raise InvalidRequestError for a number out of range."""
        if self.minimum is None or (value is None and self.default is None):
            return
        assert self.maximum is not None
        low = self.minimum < value if self.excludes_minimum else self.minimum <= value
        if low and value <= self.maximum:
            return  # which NaN does not reach
        allowed = f"{self.minimum:,} to {self.maximum:,}"
        if self.excludes_minimum:
            allowed = f"more than {self.minimum:,} and at most {self.maximum:,}"
        self.refuse(value, f"Use {allowed}.")

    def refuse(self, value: Any, remedy: str) -> None:
        raise InvalidRequestError(f"{self.name} is {value}.", remedy)


def _parameter(type_: Any, default: Any, label: str, help_: str, **kw: Any) -> Any:
    metadata = {"type": type_, "label": label, "help": help_, "default": default, **kw}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    max_tokens: None runs to the end of the context. seed: None draws from the engine's own stream;
    with a seed the tokens are the same whatever runs beside the request. logprobs: None for none,
    else the number of alternatives reported beside the chosen token.
    Raises InvalidRequestError naming the parameter, its value and the range.
    """

    temperature: float = _parameter(
        float, 1.0, "Temperature", "Sampling randomness. 0: greedy, the most probable token.",
        minimum=0, maximum=100, in_openai=True, control=Control(0.0, 2.0, 0.05, 2),
    )
    top_p: float = _parameter(
        float, 1.0, "Top-p", "Sample from the smallest token set with this cumulative probability.",
        minimum=0, maximum=1, excludes_minimum=True, in_openai=True,
        control=Control(0.01, 1.0, 0.01, 2),
    )
    top_k: int = _parameter(
        int, 0, "Top-k", "Sample from the k most probable tokens. 0: all tokens.",
        minimum=-1, maximum=MAX_INTEGER, neutral=(-1,),
        control=Control(0, 1000, 1, unset=0, unset_text="all"),
    )
    min_p: float = _parameter(
        float, 0.0, "Min-p", "Minimum token probability, as a fraction of the highest.",
        minimum=0, maximum=1, control=Control(0.0, 1.0, 0.01, 2),
    )
    repetition_penalty: float = _parameter(
        float, 1.0, "Repetition penalty",
        "Above 1: tokens already in the prompt or reply become less probable.",
        minimum=0, maximum=100, excludes_minimum=True, control=Control(0.5, 2.0, 0.05, 2),
    )
    presence_penalty: float = _parameter(
        float, 0.0, "Presence penalty",
        "Subtracted once from the logits of tokens already in the reply.",
        minimum=-2, maximum=2, in_openai=True, control=Control(-2.0, 2.0, 0.1, 1),
    )
    frequency_penalty: float = _parameter(
        float, 0.0, "Frequency penalty",
        "Subtracted from a token's logit for each occurrence in the reply.",
        minimum=-2, maximum=2, in_openai=True, control=Control(-2.0, 2.0, 0.1, 1),
    )
    max_tokens: int | None = _parameter(
        int, None, "Max tokens", "Maximum reply length in tokens.",
        minimum=1, maximum=MAX_INTEGER, in_openai=True,
        control=Control(0, 1_000_000, 64, unset=0, unset_text="no limit"),
    )
    seed: int | None = _parameter(
        int, None, "Seed", "The same seed and prompt produce the same reply.",
        minimum=-(2**63), maximum=2**63 - 1, in_openai=True,
        control=Control(-1, 2**31 - 1, 1, unset=-1, unset_text="random"),
    )
    logprobs: int | None = _parameter(
        int, None, "Top logprobs", "Number of alternatives to report per token.",
        minimum=0, maximum=MAX_LOGPROBS, in_openai=True,
        control=Control(-1, MAX_LOGPROBS, 1, unset=-1, unset_text="off"),
    )
    stop: tuple[str, ...] = _parameter(
        tuple[str, ...], (), "Stop sequences", "The reply stops before any of these strings.",
        in_openai=True,
    )
    stop_token_ids: tuple[int, ...] = _parameter(
        tuple[int, ...], (), "Stop token ids", "The reply stops at any of these tokens."
    )
    min_tokens: int = _parameter(
        int, 0, "Min tokens", "Minimum reply length in tokens.", minimum=0, maximum=MAX_INTEGER
    )
    ignore_eos: bool = _parameter(
        bool, False, "Ignore EOS", "Continue after the end-of-sequence token."
    )
    include_stop_str_in_output: bool = _parameter(
        bool, False, "Include stop sequence", "Keep the stop sequence in the reply."
    )
    logit_bias: Mapping[int, float] = _parameter(
        Mapping[int, float], {}, "Logit bias", "Values to add to the logits of given tokens.",
        in_openai=True,
    )

    def __post_init__(self) -> None:
        # A bare string is a sequence of its characters: the commonest mistake with `stop`.
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for parameter in PARAMETERS.values():
            parameter.check(getattr(self, parameter.name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            PARAMETERS["min_tokens"].refuse(
                self.min_tokens, f"Set min_tokens to max_tokens ({self.max_tokens}) or less."
            )
        if not all(self.stop):
            PARAMETERS["stop"].refuse(self.stop, "Use non-empty strings.")
        for token_id in self.stop_token_ids:
            if not 0 <= token_id <= MAX_INTEGER:
                PARAMETERS["stop_token_ids"].refuse(token_id, f"Use 0 to {MAX_INTEGER:,}.")
        for token_id, bias in self.logit_bias.items():
            if not 0 <= token_id <= MAX_INTEGER or not abs(bias) <= MAX_BIAS:
                PARAMETERS["logit_bias"].refuse(
                    {token_id: bias},
                    f"Use token ids of 0 to {MAX_INTEGER:,}, and values of {-MAX_BIAS:g} to "
                    f"{MAX_BIAS:g}.",
                )


PARAMETERS: dict[str, Parameter] = {
    field.name: Parameter(name=field.name, **field.metadata)
    for field in dataclasses.fields(SamplingParams)
}
"""Every sampling parameter by name, in the order of the chat."""
