"""Texts and chats to token ids, in a process that may end at any moment (see `worker`)."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any, Protocol

from engine.errors import ContextLengthError
from engine.text.chat import by_template, plain_transcript
from engine.text.length import LengthBound, too_long
from engine.text.work import Chat, Source, Text, Work

_TEMPLATE_CHARACTERS = 20_000
"""More than the own text of templates in use."""


class _Backend(Protocol):
    def ids(self, text: str, special: bool) -> list[int]: ...
    def check(self, text: str, context: int) -> None: ...


class Encoder:
    """One tokenizer, in the process that encodes."""

    def __init__(self, source: Source) -> None:
        self._template = source.template
        self._special_tokens = source.special_tokens
        self._backend: _Backend = _Python(source) if source.is_python else _Rust(source)

    def encode(self, work: Work) -> bytes:
        """The token ids as 32-bit integers. Raises InvalidRequestError for messages that the
        template refuses, and ContextLengthError."""
        text, special = self._text(work)
        text = without_surrogates(text)
        try:
            if work.context is not None:
                self._backend.check(text, work.context)
            token_ids = self._backend.ids(text, special)
            if work.context is not None and len(token_ids) >= work.context:
                raise too_long(len(token_ids), work.context)
        except ContextLengthError as error:
            if isinstance(work, Text) or len(text) < 2 * work.num_characters + _TEMPLATE_CHARACTERS:
                raise
            raise ContextLengthError(
                f"The chat template expands {work.num_characters:,} characters to {len(text):,}. "
                f"{error.cause}",
                error.remedy,
            ) from None
        return array("i", token_ids).tobytes()

    def _text(self, work: Work) -> tuple[str, bool]:
        """The text, and whether the tokenizer adds its special tokens. A template has written them:
        adding them again would give two BOS."""
        match work:
            case Text(text, special):
                return text, special
            case Chat(messages) if self._template is None:
                return plain_transcript(messages), True
            case Chat(messages):
                return by_template(self._template, self._special_tokens, messages), False
        raise TypeError(work)


class _Rust:
    """Encodes as transformers' fast tokenizers do, without importing transformers."""

    def __init__(self, source: Source) -> None:
        from tokenizers import Tokenizer

        self._json = source.tokenizer
        self._bound: LengthBound | None = None
        self._tokenizer: Any = Tokenizer.from_str(source.tokenizer.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = source.splits_special

    def ids(self, text: str, special: bool) -> list[int]:
        # without offsets: less time and memory
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return list(encoding.ids)

    def check(self, text: str, context: int) -> None:
        if len(text) * 4 < context:  # a character has at most four bytes, a token at least one
            return
        if self._bound is None:
            self._bound = LengthBound(json.loads(self._json))
        self._bound.check(text, context)


class _Python:
    """A tokenizer that transformers has in Python alone."""

    def __init__(self, source: Source) -> None:
        from engine.text.opening import read_folder

        self._tokenizer = read_folder(Path(source.folder))

    def ids(self, text: str, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, verbose=False, add_special_tokens=special))

    def check(self, text: str, context: int) -> None:
        pass


def without_surrogates(text: str) -> str:
    """Half of a surrogate pair (from a clipboard, or JSON) has no UTF-8: U+FFFD in its place. A
    plain str, of whatever class the text is."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
