"""Text to tokens and back, and chat messages to a prompt.

`Tokenizer.from_folder` returns the checkpoint's own tokenizer (through transformers, imported
then), or a `ByteTokenizer` for models without one that are used for speed measurements.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import CheckpointError, InvalidRequestError
from engine.messages import Prompt
from engine.sampling_params import SamplingParams
from engine.text.chat import Messages, checked, plain_transcript
from engine.text.encoder import without_surrogates
from engine.text.length import bytes_of, too_long
from engine.text.opening import Opening, Shared, make_source
from engine.text.work import Chat, Text, Work

_SHARED = Shared()


class Tokenizer(ABC):
    """The interface of a tokenizer. Safe to call from several threads."""

    notice: str | None = None
    """What the user should know about this tokenizer, or None."""
    vocab_size: int
    """Tokens that this tokenizer knows; a model may have more, as padding."""
    eos_token_ids: frozenset[int]
    """The tokenizer's own; config.json and generation_config.json may name others."""
    has_chat_template: bool

    @staticmethod
    def from_folder(path: str | Path, *, allow_missing: bool) -> Tokenizer:
        """The tokenizer of the checkpoint in `path`, the same one while it is in use.

        Raises CheckpointError where it is missing or cannot be read; with `allow_missing` gives a
        ByteTokenizer then, whose notice says why.
        """
        known: Tokenizer | None = _SHARED.get(Path(path))
        if known is not None:
            return known
        try:
            tokenizer = CheckpointTokenizer(Path(path))
        except CheckpointError as error:
            if allow_missing:
                return ByteTokenizer(reason=error.cause)
            raise
        _SHARED.put(Path(path), tokenizer)
        return tokenizer

    @abstractmethod
    def submit(self, work: Work, client: str = "") -> Future[list[int]]:
        """Token ids of a text or of chat messages, whose continuation is the assistant's next
        message. Returns at once. The future raises InvalidRequestError for what cannot be encoded
        within limits of time and memory, and ContextLengthError; it can be cancelled at any time.
        `client`: clients take turns."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the tokenizer adds (BOS)."""
        return self.submit(Text(without_surrogates(text))).result()

    def encode_bare(self, text: str) -> list[int]:
        """Token ids of a text alone, without special tokens added."""
        return self.submit(Text(without_surrogates(text), special=False)).result()

    def apply_chat(self, messages: Messages) -> list[int]:
        """The prompt of a conversation: by the chat template, else a plain transcript."""
        return self.submit(chat(messages)).result()

    def rest(self) -> None:  # noqa: B027 - a ByteTokenizer has none
        """End the processes that encode, once their work is done; the next text starts others."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, without special tokens; U+FFFD for bytes that are no UTF-8."""

    @abstractmethod
    def is_silent(self, token_id: int) -> bool:
        """Whether `decode` leaves the token out: special, or unknown to the tokenizer."""

    @abstractmethod
    def token_text(self, token_id: int) -> str:
        """One token for display; special tokens by name, broken UTF-8 as \\x escapes."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes | None:
        """What one token adds to the UTF-8 of a text; None where it is not known."""

    def tokens(self) -> list[str]:
        """Every token by its id, as the vocabulary writes it: equal vocabularies, equal lists."""
        return [self.token_text(token_id) for token_id in range(self.vocab_size)]


class CheckpointTokenizer(Tokenizer):
    """The tokenizer in a Hugging Face folder."""

    def __init__(self, path: Path) -> None:
        opening = Opening(path)
        self._hf = opening.read()
        self._pool = opening.pool
        weakref.finalize(self, self._pool.close)
        self._pool.use(partial(make_source, self._hf, opening.path))
        # The Rust object's decode, without the layers around it: it runs for every token.
        self._backend = getattr(self._hf, "backend_tokenizer", None)
        self._special = frozenset(
            token_id for token_id, token in self._hf.added_tokens_decoder.items() if token.special
        )
        self.vocab_size = len(self._hf)
        self.eos_token_ids = frozenset({self._hf.eos_token_id} - {None})
        template: Any = getattr(self._hf, "chat_template", None)
        is_named = isinstance(template, dict)
        self.has_chat_template = "default" in template if is_named else bool(template)

    def tokens(self) -> list[str]:
        names: list[str] = self._hf.convert_ids_to_tokens(list(range(self.vocab_size)))
        return names

    def submit(self, work: Work, client: str = "") -> Future[list[int]]:
        return self._pool.submit(work, client)

    def rest(self) -> None:
        self._pool.rest()

    def close(self) -> None:
        """End the processes that encode, and wait for their end."""
        self._pool.close()
        self._pool.join()

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._backend is not None:
            return str(self._backend.decode(list(token_ids), skip_special_tokens=True))
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._hf.decode(list(token_ids), **options))

    def is_silent(self, token_id: int) -> bool:
        return token_id in self._special or not 0 <= token_id < self.vocab_size

    def token_text(self, token_id: int) -> str:
        token = self._token(token_id)
        if token is None:
            return f"⟨{token_id}⟩"
        if token_id in self._hf.added_tokens_decoder:
            return str(token)
        if "▁" in token:  # decoded alone it would lose its leading space
            return str(token.replace("▁", " "))
        text = str(self._hf.decode([token_id], clean_up_tokenization_spaces=False))
        return _bytes_shown(token) if not text or "\ufffd" in text else text

    def token_bytes(self, token_id: int) -> bytes | None:
        token = self._token(token_id)
        if token is None:
            return None
        text = self.token_text(token_id)
        if token_id in self._hf.added_tokens_decoder or "▁" in token:
            return text.encode()
        if len(token) == 6 and token.startswith("<0x"):  # a byte that SentencePiece falls back to
            return bytes([int(token[3:5], 16)])
        if text == _bytes_shown(token):
            return bytes_of(token)
        return text.encode()

    def _token(self, token_id: int) -> Any:
        known = 0 <= token_id < self.vocab_size
        return self._hf.convert_ids_to_tokens(token_id) if known else None


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as token ids 0 to 255. A model with random weights also samples other ids, which
    are shown as a number in brackets."""

    vocab_size = 256
    eos_token_ids: frozenset[int] = frozenset()
    has_chat_template = False

    def __init__(self, reason: str = "This model has no tokenizer.") -> None:
        self.notice = (
            f"{reason} Tokens are UTF-8 bytes; other ids are shown as numbers. "
            "Use this model only to measure speed."
        )

    def submit(self, work: Work, client: str = "") -> Future[list[int]]:
        future: Future[list[int]] = Future()
        text = plain_transcript(work.messages) if isinstance(work, Chat) else work.text
        data = without_surrogates(text).encode()
        if work.context is not None and len(data) >= work.context:
            future.set_exception(too_long(len(data), work.context))
        else:
            future.set_result(list(data))
        return future

    def decode(self, token_ids: Sequence[int]) -> str:
        data = b"".join(
            bytes([token_id]) if token_id < 256 else f"⟨{token_id}⟩ ".encode()
            for token_id in token_ids
        )
        return data.decode(errors="replace")

    def is_silent(self, token_id: int) -> bool:
        return False

    def token_text(self, token_id: int) -> str:
        if token_id >= 256:
            return f"⟨{token_id}⟩"
        return bytes([token_id]).decode(errors="backslashreplace")

    def token_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id]) if 0 <= token_id < 256 else None


