"""The task of an evaluation, its text and prompts, and how it reports progress. No torch.

progress(stage, done, total) is called with every chunk, on the thread that evaluates. A stage is a
text to show, such as "Reference: reading the text"; `unit_of` gives the unit of the count (total 0:
no count). cancelled() is called at least once per chunk.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import SETTINGS, EngineConfig
from engine.errors import CheckpointError, ConfigError, InferdeckError
from engine.json_file import decode_json, read_start

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]

REFERENCE, CANDIDATE = "Reference", "Model"

TEXT, ANSWERS, SPEED = "reading the text", "running prompts", "measuring speed"
_UNITS = {TEXT: "tokens", ANSWERS: "answers", SPEED: "runs"}


class EvaluationCancelled(InferdeckError):  # noqa: N818 - not an error to the user, a way out
    """The user cancelled the evaluation; no results are kept."""


def unit_of(stage: str) -> str:
    """What a stage counts: "tokens", "answers" or "runs"; loading counts "bytes"."""
    return _UNITS.get(stage.partition(": ")[2], "bytes")


def check(cancelled: Cancelled) -> None:
    """Raise EvaluationCancelled where the user wants to stop."""
    if cancelled():
        raise EvaluationCancelled("The evaluation was cancelled.", "Run it again.")


LARGEST = 64 * 2**20
"""Bytes of a text: some 16 million tokens, which no machine would finish in a day."""

DEFAULT_MAX_TOKENS = 128
LARGEST_MAX_TOKENS = 1 << 20

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_EXAMPLE = '{"prompt": "Once upon a time"} or {"messages": [{"role": "user", "content": "Hi"}]}'

PROMPT_LINES = (
    'JSONL: {"prompt": "..."} or {"messages": [...]} per line.\n'
    "CSV: the column “prompt”, else the first column of every row.\n"
    "Text: one prompt per line, or blocks separated by blank lines."
)
"""The format of a file of prompts, for labels and help."""

RAW_PROMPTS = "Send text prompts as they are, without the model's chat template."
"""The switch for it, for labels and help."""


class TextError(InferdeckError):
    """A text or a file of prompts that cannot be used for an evaluation."""


class PromptLine(NamedTuple):
    """A prompt and its line number: text, or chat messages."""

    line: int
    prompt: str | tuple[Mapping[str, str], ...]
    max_tokens: int = DEFAULT_MAX_TOKENS

    def for_model(self, has_chat_template: bool) -> PromptLine:
        """A text as a user message, where the model has a chat template."""
        if not has_chat_template or not isinstance(self.prompt, str):
            return self
        return self._replace(prompt=({"role": "user", "content": self.prompt},))

    @property
    def shown(self) -> str:
        """The prompt as text; of a conversation the last message."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


def read_text(file: Path) -> str:
    """A UTF-8 text file. Raises TextError where it is empty, binary, too large, in another
    encoding, or cannot be read."""
    data = _read(file)
    if data.startswith(_UTF16):
        raise TextError(f"{file} is UTF-16, not UTF-8.", "Save it as UTF-8.")
    zero = data.find(b"\0")
    if zero >= 0:
        raise TextError(
            f"{file} is not a text file: byte {zero:,} of {len(data):,} is zero.",
            "Use a plain UTF-8 text file.",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{file} is not UTF-8: byte {error.start:,} of {len(data):,} is "
            f"0x{data[error.start]:02x}.",
            "Save it as UTF-8.",
        ) from error
    if not text.strip():
        raise TextError(f"{file} is empty.", "Use a text of a few thousand words.")
    return text


def read_prompts(file: Path) -> tuple[PromptLine, ...]:
    """The prompts of a file (see PROMPT_LINES): a .csv, a .txt or else JSONL. Raises TextError with
    file, line and the problem."""
    text = read_text(file)
    match file.suffix.lower():
        case ".csv":
            found = _csv_prompts(file, text)
        case ".txt":
            found = _text_prompts(text)
        case _:
            lines = enumerate(text.split("\n"), 1)
            found = [_prompt_line(file, number, line) for number, line in lines if line.strip()]
    if not found:
        raise TextError(f"{file} has no prompts.", PROMPT_LINES)
    return tuple(found)


def _text_prompts(text: str) -> list[PromptLine]:
    """Blocks where a blank line separates two, else lines."""
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    if all(lines):
        return [PromptLine(number, line.strip()) for number, line in enumerate(lines, 1)]
    found: list[PromptLine] = []
    starts_anew = True
    for number, line in enumerate(lines, 1):
        if not line:
            starts_anew = True
        elif starts_anew:
            found.append(PromptLine(number, line))
            starts_anew = False
        else:
            found[-1] = found[-1]._replace(prompt=f"{found[-1].prompt}\n{line}")
    return found


def _csv_prompts(file: Path, text: str) -> list[PromptLine]:
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    found: list[PromptLine] = []
    column, number = 0, 1
    try:
        for row in rows:
            names = [cell.strip().lower() for cell in row] if number == 1 else []
            if "prompt" in names:
                column = names.index("prompt")
            elif column < len(row) and (prompt := row[column].strip()):
                found.append(PromptLine(number, prompt))
            number = rows.line_num + 1
    except csv.Error as error:
        where = f"{file}, line {rows.line_num}"
        raise TextError(f"{where}: {error}.", "Use a valid CSV file.") from None
    return found


