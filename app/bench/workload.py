"""Workloads: number and lengths of requests, and their shared prefixes.

Presets are JSON files in resources/workloads. Prompts are random token ids: speed depends on their
number, not on their content.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from app.paths import resources_dir
from engine.errors import ConfigError
from engine.evaluate.task import PromptLine, read_prompts
from engine.json_file import read_json

LARGEST_TOKENIZER = 2**29


class BenchRequest(NamedTuple):
    """`output_len`: tokens until the reply is ended; `max_tokens`: the request's limit.

    If they differ, the request ends before its limit, as if the model had ended it. `prompt`: a
    text or messages of a prompt file, in place of token ids.
    """

    prompt_token_ids: tuple[int, ...]
    output_len: int
    max_tokens: int
    prompt: str | tuple[Mapping[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """A distribution of lengths in tokens: log-normal with a median, or uniform without one."""

    low: int
    high: int
    median: float | None = None
    sigma: float = 0.0

    @classmethod
    def parse(cls, value: int | Mapping[str, float]) -> Length:
        """From a preset: a number, {min, max}, or {median, sigma, min, max}."""
        if isinstance(value, int):
            return cls(value, value)
        return cls(
            int(value["min"]), int(value["max"]), value.get("median"), value.get("sigma", 0.0)
        )

    def draw(self, rng: random.Random) -> int:
        if self.median is None:
            return rng.randint(self.low, self.high)
        value = round(self.median * rng.lognormvariate(0.0, self.sigma))
        return min(max(value, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True, slots=True)
class Workload:
    """`variants`: name -> tokens of the prefix that all prompts share. `prompts`: those of a file,
    repeated in order; their `input` length is not known before a tokenizer reads them. is_raw: a
    chat model gets them without its chat template."""

    name: str
    title: str
    num_requests: int
    input: Length
    output: Length
    concurrency: int | None = None  # requests in flight; None: all of them
    max_tokens: int | None = None  # allowed per reply; None: exactly its length
    variants: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"unique": 0})
    description: str = ""
    prompts: tuple[PromptLine, ...] = ()
    is_raw: bool = False

    def for_model(self, has_chat_template: bool) -> Workload:
        """With the texts of a prompt file as user messages; as they are if `is_raw`, or for a model
        without a chat template."""
        is_chat = has_chat_template and not self.is_raw
        lines = tuple(line.for_model(is_chat) for line in self.prompts)
        return dataclasses.replace(self, prompts=lines)

    @property
    def prompts_text(self) -> str:
        """ "10 to 20 tokens"; "12 texts"."""
        return f"{len(self.prompts):,} texts" if self.prompts else f"{self.input} tokens"

    @property
    def longest_request(self) -> int:
        """Maximum tokens of one request, prompt and reply."""
        return self.input.high + max(self.output.high, self.max_tokens or 0)

    def requests(
        self, variant: str, vocabulary: list[int], seed: int, salt: object = 0
    ) -> list[BenchRequest]:
        """The workload's requests. Lengths depend on `seed`, the token ids on `salt` as well: runs
        that differ only in salt do equal work and share no prefix."""
        return list(islice(self.stream(variant, vocabulary, seed, salt), self.num_requests))

    def stream(
        self, variant: str, vocabulary: list[int], seed: int, salt: object = 0
    ) -> Iterator[BenchRequest]:
        """Infinite requests, for a load that runs until it is stopped; the shared prefix stays the
        same."""
        for line in cycle(self.prompts):
            yield BenchRequest((), line.max_tokens, line.max_tokens, line.prompt)
        lengths = random.Random(f"lengths-{self.name}-{seed}")
        tokens = random.Random(f"tokens-{self.name}-{variant}-{seed}-{salt}")
        prefix = tokens.choices(vocabulary, k=self.variants[variant])
        while True:
            num_prompt, num_output = self.input.draw(lengths), self.output.draw(lengths)
            own = tokens.choices(vocabulary, k=max(1, num_prompt - len(prefix)))
            yield BenchRequest((*prefix, *own), num_output, self.max_tokens or num_output)


def workloads_dir() -> Path:
    return resources_dir() / "workloads"


def preset_names() -> list[str]:
    return sorted(file.stem for file in workloads_dir().glob("*.json"))


def preset(name: str) -> Workload:
    """The preset `name`. Raises ConfigError with the known names for another."""
    file = workloads_dir() / f"{name}.json"
    if name not in preset_names():
        raise ConfigError(
            f"Unknown workload {name!r}.", f"Choose one of {', '.join(preset_names())}."
        )
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    values |= {key: Length.parse(values[key]) for key in ("input", "output")}
    values["variants"] = {key: v["shared_prefix"] for key, v in values["variants"].items()}
    return Workload(name=name, **values)


def fixed(input_len: int, output_len: int, num_requests: int) -> Workload:
    """A workload with fixed lengths."""
    return Workload(
        name="fixed-lengths",
        title="Fixed lengths",
        num_requests=num_requests,
        input=Length(input_len, input_len),
        output=Length(output_len, output_len),
    )


def of_prompts(
    file: Path,
    *,
    is_raw: bool = False,
    num_requests: int | None = None,
    output_len: int | None = None,
) -> Workload:
    """The prompts of a file as a workload. output_len: of every reply, in place of the file's.
    Raises TextError."""
    found = read_prompts(file)
    lines = [line._replace(max_tokens=output_len or line.max_tokens) for line in found]
    told = "Prompts from a file, repeated in order. Repeated ones hit the prefix cache."
    work = of_lines(file.name, lines, told)
    return dataclasses.replace(work, num_requests=num_requests or len(lines), is_raw=is_raw)


def of_lines(title: str, lines: Sequence[PromptLine], description: str) -> Workload:
    """A workload of at least one prompt."""
    outputs = [line.max_tokens for line in lines]
    return Workload(
        name=title,
        title=title,
        num_requests=len(lines),
        input=Length(1, 1),
        output=Length(min(outputs), max(outputs)),
        description=description,
        prompts=tuple(lines),
    )


def usable_token_ids(vocab_size: int, special: Iterable[int]) -> list[int]:
    """All ids of the vocabulary except special ones."""
    avoid = set(special)
    return [token for token in range(vocab_size) if token not in avoid]


class _Named(msgspec.Struct):
    bos_token_id: int | list[int] | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | list[int] | None = None

    @property
    def ids(self) -> set[int]:
        named = (self.bos_token_id, self.eos_token_id, self.pad_token_id)
        lists = (one if isinstance(one, list) else [one] for one in named)
        return {token for one in lists for token in one if token is not None}


class _Added(msgspec.Struct):
    id: int
    special: bool = False


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Added] | None = None


class _TokenizerSettings(msgspec.Struct):
    added_tokens_decoder: dict[int, Any] | None = None


def special_token_ids(model: Path) -> set[int]:
    """Ids that mean something to the model: begin, end, padding, chat roles. From the files in its
    folder; empty if they name none. Raises CheckpointError for a damaged one."""
    if model.is_file():
        return _read(model, _Named).ids
    found = _read(model / "config.json", _Named).ids
    found |= _read(model / "generation_config.json", _Named).ids
    tokenizer = _read(model / "tokenizer.json", _Tokenizer)
    found |= {token.id for token in tokenizer.added_tokens or () if token.special}
    settings = _read(model / "tokenizer_config.json", _TokenizerSettings)
    return found | set(settings.added_tokens_decoder or {})


S = TypeVar("S", _Named, _Tokenizer, _TokenizerSettings)


def _read(file: Path, kind: type[S]) -> S:
    return read_json(file, kind, limit=LARGEST_TOKENIZER) if file.exists() else kind()


WORDS = (
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are",
    "as", "with", "his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by",
    "but", "not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an",
    "each", "which", "she", "do", "how", "their", "if", "will", "up", "other", "about", "out",
    "many", "then", "them", "these", "so", "some", "her", "would", "make", "like", "him", "into",
    "time", "has", "look", "two", "more", "write", "go", "see", "number", "no", "way", "could",
    "people", "my", "than", "first", "water", "been", "call", "who", "its", "now", "find", "long",
    "down", "day", "did", "get", "come", "made", "may", "part",
)  # fmt: skip

TEXT = " ".join(WORDS)


def text_of(token_ids: tuple[int, ...]) -> str:
    """A text with one word per id, equal for equal ids: shared prefixes stay shared."""
    return " ".join(WORDS[token % len(WORDS)] for token in token_ids)


def stand_in_ids() -> list[int]:
    """A vocabulary for workloads whose prompts become text."""
    ids = list(range(len(WORDS) * 64))
    random.Random("words").shuffle(ids)
    return ids