def chat(messages: Messages, context: int | None = None) -> Chat:
    """Chat messages to encode. Raises InvalidRequestError for one without role or content."""
    return Chat([_without_surrogates(dict(m)) for m in checked(messages)], context)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Mapping):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def _bytes_shown(token: str) -> str:
    return bytes_of(token).decode(errors="backslashreplace")


class EncodedPrompt(NamedTuple):
    """Token ids, and the parameters with the stop strings that the chat format adds."""

    token_ids: list[int]
    params: SamplingParams


class PromptWork(NamedTuple):
    """A prompt to encode: its token ids where it has some, else the work to do. `params`: as in
    `EncodedPrompt`."""

    work: Work | list[int]
    params: SamplingParams

    def submit(self, tokenizer: Tokenizer, client: str = "") -> Future[list[int]]:
        if not isinstance(self.work, list):
            return tokenizer.submit(self.work, client)
        future: Future[list[int]] = Future()
        future.set_result(self.work)
        return future


def prompt_work(
    prompt: Prompt | Sequence[Any],
    tokenizer: Tokenizer,
    params: SamplingParams,
    context: int | None = None,
) -> PromptWork:
    """What encoding a text, token ids or chat messages takes. context: the model's limit of tokens,
    for a text. Raises InvalidRequestError for anything else."""
    if isinstance(prompt, str):
        return PromptWork(Text(without_surrogates(prompt), context=context), params)
    items = list(prompt)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return PromptWork(items, params)
    if not all(isinstance(item, Mapping) and {"role", "content"} <= set(item) for item in items):
        raise InvalidRequestError(
            "The prompt must be text, token ids or chat messages.",
            'Send chat messages as objects with "role" and "content".',
        )
    if not tokenizer.has_chat_template:
        # A plain transcript has no token that ends a turn: the next speaker's name does.
        params = dataclasses.replace(params, stop=(*params.stop, "\nUser:"))
    return PromptWork(chat(items, context), params)


def encode_prompt(
    prompt: Prompt | Sequence[Any],
    tokenizer: Tokenizer,
    params: SamplingParams,
    context: int | None = None,
) -> EncodedPrompt:
    """Encode a text, token ids, or chat messages (through the checkpoint's chat template). context:
    as for `prompt_work`."""
    work = prompt_work(prompt, tokenizer, params, context)
    return EncodedPrompt(work.submit(tokenizer).result(), work.params)
