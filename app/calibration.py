"""The text that a quantization reads where the user names none. Imports no Qt."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from app.paths import starter_draft, starter_model
from resources import resource_path

if TYPE_CHECKING:
    from engine.quantization.calibration import Text

_CONVERSATIONS = 400
_SEED = 1


def calibration_texts(model: str | Path, file: str | Path | None) -> list[Text]:
    """The texts of the user's file, or those that come with the program.

    Raises ConfigError for a file that is empty, binary or not what it says.
    """
    if file is not None:
        from engine.quantization.calibration import read_texts

        return read_texts(file)
    if Path(model).expanduser().absolute() in (starter_model(), starter_draft()):
        return _starter_conversations()
    return [resource_path("texts", "english.txt").read_text(encoding="utf-8")]


def _starter_conversations() -> list[Text]:
    """What the starter models learned from, made again: they know nothing else."""
    from resources.starter.corpus import conversations

    return [c.messages() for c in islice(conversations(_SEED), _CONVERSATIONS)]
