"""The texts that come with the program: for evaluation, and for calibrating a quantization."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from engine.evaluation.texts import TextError, read_text
from resources import resource_path

_ANSWERS = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


class BuiltinText(NamedTuple):
    """A text in the resources; `title` and `about` are for people. `is_chat`: conversations, of
    which the answers alone are scored."""

    key: str
    title: str
    about: str
    is_chat: bool = False

    @property
    def file(self) -> Path:
        return resource_path("texts", f"{self.key}.txt")

    def read(self) -> str:
        return read_text(self.file)

    def scored(self, text: str) -> tuple[tuple[int, int], ...]:
        """Which characters of `text` count (see EvaluationTask); nothing where all do."""
        return tuple(found.span(1) for found in _ANSWERS.finditer(text)) if self.is_chat else ()


BUILTIN_TEXTS = (
    BuiltinText(
        "english", "English, mixed",
        "Prose, dialogue, explanations, letters, recipes, tables, numbers and code.",
    ),
    BuiltinText(
        "starter", "The starter model's own",
        "Conversations like those that the starter model learned from, but none that it saw.",
        is_chat=True,
    ),
)  # fmt: skip
"""The first is for any model; the starter model knows only what the second is made of."""


def builtin_text(key: str) -> BuiltinText:
    """Raises TextError for a text that is not there."""
    for text in BUILTIN_TEXTS:
        if text.key == key:
            return text
    known = ", ".join(text.key for text in BUILTIN_TEXTS)
    raise TextError(f"There is no built-in text {key!r}.", f"Choose one of {known}.")
