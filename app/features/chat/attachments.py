"""Text files attached to a message. No Qt."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from engine.errors import InferdeckError
from engine.units import bytes_text

LARGEST = 2**20
_MODEL_FILES = {".safetensors", ".gguf", ".bin", ".pt", ".pth"}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class AttachmentError(InferdeckError):
    """A file cannot be attached."""


class Attachment(NamedTuple):
    name: str
    text: str

    @property
    def num_bytes(self) -> int:
        return len(self.text.encode())


def droppable(paths: Sequence[str]) -> bool:
    """Whether to attach dragged files: folders and weights are opened as models instead."""
    files = [Path(path) for path in paths]
    return bool(files) and all(f.is_file() and f.suffix.lower() not in _MODEL_FILES for f in files)


def read_attachment(path: Path) -> Attachment:
    """Raises AttachmentError."""
    try:
        if not path.is_file():
            raise AttachmentError(f"{path.name} is a folder.", "Attach individual files instead.")
        size = path.stat().st_size
        if size > LARGEST:
            raise AttachmentError(
                f"{path.name} is too large: {bytes_text(size)} (limit: {bytes_text(LARGEST)}).",
                "Attach a smaller file.",
            )
        data = path.read_bytes()
    except OSError as error:
        raise AttachmentError(
            f"Cannot read {path.name}: {error.strerror or error}.", "Check the file permissions."
        ) from error
    return Attachment(path.name, _decoded(path.name, data))


def _decoded(name: str, data: bytes) -> str:
    encoding = next((known for mark, known in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise AttachmentError(
            f"{name} is not valid UTF-8: invalid byte at offset {error.start:,} of {len(data):,}.",
            "Convert it to UTF-8.",
        ) from error
    if "\0" in text:
        raise AttachmentError(
            f"{name} is a binary file: NUL byte at offset {text.index(chr(0)):,}.",
            "Attach text files only.",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def message_content(text: str, attachments: tuple[Mapping[str, str], ...]) -> str:
    """The message as sent to the model: fenced files, then the text."""
    parts = [file_content(attachment["name"], attachment["text"]) for attachment in attachments]
    return "\n\n".join([*parts, text] if text else parts)


@lru_cache(maxsize=64)
def file_content(name: str, text: str) -> str:
    fence = fence_for(text)
    body = text.rstrip("\n")
    return f"{name}:\n{fence}\n{body}\n{fence}"


def fence_for(text: str) -> str:
    """A code fence that does not occur in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)
