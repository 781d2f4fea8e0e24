"""What crosses the pipe between the program and a process that encodes texts.

program -> process   Open or Check, then Text and Chat
process -> program   Done or Failed to each, in order
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

import msgspec

from engine.errors import CheckpointError, InferdeckError, InvalidRequestError, in_one_line
from engine.units import bytes_text, duration_text

_HEAD = struct.Struct("<Q")
_OWN_BYTES = 2**30
_PER_BYTE = 512
"""Encoding takes about 350 bytes of memory per token, and a token has at least one byte."""
_OWN_S = 5.0
_BYTES_PER_S = 50_000
_OPEN_S = 10.0
_OPEN_PYTHON_S = 90.0  # imports transformers, on a machine that may be busy
_OPENED_PER_S = 500_000
MAX_BYTES = 256 * 2**20
"""Of a file."""
REMEDY = (
    "Copy tokenizer.json and tokenizer_config.json from the original model to this folder, "
    "or download the model again."
)


class Check(msgspec.Struct, frozen=True, tag=True):
    """Read tokenizer.json in `folder`, and what else may be added to that tokenizer. num_bytes: of
    the files."""

    folder: str
    num_bytes: int


class Source(msgspec.Struct, frozen=True, tag=True):
    """The tokenizer of `folder`: `tokenizer` as JSON of the `tokenizers` library, or empty where it
    is written in Python: then it is read again. template: its chat template, None: a plain
    transcript."""

    tokenizer: bytes
    folder: str
    splits_special: bool
    template: str | None
    special_tokens: dict[str, str]

    @property
    def num_bytes(self) -> int:
        return len(self.tokenizer)

    @property
    def is_python(self) -> bool:
        return not self.tokenizer


class Text(msgspec.Struct, frozen=True, tag=True):
    """Encode a text. special: with the special tokens that the tokenizer adds (BOS). context: a
    prompt must have fewer tokens; None: any number."""

    text: str
    special: bool = True
    context: int | None = None

    @property
    def num_characters(self) -> int:
        return len(self.text)


class Chat(msgspec.Struct, frozen=True, tag=True):
    """Encode chat messages by the chat template."""

    messages: list[dict[str, Any]]
    context: int | None = None

    @property
    def num_characters(self) -> int:
        return sum(len(message["content"]) for message in self.messages)


class Done(msgspec.Struct, frozen=True, tag=True):
    """`token_ids`: 32-bit integers of this machine."""

    token_ids: bytes = b""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """An error of `engine.errors`, by the name of its class."""

    cause: str
    remedy: str
    kind: str


Work = Text | Chat
Message = Check | Source | Work
Reply = Done | Failed


class Allowance(msgspec.Struct, frozen=True):
    """What a process may use for one message: seconds, and bytes of memory."""

    seconds: float
    memory: int

    @property
    def time_text(self) -> str:
        return f"took more than {duration_text(self.seconds)}"

    @property
    def memory_text(self) -> str:
        return f"took more than {bytes_text(self.memory)} of memory"

    @staticmethod
    def of(message: Message, num_bytes: int) -> Allowance:
        """num_bytes: the length of the message, written."""
        if isinstance(message, Check | Source):
            size, is_python = message.num_bytes, isinstance(message, Source) and message.is_python
            own_s = _OPEN_PYTHON_S if is_python else _OPEN_S
            return Allowance(own_s + size / _OPENED_PER_S, _OWN_BYTES + 32 * size)
        return Allowance(_OWN_S + num_bytes / _BYTES_PER_S, _OWN_BYTES + _PER_BYTE * num_bytes)


def failure(message: Message, reason: str) -> InferdeckError:
    """Of a message that was too much, or broke what encodes. reason: a predicate."""
    if isinstance(message, Check | Source):
        named = Path(message.folder)
        if isinstance(message, Check):
            named /= "tokenizer.json"
        return CheckpointError(f"Reading the tokenizer in {named} {reason}.", REMEDY)
    what = "The chat template and its text" if isinstance(message, Chat) else "Encoding the text"
    return InvalidRequestError(
        f"{what} ({message.num_characters:,} characters) {reason}.",
        "Change or shorten the text. If other texts fail too, the model's tokenizer files are "
        "damaged: replace them with the original ones.",
    )


def reason_of(error: BaseException) -> str:
    """The words of a library about its input, for the middle of a sentence. Those of an error in
    Python, or of a panic in Rust, are about the library itself."""
    if type(error) is Exception or isinstance(error, (ValueError, OSError, ImportError)):
        return in_one_line(error)
    return "unexpected content"


def write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_HEAD.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def read(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the pipe."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    data = pipe.read(*_HEAD.unpack(head))
    return data if len(data) == _HEAD.unpack(head)[0] else None