def _read(file: Path) -> bytes:
    try:
        data = read_start(file, LARGEST)
    except OSError as error:
        raise TextError(
            f"{file} cannot be read: {error.strerror or error}.", "Check the path."
        ) from error
    if len(data) > LARGEST:
        raise TextError(
            f"{file} has more than {LARGEST:,} bytes.",
            "Use an excerpt: a few hundred kilobytes give stable results.",
        )
    return data


def _prompt_line(file: Path, number: int, line: str) -> PromptLine:
    def wrong(what: str, remedy: str = f"Expected format: {_EXAMPLE}.") -> TextError:
        return TextError(f"{file}, line {number}: {what}.", remedy)

    try:
        entry = decode_json(line.encode(), dict, f"{file}, line {number},")
    except CheckpointError as error:
        cause = error.cause.replace(" at line 1, column", " at column")  # of this line
        raise TextError(cause, f"Expected format: {_EXAMPLE}.") from error
    if ("prompt" in entry) == ("messages" in entry):
        both = 'has both "prompt" and "messages"' if "prompt" in entry else ""
        raise wrong(both or 'has neither "prompt" nor "messages"')
    prompt: Any
    if "prompt" in entry:
        prompt, wanted = entry["prompt"], '"prompt" must be a non-empty string'
        prompt = prompt if isinstance(prompt, str) else None
    else:
        wanted = '"messages" must be a non-empty list of objects with "role" and "content"'
        prompt = _messages_of(entry["messages"])
    if not prompt:
        raise wrong(wanted)
    max_tokens = entry.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(max_tokens) is not int or not 1 <= max_tokens <= LARGEST_MAX_TOKENS:
        raise wrong(f'invalid "max_tokens": {max_tokens!r}', "Use a positive integer.")
    return PromptLine(number, prompt, max_tokens)


def _messages_of(messages: Any) -> tuple[Mapping[str, str], ...] | None:
    keys = ("role", "content")
    are_texts = isinstance(messages, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in keys)
        for message in messages
    )
    if not are_texts or not messages:
        return None
    return tuple({key: message[key] for key in keys} for message in messages)


DEFAULT_WORST = 20
MOST_WORST = 1000

PRECISION_SETTINGS = tuple(
    name for name in SETTINGS if "quanti" in name or name == "kv_cache_dtype"
)
"""Settings that make weights or KV cache smaller: a reference has them at their defaults."""

WITHOUT_MEANING = (
    "speculative_method", "speculative_model", "kv_allocation", "batching",
)  # fmt: skip
"""Settings that change no token; an evaluation runs with their defaults."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """Evaluate `candidate` (against `reference`) on `text`, on the replies to `prompts`, and with
    `measure_speed` its speed.

    scored: parts of the text to score, as ascending (start, end) in characters; empty: all of it.
    In a conversation score the replies: models are not trained to predict what users ask.
    context_length, stride: see `engine.evaluate.windows`. max_tokens: maximum length of the text. A
    reference of dtype "auto" runs in the candidate's dtype. A window is computed in chunks of each
    configuration's max_num_batched_tokens. raw_prompts: chat models continue text prompts,
    without their chat template.
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
    raw_prompts: bool = False
    num_worst: int = DEFAULT_WORST
    measure_speed: bool = False

    def __post_init__(self) -> None:
        if not (self.text or self.prompts or self.measure_speed):
            raise ConfigError(
                "Nothing to evaluate.", "Add evaluation text or prompts, or enable the speed test."
            )
        if self.prompts and self.reference is None:
            raise ConfigError(
                "Comparing replies requires a reference model, and none is set.",
                "Set a reference model, or another precision of the same model.",
            )
        edges = [edge for span in self.scored for edge in span]
        if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] <= len(self.text)):
            raise ConfigError(
                f"The {len(self.scored):,} scored spans are out of order, or exceed the text "
                f"({len(self.text):,} characters).",
                "Use ascending (start, end) pairs within the text.",
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"Invalid max_tokens: {self.max_tokens}.", "Use at least 1.")
        if not 0 <= self.num_worst <= MOST_WORST:
            raise ConfigError(f"Invalid num_worst: {self.num_worst}.", f"Use 0 to {MOST_WORST:,}.")


def plain(config: EngineConfig, **changes: Any) -> EngineConfig:
    """`config` without quantization and with a plain KV cache: what a candidate is compared with
    unless another reference is named."""
    defaults = {name: SETTINGS[name].default for name in PRECISION_SETTINGS}
    return config.replace(**{**defaults, **changes})


CHUNK = 512
"""Tokens that are scored at once, unless the user sets it: a measured number would differ from run
to run, and with it the last digits of a report."""


def measurable(config: EngineConfig) -> EngineConfig:
    """`config` without what changes no token."""
    defaults = {name: SETTINGS[name].default for name in WITHOUT_MEANING}
    budget = config.max_num_batched_tokens or CHUNK
    return config.replace(
        **defaults, enable_chunked_prefill=True, max_num_batched_tokens=budget
    )
