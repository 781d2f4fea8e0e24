"""Text files that the user gives with a message. No Qt."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from app.units import format_bytes
from engine.errors import InferdeckError

LARGEST = 2**20
_MODEL_FILES = {".safetensors", ".gguf", ".bin", ".pt", ".pth"}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class AttachmentError(InferdeckError):
    """A file cannot be given to a model as text."""


class Attachment(NamedTuple):
    name: str
    text: str

    @property
    def num_bytes(self) -> int:
        return len(self.text.encode())

    def stored(self) -> dict[str, str]:
        return {"name": self.name, "text": self.text}

    @classmethod
    def of(cls, stored: Mapping[str, str]) -> Attachment:
        return cls(stored["name"], stored["text"])


def may_be_text(path: Path) -> bool:
    """Whether to try it at all: folders and weights are models to open, not texts to read."""
    return path.is_file() and path.suffix.lower() not in _MODEL_FILES


def read_attachment(path: Path) -> Attachment:
    """The text in a file. Raises AttachmentError with the cause, the numbers and what to do."""
    try:
        if not path.is_file():
            raise AttachmentError(f"{path.name} is not a file.", "Attach the files in it.")
        size = path.stat().st_size
        if size > LARGEST:
            raise AttachmentError(
                f"{path.name} has {format_bytes(size)}; a file may have {format_bytes(LARGEST)}.",
                "Attach the part that matters.",
            )
        data = path.read_bytes()
    except OSError as error:
        raise AttachmentError(
            f"{path.name} cannot be read: {error.strerror or error}.", "Check its permissions."
        ) from error
    return Attachment(path.name, _decoded(path.name, data))


def _decoded(name: str, data: bytes) -> str:
    encoding = next((known for mark, known in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise AttachmentError(
            f"{name} is no text file: byte {error.start:,} of {len(data):,} is no UTF-8.",
            "Attach text; save older texts as UTF-8 first.",
        ) from error
    if "\0" in text:
        raise AttachmentError(
            f"{name} is a binary file: it has a NUL at character {text.index(chr(0)):,}.",
            "Attach text files.",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def message_content(text: str, attachments: tuple[Mapping[str, str], ...]) -> str:
    """What the model reads of a message: the files, each between fences, then the text."""
    parts = [file_content(attachment["name"], attachment["text"]) for attachment in attachments]
    return "\n\n".join([*parts, text] if text else parts)


@lru_cache(maxsize=64)
def file_content(name: str, text: str) -> str:
    """A file as the model reads it."""
    fence = fence_for(text)
    body = text.rstrip("\n")
    return f"{name}:\n{fence}\n{body}\n{fence}"


def fence_for(text: str) -> str:
    """Backticks that `text` cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)
