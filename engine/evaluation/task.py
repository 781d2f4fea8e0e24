"""What is to be measured. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.evaluation.texts import PromptLine

DEFAULT_WORST = 20
MOST_WORST = 1000

PRECISION_SETTINGS = tuple(
    name for name in SETTINGS if "quanti" in name or name == "kv_cache_dtype"
)
"""Settings that make weights or KV cache smaller: a reference has them at their defaults."""

WITHOUT_MEANING = (
    "speculative_method", "speculative_model", "kv_allocation", "batching", "tensor_parallel_size",
    "pipeline_parallel_size",
)  # fmt: skip
"""Settings that change no token; an evaluation runs with their defaults."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """Measure `candidate` (against `reference`) on `text`, on the answers to `prompts`, and with
    `measure_speed` how fast it is.

    scored: parts of the text that count, as (start, end) in characters, in order and apart; none:
    all of it counts. Of a conversation these are the answers: what a user will ask no model was
    trained to predict. context_length, stride: see `engine.evaluation.windows`. max_tokens: no
    more of the text than this. A reference of dtype "auto" runs in the candidate's. A window is
    computed in chunks of each configuration's max_num_batched_tokens.
    """

    candidate: EngineConfig
    reference: EngineConfig | None = None
    text: str = ""
    text_name: str = ""
    scored: tuple[tuple[int, int], ...] = ()
    prompts: tuple[PromptLine, ...] = ()
    prompts_name: str = ""
    context_length: int | None = None
    stride: int | None = None
    max_tokens: int | None = None
    num_worst: int = DEFAULT_WORST
    measure_speed: bool = False

    def __post_init__(self) -> None:
        if not (self.text or self.prompts or self.measure_speed):
            raise ConfigError(
                "There is nothing to measure.", "Give a text, prompts, or ask for the speed."
            )
        if self.prompts and self.reference is None:
            raise ConfigError(
                "Answers are compared with those of a reference, and there is none.",
                "Name a reference, or another precision for the model.",
            )
        edges = [edge for span in self.scored for edge in span]
        if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] <= len(self.text)):
            raise ConfigError(
                f"The {len(self.scored):,} parts of the text that count are not in order, or not "
                f"within its {len(self.text):,} characters.",
                "Give (start, end) pairs from the beginning of the text to its end.",
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}.", "Give at least 1.")
        if not 0 <= self.num_worst <= MOST_WORST:
            raise ConfigError(f"num_worst is {self.num_worst}.", f"Give 0 to {MOST_WORST:,}.")


def plain(config: EngineConfig, **changes: Any) -> EngineConfig:
    """`config` without quantization and with a plain KV cache: what a candidate is compared with
    unless another reference is named."""
    defaults = {name: SETTINGS[name].default for name in PRECISION_SETTINGS}
    return config.replace(**{**defaults, **changes})


def measurable(config: EngineConfig) -> EngineConfig:
    """`config` without what changes no token."""
    defaults = {name: SETTINGS[name].default for name in WITHOUT_MEANING}
    return config.replace(**defaults, enable_chunked_prefill=True)
