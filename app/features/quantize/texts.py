"""Calibration and evaluation texts: built in, or files. Imports no Qt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.paths import starter_draft, starter_model
from engine.evaluate.task import TextError, read_text
from engine.quantize.recipe import Recipe
from resources import resource_path

if TYPE_CHECKING:
    from engine.quantize.calibration import Text


def calibration_texts(model: str | Path, file: str | Path | None) -> list[Text]:
    """The texts of a file, or the built-in ones for the model.

    Raises ConfigError for a file that is empty, binary or malformed.
    """
    from engine.quantize.calibration import read_texts

    if file is None:
        # the demo models know only conversations like their training data
        is_starter = Path(model).expanduser().absolute() in (starter_model(), starter_draft())
        file = resource_path("texts", "starter_chats.jsonl" if is_starter else "english.txt")
    return read_texts(file)


_ANSWERS = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


class BuiltinText(NamedTuple):
    """A text in the resources. `is_chat`: conversations; only the answers are scored."""

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
        """Scored character ranges of `text` (see EvaluationTask); empty for all."""
        return tuple(found.span(1) for found in _ANSWERS.finditer(text)) if self.is_chat else ()


BUILTIN_TEXTS = (
    BuiltinText(
        "english", "English",
        "Prose, dialogue, letters, recipes, tables, numbers and code",
    ),
    BuiltinText(
        "starter", "Demo model chat",
        "Held-out conversations similar to the demo model's training data",
        is_chat=True,
    ),
)  # fmt: skip
"""The first suits any model, the second only the demo model."""


def builtin_text(key: str) -> BuiltinText:
    """The text `key`. Raises TextError."""
    for text in BUILTIN_TEXTS:
        if text.key == key:
            return text
    known = ", ".join(text.key for text in BUILTIN_TEXTS)
    raise TextError(f"Unknown built-in text: {key!r}.", f"Choose one of {known}.")


STARTER, ENGLISH = "starter", "english"
PROGRAM = "program"
"""For calibration: the built-in text that suits the model."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """`builtin`: key of a built-in text; empty for `file`."""

    builtin: str = ENGLISH
    file: str = ""

    @property
    def path(self) -> Path:
        """Of the file, or of the built-in text (not of PROGRAM, which is no file)."""
        if self.builtin:
            return builtin_text(self.builtin).file
        return Path(self.file).expanduser()

    @property
    def is_there(self) -> bool:
        return self.builtin == PROGRAM or self.path.is_file()

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self.builtin or self.path.name


class CalibrationSize(NamedTuple):
    """Size of the calibration data."""

    num_tokens: int
    num_sequences: int

    @property
    def text(self) -> str:
        plural = "" if self.num_sequences == 1 else "s"
        return f"{self.num_sequences:,} sequence{plural}, {self.num_tokens:,} tokens"


def measure_calibration(choice: TextChoice, source: str, recipe: Recipe) -> CalibrationSize:
    """Read and cut the text as quantizing will. Imports transformers: off the GUI thread.

    Raises ConfigError where the text cannot be read or is too short.
    """
    from engine.quantize.calibration import make_sequences
    from engine.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(Path(source), allow_missing=False)
    sequences = make_sequences(
        calibration_texts(source, choice.path if choice.file else None), tokenizer,
        length=recipe.sequence_length, count=recipe.num_sequences, seed=recipe.seed,
    )  # fmt: skip
    tokens = sum(len(sequence) for sequence in sequences)
    return CalibrationSize(tokens, len(sequences))


def evaluation_text(choice: TextChoice) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text, as the command line reads it, and its scored ranges of characters, (start, end);
    none for all. Raises TextError."""
    if not choice.builtin:
        return read_text(choice.path), ()
    builtin = builtin_text(choice.builtin)
    text = builtin.read()
    return text, builtin.scored(text)
