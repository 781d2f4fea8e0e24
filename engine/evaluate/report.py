"""The results of an evaluation, as plain frozen data without torch, and their JSON form. The
command line prints them, the window shows them.

Log probabilities are natural, KL divergences in nats per token, shares from 0 to 1, sizes in bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from engine.errors import InferdeckError

VERSION = 1
"""Of the written form. A report of a newer version is refused, never guessed at."""

Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]

FEWEST_FOR_P99 = 100
"""A 99th (or 1st) percentile of fewer samples is one sample's accident: it is None."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of a single request: `prefill` over a prompt of `prefill_tokens`, `decode`
    over `decode_tokens` of the reply. The median of `rounds` runs after one warm-up run.
    `prefill_samples`, `decode_samples`: of each run; empty in reports of older versions."""

    prefill: Finite
    decode: Finite
    prefill_tokens: int
    decode_tokens: int
    rounds: int
    prefill_samples: tuple[Finite, ...] = ()
    decode_samples: tuple[Finite, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One of the two models, as it was loaded. `config`: its EngineConfig as a dictionary, with
    dtype, max_model_len and num_threads resolved. `weights_bytes` is measured. `quantization`: the
    weight format of linear layers, as a title ("": unquantized)."""

    name: str
    path: str
    architecture: str
    dtype: str
    num_parameters: int
    weights_bytes: int
    kv_bytes_per_token: Finite
    config: Mapping[str, Any]
    notices: tuple[str, ...] = ()
    speed: Speed | None = None
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """The text and its windows. Every token is scored once, except the first where the tokenizer
    adds no BOS, and tokens excluded from scoring, such as questions. Windows of `context_length`
    tokens start every `stride` tokens. `num_bytes`: UTF-8 bytes of the scored tokens. `sha256`: of
    the whole text."""

    name: str
    sha256: str
    num_tokens: int
    num_scored: int
    num_bytes: int
    num_windows: int
    context_length: int
    stride: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A model's loss on the text: mean of -log p of the true token over the scored tokens.
    Perplexity is its exponential; bits per byte do not depend on the tokenizer."""

    mean_nll: Finite
    perplexity: Finite
    bits_per_byte: Finite


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum over `num_samples` tokens."""

    mean: Finite
    p50: Finite
    p90: Finite
    p99: Finite | None
    max: Finite
    num_samples: int


@dataclass(frozen=True, slots=True)
class Similarity:
    """Cosine similarity of the two models' final hidden states (the input of the output head)."""

    mean: Finite
    p1: Finite | None
    min: Finite
    num_samples: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the candidate is from the reference. kl: KL(reference || candidate) per token.
    top1_agreement: share of tokens with the same most probable token. similarity: None where the
    hidden sizes differ. mean_abs_logprob_change: |difference of log p| of the true token.
    kl_percentiles: percentiles 0, 1, ... 100 of the KL, for a curve (few tokens make its ends
    unreliable)."""

    kl: Spread
    top1_agreement: Finite
    similarity: Similarity | None
    mean_abs_logprob_change: Finite
    kl_percentiles: tuple[Finite, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of a model's most probable tokens at a position."""

    token_id: int
    token: str
    logprob: Finite


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A token of the text at which the models differ most. `position`: index in the text's tokens,
    from 0. `before` and `after`: the text around it."""

    position: int
    token_id: int
    token: str
    before: str
    after: str
    kl: Finite
    reference_logprob: Finite
    candidate_logprob: Finite
    reference_top: tuple[Alternative, ...]
    candidate_top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two replies, after `token_index` equal tokens. The following texts
    are short excerpts, empty where a reply ended."""

    token_index: int
    text_before: str
    reference: str
    candidate: str


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Both greedy replies to the prompt in line `line` of its file; `difference` is None where they
    are identical."""

    line: int
    prompt: str
    reference: str
    candidate: str
    num_reference_tokens: int
    num_candidate_tokens: int
    difference: Difference | None = None

    @property
    def is_identical(self) -> bool:
        return self.difference is None


@dataclass(frozen=True, slots=True)
class Answers:
    """All replies and their totals: `identical_share` of the prompts, and the mean over all prompts
    of the share of the reference's tokens before the first difference."""

    source: str
    pairs: tuple[AnswerPair, ...]
    identical_share: Finite
    mean_equal_share: Finite

    @property
    def num_identical(self) -> int:
        return sum(pair.is_identical for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The report of one evaluation: `candidate` against `reference`, if there is one. Parts that
    were not requested are None. `created`: UTC, ISO 8601. `machine`: of engine.hardware.machine."""

    created: str
    duration_s: Finite
    candidate: ModelFacts
    reference: ModelFacts | None = None
    text: TextFacts | None = None
    candidate_loss: Loss | None = None
    reference_loss: Loss | None = None
    divergence: Divergence | None = None
    worst: tuple[WorstToken, ...] = ()
    answers: Answers | None = None
    notices: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def perplexity_change(self) -> float | None:
        """Of the candidate over the reference: 0.01 is one percent more."""
        if self.candidate_loss is None or self.reference_loss is None:
            return None
        return self.candidate_loss.perplexity / self.reference_loss.perplexity - 1.0

    @property
    def weights_ratio(self) -> float | None:
        """Bytes of the candidate's weights over the reference's."""
        if self.reference is None or not self.reference.weights_bytes:
            return None
        return self.candidate.weights_bytes / self.reference.weights_bytes


KIND = "inferdeck evaluation"


class ReportError(InferdeckError):
    """A report that cannot be read, written, or compared."""


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """The report as JSON types alone. One of an older version is written as it was: without
    samples of its speeds."""
    values = json.loads(json.dumps(msgspec.to_builtins(report)))
    for side in ("candidate", "reference"):
        speed = (values[side] or {}).get("speed") or {}
        for name in ("prefill_samples", "decode_samples"):
            if not speed.get(name, True):
                del speed[name]
    return {"kind": KIND, "version": VERSION, **values}


def from_json(stored: Any) -> EvaluationReport:
    """The report of `to_json`. Raises ReportError where it is another kind of object, of a newer
    version, or damaged; keys that are not known are left out."""
    if not isinstance(stored, Mapping) or stored.get("kind") != KIND:
        raise ReportError(
            "Not an evaluation report.", "Choose a file written by `inferdeck evaluate`."
        )
    version = stored.get("version")
    if version != VERSION:
        raise ReportError(
            f"Unsupported report version {version}; this program supports version {VERSION}.",
            "Open it with the Inferdeck version that wrote it.",
        )
    try:
        return msgspec.convert(stored, EvaluationReport)
    except msgspec.ValidationError as error:
        raise ReportError(
            f"The report is corrupt: {error}.", "Run the evaluation again, or restore the file."
        ) from error
