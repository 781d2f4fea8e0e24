"""tokenizer.json, checked in a process that may end at any moment (see `worker`).

What is built of it lives in the program afterwards, where nothing limits its time and memory. So no
text may grow much by it, on its way to tokens or back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from engine.errors import CheckpointError
from engine.json_file import decode_json, read_json, shown
from engine.text.encoder import without_surrogates
from engine.text.work import MAX_BYTES, REMEDY, Check

FILE = "tokenizer.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_MAX_PART = 2**20
"""Bytes of a section; the largest in use, with a table of SentencePiece's, have 330 kB."""
_MAX_TOKENS = 2**19
"""The largest vocabularies in use have 262,144."""
_MAX_GROWTH = 1000
"""Tokens or characters of one."""
_REPEATS = re.compile(r"[*+?{|]|\\[0-9gk]")


class _Part(Struct):
    type: str


class _Model(Struct):
    vocab: dict[str, Any] | list[Any]


class _Outline(Struct):
    """Sections, of which `tokenizers` says only that they fit none of its own."""

    model: _Model
    normalizer: Raw = Raw(b"null")
    pre_tokenizer: Raw = Raw(b"null")
    post_processor: Raw = Raw(b"null")
    decoder: Raw = Raw(b"null")


def check_folder(check: Check) -> None:
    """Do what reading a tokenizer does to its files: build it, and normalize every text that could
    be added to it as a token. Raises CheckpointError, and whatever `tokenizers` raises."""
    from tokenizers import Tokenizer

    folder = Path(check.folder)
    file = folder / FILE
    _check_outline(file)
    tokenizer: Any = Tokenizer.from_file(str(file))
    _check_truncation(tokenizer, file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.normalizer is not None:
        _check_growth("normalizer", len(tokenizer.normalizer.normalize_str("a")), file)
    _check_growth("tokenizer", len(tokenizer.encode("a").ids), file)
    if tokenizer.normalizer is not None:
        for name in _BESIDE:
            if (folder / name).is_file():
                for text in _strings(json.loads((folder / name).read_bytes())):
                    tokenizer.normalizer.normalize_str(text)


def _check_outline(file: Path) -> None:
    outline = read_json(file, _Outline, limit=MAX_BYTES)
    if (count := len(outline.model.vocab)) > _MAX_TOKENS:
        raise CheckpointError(
            f"{file} has {count:,} tokens in model.vocab; the limit is {_MAX_TOKENS:,}.", REMEDY
        )
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = bytes(getattr(outline, name))
        if len(part) > _MAX_PART:
            raise CheckpointError(
                f"{file} has a {name} of {len(part):,} bytes; the limit is {_MAX_PART:,}.", REMEDY
            )
        if part != b"null":
            decode_json(part, _Part, f"{name} in {file}")
    _check_decoder(json.loads(bytes(outline.decoder)), file)


def _check_truncation(tokenizer: Any, file: Path) -> None:
    """transformers sets it once more."""
    settings = tokenizer.truncation
    try:
        if settings is not None:
            tokenizer.enable_truncation(**settings)
    except ValueError:
        raise CheckpointError(
            f"{file} has truncation.stride = {settings['stride']:,}; it must be below max_length "
            f"({settings['max_length']:,}) minus the special tokens.",
            "Set truncation to null in this file, or download it again.",
        ) from None


def _check_growth(name: str, count: int, file: Path) -> None:
    if count > _MAX_GROWTH:
        raise CheckpointError(
            f"The {name} in {file} expands one letter to {count:,} pieces; the limit is "
            f"{_MAX_GROWTH:,}.", REMEDY,
        )  # fmt: skip


def _check_decoder(decoder: Any, file: Path) -> None:
    """Texts are decoded in the program, a few tokens at a time. Only Replace makes them longer, and
    only a pattern of its own takes time."""
    growth = 1.0
    for replace in _replaces(decoder):
        pattern, content = replace.get("pattern"), replace.get("content")
        if not isinstance(pattern, dict) or not isinstance(content, str):
            continue  # refused by `tokenizers`
        regex, text = pattern.get("Regex"), pattern.get("String")
        if isinstance(regex, str) and len(_REPEATS.findall(regex)) > 1:
            raise CheckpointError(
                f"{file} has the pattern {shown(regex)} in its decoder; matching may never end.",
                REMEDY,
            )
        length = len(text) if isinstance(text, str) else 0
        growth *= max(1.0, len(content) / length if length else 1.0 + len(content))
    if growth > _MAX_GROWTH:
        raise CheckpointError(
            f"The decoder in {file} makes texts {growth:,.0f} times as long; the limit is "
            f"{_MAX_GROWTH:,}.", REMEDY,
        )  # fmt: skip


def _replaces(decoder: Any) -> Iterator[dict[str, Any]]:
    """The Replace steps of a decoder, with those of sequences."""
    waiting = [decoder]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        if part.get("type") == "Replace":
            yield part
        steps = part.get("decoders")
        waiting += steps if isinstance(steps, list) else ()


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON document, and every key."""
    if isinstance(value, str):
        yield without_surrogates(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield without_surrogates(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
