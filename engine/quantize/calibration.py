"""Reads calibration text and splits it into token sequences.

The whole text is one row of tokens, cut into sequences of equal length (as in AutoAWQ and
GPTQModel). From a long text, sequences are taken at even distances from start to end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.json_file import read_start
from engine.text.tokenizer import Tokenizer

MIN_TOKENS = 256
_MAX_FILE = 128 * 2**20
_REMEDY = 'Choose a UTF-8 text file, or JSONL with "text", "prompt" or "messages" on each line.'

Text = str | Sequence[Mapping[str, str]]
"""A plain text, or the messages of a conversation."""


def read_texts(path: str | Path) -> list[Text]:
    """The texts of a .txt file (one), or of a .jsonl or .json file (one a line, or a list).

    An object gives its "text", its "prompt" (followed by its "completion" or "response", where it
    has one) or its "messages". Raises ConfigError for a file that is missing, empty, binary or
    not what it says, with the line.
    """
    file = Path(path).expanduser()
    content = _content(file)
    if file.suffix.lower() == ".json":
        values = _parsed(content, str(file))
        values = values if isinstance(values, list) else [values]
        return [_of_object(v, f"Entry {i} in {file}") for i, v in enumerate(values, start=1)]
    if file.suffix.lower() not in (".jsonl", ".ndjson"):
        return [content]
    texts: list[Text] = []
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            where = f"Line {number} in {file}"
            texts.append(_of_object(_parsed(line, where), where))
    return texts


def make_sequences(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    *,
    length: int,
    count: int,
    seed: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[list[int]]:
    """At most `count` sequences of `length` tokens each; a text of less than one sequence gives one
    that is shorter. Where the tokenizer begins a text with a token of its own, every sequence does.

    Raises ConfigError if there are fewer than MIN_TOKENS tokens in all.
    """
    start = tokenizer.encode("")
    tokens: list[int] = []
    for text in texts:
        if cancelled():
            return []
        found = _encode(text, tokenizer)
        tokens += found[len(start) :] if start and found[: len(start)] == start else found
    if len(tokens) < MIN_TOKENS:
        raise ConfigError(
            f"The calibration text has {len(tokens):,} tokens; at least {MIN_TOKENS} are required, "
            f"{length * count:,} recommended.",
            "Choose a longer text: a few pages similar to your real prompts.",
        )
    body = min(length - len(start), len(tokens))
    places = len(tokens) // body
    generator = random.Random(seed)
    chosen = list(range(places)) if places <= count else _spread(places, count, generator)
    generator.shuffle(chosen)  # whoever takes the first few has them from all over the text
    return [start + tokens[place * body : (place + 1) * body] for place in chosen]


def _spread(places: int, count: int, generator: random.Random) -> list[int]:
    """One place of each of `count` equal stretches."""
    borders = [index * places // count for index in range(count + 1)]
    return [generator.randrange(a, b) for a, b in pairwise(borders)]


def _encode(text: Text, tokenizer: Tokenizer) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    *before, last = text
    if last.get("role") != "assistant" or not before:
        return tokenizer.apply_chat(text)
    # the template ends where the assistant starts; its reply follows
    prompt = tokenizer.apply_chat(before)
    answer = tokenizer.encode(last["content"])
    start = tokenizer.encode("")
    return prompt + (answer[len(start) :] if answer[: len(start)] == start else answer)


def _content(file: Path) -> str:
    try:
        raw = read_start(file, _MAX_FILE)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.", _REMEDY) from error
    if len(raw) > _MAX_FILE:
        raise ConfigError(
            f"{file} has more than {_MAX_FILE:,} bytes, the limit for calibration text.",
            "Shorten the file: a few hundred thousand words are enough.",
        )
    if not raw.strip():
        raise ConfigError(f"{file} is empty.", _REMEDY)
    if b"\0" in raw:
        at = raw.index(b"\0")
        raise ConfigError(f"{file} is not a text file: NUL byte at offset {at:,}.", _REMEDY)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8: byte {error.start:,} is 0x{raw[error.start]:02x}.", _REMEDY
        ) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}.", _REMEDY) from error
    except RecursionError:
        raise ConfigError(f"{where} has too many nested levels.", _REMEDY) from None


def _of_object(value: Any, where: str) -> Text:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            return str(value["text"])
        if isinstance(value.get("messages"), list):
            return _messages(value["messages"], where)
        if isinstance(value.get("prompt"), str):
            answer = value.get("completion") or value.get("response") or ""
            return str(value["prompt"]) + (answer if isinstance(answer, str) else "")
    raise ConfigError(f'{where} has no "text", "prompt" or "messages".', _REMEDY)


def _messages(values: list[Any], where: str) -> Text:
    for message in values:
        if not (
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise ConfigError(f'{where} has a message without "role" or "content" text.', _REMEDY)
    if not values:
        raise ConfigError(f"{where} has no messages.", _REMEDY)
    return [{"role": m["role"], "content": m["content"]} for m in values]
