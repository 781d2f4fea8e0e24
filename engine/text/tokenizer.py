"""Text to tokens and back, and chat messages to a prompt.

`Tokenizer.from_folder` returns the checkpoint's own tokenizer (through transformers, imported
then), or a `ByteTokenizer` for models without one that are used for speed measurements.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import CheckpointError, InvalidRequestError
from engine.messages import Prompt
from engine.sampling_params import SamplingParams

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)

_REMEDY = (
    "Copy tokenizer.json and tokenizer_config.json from the original model to this folder, "
    "or download the model again."
)

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
        """The tokenizer of the checkpoint in `path`.

        Raises CheckpointError where it is missing or cannot be read; with `allow_missing` gives a
        ByteTokenizer then, whose notice says why.
        """
        try:
            return CheckpointTokenizer(Path(path))
        except CheckpointError as error:
            if allow_missing:
                return ByteTokenizer(reason=error.cause)
            raise

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the tokenizer adds (BOS)."""

    def encode_bare(self, text: str) -> list[int]:
        """Token ids of a text alone, without special tokens added."""
        return self.encode(text)

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

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt whose continuation is the assistant's next message: a plain transcript."""
        return self.encode(plain_transcript(_checked(messages)))


class CheckpointTokenizer(Tokenizer):
    """The tokenizer in a Hugging Face folder."""

    def __init__(self, path: Path) -> None:
        self._hf = _load(path)
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

    def encode(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=True)

    def encode_bare(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False)

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
            return _bytes_of(token)
        return text.encode()

    def _token(self, token_id: int) -> Any:
        known = 0 <= token_id < self.vocab_size
        return self._hf.convert_ids_to_tokens(token_id) if known else None

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """By the chat template; one that takes no system prompt gets it before the first user
        message."""
        if not self.has_chat_template:
            return super().apply_chat(messages)
        messages = _checked(messages)
        system = [m["content"].strip() for m in messages if m["role"] == "system"]
        try:
            text = self._render(messages)
            refused = any(content not in text for content in system)  # some drop it without a word
        except InvalidRequestError:
            if not system:
                raise
            refused = True
        if refused:
            text = self._render(_merge_system(messages))
        # The template has written the special tokens: adding them again would give two BOS.
        return self.encode_bare(text)

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        try:
            options = {"tokenize": False, "add_generation_prompt": True}
            return str(self._hf.apply_chat_template([dict(m) for m in messages], **options))
        except Exception as error:  # whatever a template written by strangers may raise
            raise InvalidRequestError(
                f"The chat template rejected this conversation: {error}",
                "Alternate user and assistant messages, starting with a user message.",
            ) from error

    def _encode(self, text: str, **options: Any) -> list[int]:
        return list(self._hf.encode(_without_surrogates(text), verbose=False, **options))


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

    def encode(self, text: str) -> list[int]:
        return list(_without_surrogates(text).encode())

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


def plain_transcript(messages: Sequence[Mapping[str, str]]) -> str:
    """The conversation as text that ends where the assistant speaks next.

    System messages stand above the turns, without a name.
    """
    names = {"user": "User: ", "assistant": "Assistant: ", "system": ""}
    parts = []
    for message in messages:
        name = names.get(message["role"], f"{message['role'].capitalize()}: ")
        end = "\n\n" if message["role"] == "system" else "\n"
        parts.append(f"{name}{message['content'].strip()}{end}")
    return "".join(parts) + "Assistant:"


def _load(path: Path) -> Any:
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        # Without this check transformers may build an empty tokenizer from config.json alone.
        raise CheckpointError(
            f"{path} has no tokenizer (found none of {', '.join(_TOKENIZER_FILES)}).", _REMEDY
        )
    from engine.lazy_transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
        if not _works(tokenizer) and (path / "tokenizer.json").is_file():
            # The class of the model's family cannot read every kind of tokenizer.json.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
        works = _works(tokenizer)
    except Exception as error:  # tokenizers raises plain Exception for a damaged file
        raise CheckpointError(
            f"Cannot read the tokenizer in {path}: {type(error).__name__}: {error}", _REMEDY
        ) from error
    if not works:
        raise CheckpointError(f"The tokenizer in {path} has an empty vocabulary.", _REMEDY)
    return tokenizer


def _works(tokenizer: Any) -> bool:
    return len(tokenizer) > len(tokenizer.all_special_ids) and bool(tokenizer.encode("a"))


def _checked(messages: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    if not messages:
        raise InvalidRequestError("The conversation has no messages.", "Add a message.")
    for i, message in enumerate(messages):
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InvalidRequestError(
                f"Message {i + 1} has no valid role or content.",
                'Each message needs a "role" string and a "content" string.',
            )
    return messages


def _merge_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The conversation with its system messages before the text of the first user message."""
    system = "\n\n".join(m["content"].strip() for m in messages if m["role"] == "system")
    merged = [dict(m) for m in messages if m["role"] != "system"]
    for message in merged:
        if message["role"] == "user":
            message["content"] = f"{system}\n\n{message['content']}"
            return merged
    return [{"role": "user", "content": system}, *merged]


def _without_surrogates(text: str) -> str:
    """Half of a surrogate pair (from a clipboard, or JSON) has no UTF-8: U+FFFD in its place."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes in its vocabulary (GPT-2): printable
    Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """Of a token as a byte-level vocabulary writes it; its UTF-8 where it is not written so."""
    if all(c in _BYTE_ALPHABET for c in token):
        return bytes(_BYTE_ALPHABET[c] for c in token)
    return token.encode()


def _bytes_shown(token: str) -> str:
    return _bytes_of(token).decode(errors="backslashreplace")


class EncodedPrompt(NamedTuple):
    """Token ids, and the parameters with the stop strings that the chat format adds."""

    token_ids: list[int]
    params: SamplingParams


def encode_prompt(
    prompt: Prompt | Sequence[Any], tokenizer: Tokenizer, params: SamplingParams
) -> EncodedPrompt:
    """Encode a text, token ids, or chat messages (through the checkpoint's chat template)."""
    if isinstance(prompt, str):
        return EncodedPrompt(tokenizer.encode(prompt), params)
    items = list(prompt)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return EncodedPrompt(items, params)
    if not all(isinstance(item, Mapping) and {"role", "content"} <= set(item) for item in items):
        raise InvalidRequestError(
            "The prompt must be text, token ids or chat messages.",
            'Send chat messages as objects with "role" and "content".',
        )
    if not tokenizer.has_chat_template:
        # A plain transcript has no token that ends a turn: the next speaker's name does.
        params = dataclasses.replace(params, stop=(*params.stop, "\nUser:"))
    return EncodedPrompt(tokenizer.apply_chat(items), params)
