"""Texts that are too long, found without encoding them.

Every byte of a text is in one token. With w(b) = 1 / length of the longest token that has byte b,
the weights of a token's bytes add up to at most 1, so a text has at least as many tokens as its
bytes weigh. (The weights are a feasible dual of the covering by tokens.) Runs of blanks weigh
little, since tokens of many blanks are common; letters weigh much.

This holds where each byte of the text reaches the model of the tokenizer: see `_keeps_all`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from engine.errors import ContextLengthError

CHARACTERS_PER_TOKEN = 256
"""A prompt with more, per token of the context, is refused unread."""
_REMEDY = "Shorten the prompt, or increase max_model_len if the model allows it."
_BLANKS = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f" + bytes(range(128, 256))
"""Bytes of white space, and of all characters beyond ASCII."""


def too_long(num_tokens: int, context: int) -> ContextLengthError:
    return ContextLengthError(
        f"Prompt length is {num_tokens:,} tokens; prompt + output is limited to {context:,}.",
        _REMEDY,
    )


def check_characters(num_characters: int, context: int | None) -> None:
    """Raise ContextLengthError where a text is too long to be looked at."""
    if context is None or num_characters <= context * CHARACTERS_PER_TOKEN:
        return
    raise ContextLengthError(
        f"The prompt has {num_characters:,} characters; a model with {context:,} tokens of context "
        f"accepts up to {context * CHARACTERS_PER_TOKEN:,}.",
        _REMEDY,
    )


class LengthBound:
    """How few tokens a text can have. `tokenizer`: as in tokenizer.json."""

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        self._weights = _weights(tokenizer) if _keeps_all(tokenizer) else None
        self._composes = "NFC" in set(_types(tokenizer.get("normalizer")))

    def fewest(self, text: str) -> int:
        """At least so many tokens; 0 where the tokenizer may shorten the text."""
        if self._weights is None:
            return 0
        if self._composes and not unicodedata.is_normalized("NFC", text):
            return 0
        data = text.encode()
        # rounded down, with room for the error of the sum
        return int(sum(data.count(b) * self._weights[b] for b in set(data)) - 1e-6)

    def check(self, text: str, context: int) -> None:
        """Raise ContextLengthError where the text cannot fit."""
        if len(text) * 4 < context:
            return
        if self.fewest(text) >= context:  # a bound: as a number it would contradict a count
            raise ContextLengthError(
                f"The prompt has {len(text):,} characters, too many for the {context:,} tokens of "
                "prompt + output.",
                _REMEDY,
            )


def _keeps_all(tokenizer: Mapping[str, Any]) -> bool:
    """Whether no byte of a text is lost or merged before it is divided into tokens, nor taken for
    unknown, of which one token may stand for many."""
    model, vocab = tokenizer["model"], tokenizer["model"].get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict):
        return False
    steps = [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]
    if not all(map(_loses_nothing, steps)):
        return False
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return not kinds & {"Replace", "Metaspace"} and all(c in vocab for c in byte_alphabet())
    return bool(model.get("byte_fallback")) and all(f"<0x{b:02X}>" in vocab for b in range(256))


def _loses_nothing(step: Mapping[str, Any]) -> bool:
    match step["type"]:
        case "NFC" | "Prepend" | "ByteLevel" | "Digits" | "UnicodeScripts":
            return True
        case "Metaspace":
            return step["replacement"] == "▁"
        case "Replace":
            return step["pattern"] == {"String": " "} and step["content"] == "▁"
        case "Split" | "Punctuation":
            return step["behavior"] != "Removed"
    return False


def _weights(tokenizer: Mapping[str, Any]) -> list[float]:
    added = tokenizer.get("added_tokens") or []
    is_byte_level = "ByteLevel" in {
        *_types(tokenizer.get("normalizer")), *_types(tokenizer.get("pre_tokenizer"))
    }  # fmt: skip
    longest = [1] * 256
    for token in tokenizer["model"]["vocab"]:
        _lengthen(longest, bytes_of(token) if is_byte_level else token.encode(), is_byte_level)
    for entry in added:
        _lengthen(longest, entry["content"].encode(), True)
    weights = [1 / length for length in longest]
    if any(entry.get("lstrip") or entry.get("rstrip") for entry in added):
        for blank in _BLANKS:  # such a token takes the white space beside it
            weights[blank] = 0.0
    return weights


def _lengthen(longest: list[int], token: bytes, is_literal: bool) -> None:
    """Note a token's length for each of its bytes; for a blank too, where ▁ stands for one."""
    length, found = len(token), set(token)
    if not is_literal and "▁".encode() in token:
        found.add(32)
    for b in found:
        longest[b] = max(longest[b], length)


def _steps(part: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, with those of sequences."""
    if part is None:
        return
    children = part.get("normalizers") or part.get("pretokenizers")
    if part["type"] == "Sequence":
        for child in children or ():
            yield from _steps(child)
    else:
        yield part


def _types(part: Mapping[str, Any] | None) -> Iterable[str]:
    return (step["type"] for step in _steps(part))


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes in its vocabulary (GPT-2): printable
    Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def bytes_of(token: str) -> bytes:
    """Of a token as a byte-level vocabulary writes it; its UTF-8 where it is not written so."""
    alphabet = byte_alphabet()
    if all(c in alphabet for c in token):
        return bytes(alphabet[c] for c in token)
    return token.encode()
