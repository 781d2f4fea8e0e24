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


NEARLY = 0.9
"""From this share on the context counts as nearly full."""
SHORT_REPLY = 256
"""With fewer tokens left a reply is likely to be cut."""
_REMEDY = "Shorten it, begin a new chat, or open the model with a longer context."


class ContextUse(NamedTuple):
    """Tokens: `used` by the conversation (None: not known), `draft` by what is being written,
    `limit` of the model, `max_tokens` that a reply may have, `unanswered` in messages after the
    last reply: they are sent again with the next one."""

    used: int | None = None
    draft: int = 0
    limit: int | None = None
    max_tokens: int | None = None
    unanswered: int = 0

    @property
    def total(self) -> int:
        return (self.used or 0) + self.estimated

    @property
    def estimated(self) -> int:
        """What no prompt has shown yet."""
        return self.unanswered + self.draft

    @property
    def is_stuck(self) -> bool:
        """Whether nothing short enough can be written any more."""
        return bool(
            self.unanswered and self.limit and (self.used or 0) + self.unanswered >= self.limit
        )

    @property
    def room(self) -> int | None:
        """What is left for the reply."""
        return None if self.limit is None else self.limit - self.total

    @property
    def is_nearly_full(self) -> bool:
        return self.limit is not None and self.total > NEARLY * self.limit


def context_text(use: ContextUse) -> str:
    """What the context meter says."""
    draft = f" + about {use.estimated:,}" if use.estimated else ""
    if use.limit is None:
        return "" if use.used is None else f"context {use.used:,}{draft} tokens"
    if use.used is None:
        here = f"about {use.estimated:,} of " if use.estimated else "of "
        return f"context {here}{use.limit:,} tokens"
    return f"context {use.used:,}{draft} of {use.limit:,} tokens"


def context_short(use: ContextUse) -> str:
    """The same where there is little room."""
    return "" if use.limit is None else f"{use.total:,} / {use.limit:,}"


def context_warning(use: ContextUse) -> str:
    """What will be refused or cut if this is sent; "" where everything fits."""
    if use.limit is None or use.room is None:
        return ""
    if use.is_stuck:
        return (
            f"The message without a reply does not fit: about {use.total:,} tokens with it, and "
            f"the context holds {use.limit:,}. It is sent along with what follows: edit it, begin "
            "a new chat, or open the model with a longer context."
        )
    if use.draft and use.room <= 0:
        return (
            f"This does not fit: about {use.total:,} tokens, and the context holds "
            f"{use.limit:,}, the reply included. It would be refused. {_REMEDY}"
        )
    if use.room <= 0:
        return f"The context is full: {use.total:,} of {use.limit:,} tokens. {_REMEDY}"
    if use.max_tokens is not None and use.draft and use.room < use.max_tokens:
        return (
            f"About {use.room:,} tokens are left for the reply, which may have "
            f"{use.max_tokens:,}: it would be cut there. {_REMEDY}"
        )
    if use.room < SHORT_REPLY and use.is_nearly_full:
        return f"About {use.room:,} tokens are left: a reply would be cut there. {_REMEDY}"
    return ""
