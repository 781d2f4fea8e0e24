"""The text that is read: one that comes with the program, or a file of the user's. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.calibration import calibration_texts
from app.quality.texts import builtin_text
from engine.evaluation.texts import read_text
from engine.quantization.recipe import Recipe

if TYPE_CHECKING:
    from engine.quantization.calibration import Text

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
    from engine.quantization.calibration import make_sequences
    from engine.tokenization import Tokenizer

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
