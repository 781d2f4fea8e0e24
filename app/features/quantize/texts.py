"""The text that a quantization reads where the user names none. Imports no Qt."""

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
    """The texts of the user's file, or built-in ones that suit the model.

    Raises ConfigError for a file that is empty, binary or malformed.
    """
    from engine.quantize.calibration import read_texts

    if file is None:
        # the starter models know nothing but conversations like those that they learned from
        is_starter = Path(model).expanduser().absolute() in (starter_model(), starter_draft())
        file = resource_path("texts", "starter_chats.jsonl" if is_starter else "english.txt")
    return read_texts(file)


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


STARTER, ENGLISH = "starter", "english"
PROGRAM = "program"
"""For calibration: what suits the model, of what comes with the program."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """`builtin` is the key of a text of the program; empty for the file."""

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
        """As a report names it, here as on the command line."""
        return self.builtin or self.path.name


@dataclass(frozen=True, slots=True)
class CalibrationSize:
    """What a text amounts to: `num_tokens` of it are read, in `num_sequences`."""

    num_tokens: int
    num_sequences: int
    length: int

    @property
    def words(self) -> str:
        plural = "" if self.num_sequences == 1 else "s"
        return f"{self.num_sequences:,} sequence{plural}, {self.num_tokens:,} tokens in all"


def texts_of(choice: TextChoice, source: str) -> list[Text]:
    """What a calibration of the model in `source` reads, as the command line does.

    Raises ConfigError.
    """
    return calibration_texts(source, choice.path if choice.file else None)


def measure_calibration(choice: TextChoice, source: str, recipe: Recipe) -> CalibrationSize:
    """Read and cut the text as quantizing will. Imports transformers: off the GUI thread.

    Raises ConfigError where the text cannot be read or is too short.
    """
    from engine.quantize.calibration import make_sequences
    from engine.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(Path(source), allow_missing=False)
    sequences = make_sequences(
        texts_of(choice, source), tokenizer, length=recipe.sequence_length,
        count=recipe.num_sequences, seed=recipe.seed,
    )  # fmt: skip
    tokens = sum(len(sequence) for sequence in sequences)
    longest = max((len(sequence) for sequence in sequences), default=0)
    return CalibrationSize(tokens, len(sequences), longest)


class ReadText(NamedTuple):
    """`scored`: the parts that count, as (start, end) in characters; none for all of it."""

    text: str
    scored: tuple[tuple[int, int], ...] = ()


def evaluation_text(choice: TextChoice) -> ReadText:
    """As the command line reads it. Raises TextError."""
    if not choice.builtin:
        return ReadText(read_text(choice.path))
    builtin = builtin_text(choice.builtin)
    text = builtin.read()
    return ReadText(text, builtin.scored(text))
