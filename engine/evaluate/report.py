"""What an evaluation found. Plain frozen data, no torch: the command line prints it, the window
shows it, `engine.evaluate.report` writes and reads it.

Log probabilities are natural, KL divergences in nats per token, shares from 0 to 1, sizes in bytes.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import InferdeckError

VERSION = 1
"""Of the written form. A report of a newer version is refused, never guessed at."""

FEWEST_FOR_P99 = 100
"""A 99th (or 1st) percentile of fewer samples is one sample's accident: it is None."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One request alone, tokens per second: `prefill` over a prompt of `prefill_tokens`, `decode`
    over `decode_tokens` of the reply. The median of `rounds` runs after one that is not counted."""

    prefill: float
    decode: float
    prefill_tokens: int
    decode_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One of the two models, as it was loaded. `config` is its EngineConfig as a dictionary, with
    dtype, max_model_len and num_threads resolved; `weights_bytes` is measured; `quantization`: how
    the weights of linear layers are held, in words ("" for plain numbers)."""

    name: str
    path: str
    architecture: str
    dtype: str
    num_parameters: int
    weights_bytes: int
    kv_bytes_per_token: float
    config: Mapping[str, Any]
    notices: tuple[str, ...] = ()
    speed: Speed | None = None
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """The text and how it was cut. Every token is scored once (but for the first, where the
    tokenizer puts none before it, and for what was not to be scored, such as questions): in windows
    of `context_length` tokens that begin every `stride` tokens. `num_bytes`: UTF-8 bytes of the
    scored tokens. `sha256`: of the whole text."""

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
    """How well one model predicts the text: -log p of the true token, mean over the scored tokens;
    perplexity is its exponential, bits per byte do not depend on the tokenizer."""

    mean_nll: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over `num_samples` tokens."""

    mean: float
    p50: float
    p90: float
    p99: float | None
    max: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class Similarity:
    """Cosine of the two models' final hidden states (what goes into the output head)."""

    mean: float
    p1: float | None
    min: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the candidate is from the reference. kl: KL(reference || candidate) per token;
    top1_agreement: share of tokens where both find the same token most probable; similarity: None
    where the hidden states differ in width; mean_abs_logprob_change: |difference of log p| of the
    true token; kl_percentiles: the percentiles 0, 1, ... 100 of the KL, to be drawn as a curve (in
    which those near the ends are worth as much as there are tokens)."""

    kl: Spread
    top1_agreement: float
    similarity: Similarity | None
    mean_abs_logprob_change: float
    kl_percentiles: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of a model's most probable tokens at a place."""

    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A token of the text at which the models differ most. `position` counts the text's tokens
    from 0; `before` and `after` are the text around it."""

    position: int
    token_id: int
    token: str
    before: str
    after: str
    kl: float
    reference_logprob: float
    candidate_logprob: float
    reference_top: tuple[Alternative, ...]
    candidate_top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part: after `token_index` equal tokens. The texts that follow are short
    excerpts, empty where an answer ended."""

    token_index: int
    text_before: str
    reference: str
    candidate: str


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Both greedy answers to the prompt in line `line` of its file; `difference` is None where
    they are identical."""

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
    """All answers, and their sum: `identical_share` of the prompts, and the mean over all prompts
    of the share of the reference's tokens before the first difference."""

    source: str
    pairs: tuple[AnswerPair, ...]
    identical_share: float
    mean_equal_share: float

    @property
    def num_identical(self) -> int:
        return sum(pair.is_identical for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """`candidate` is what was evaluated, against `reference` where there is one. The parts that
    were not asked for are None. `created`: UTC, ISO 8601. `machine`: of engine.hardware.machine."""

    created: str
    duration_s: float
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
    """The report as JSON types alone."""
    return {"kind": KIND, "version": VERSION, **_plain(report)}


def from_json(stored: Any) -> EvaluationReport:
    """The report of `to_json`. Raises ReportError where it is another kind of object, of a newer
    version, or damaged; keys that are not known are left out."""
    if not isinstance(stored, Mapping) or stored.get("kind") != KIND:
        raise ReportError(
            "This is not an evaluation report.", "Choose a file that `inferdeck evaluate` wrote."
        )
    version = stored.get("version")
    if version != VERSION:
        raise ReportError(
            f"The report has version {version}; this program reads version {VERSION}.",
            "Open it with the version of Inferdeck that wrote it.",
        )
    try:
        report: EvaluationReport = _build(EvaluationReport, stored, "the report")
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"The report is damaged: {error}.", "Measure again, or restore the file."
        ) from error
    return report


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` of JSON as an object of type `kind`; the names in a message are keys of the file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = [a for a in arguments if a is not types.NoneType]
        return _build(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{where} is no list")
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None:  # a mapping of plain values
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is no object")
        return dict(value)
    if dataclasses.is_dataclass(kind):
        return _build_object(kind, value, where)
    return _scalar(kind, value, where)


def _build_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is no object")
    hints = typing.get_type_hints(kind)
    found = {}
    for f in dataclasses.fields(kind):
        if f.name in value:
            found[f.name] = _build(hints[f.name], value[f.name], f.name)
        elif f.default is f.default_factory is dataclasses.MISSING:
            raise KeyError(f"{where} has no {f.name}")
    return kind(**found)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise TypeError(f"{where} is {value!r}, which is no {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    return value
