"""What an evaluation tells about its progress, and how it is stopped. No torch.

progress(stage, done, total) comes with every chunk, from the thread that evaluates. A stage is a
text to show, such as "Reference: reading the text"; `unit_of` says what is counted (total 0:
nothing is). cancelled() is asked at least once per chunk.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import InferdeckError

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]

REFERENCE, CANDIDATE = "Reference", "Model"

TEXT, ANSWERS, SPEED = "reading the text", "answering prompts", "measuring speed"
_UNITS = {TEXT: "tokens", ANSWERS: "answers", SPEED: "runs"}


class EvaluationCancelled(InferdeckError):  # noqa: N818 - not an error to the user, a way out
    """The user stopped the evaluation; nothing of it is kept."""


def stage_of(side: str, what: str) -> str:
    return f"{side}: {what}"


def unit_of(stage: str) -> str:
    """What a stage counts: "tokens", "answers" or "runs"; loading counts "bytes"."""
    return _UNITS.get(stage.partition(": ")[2], "bytes")


def check(cancelled: Cancelled) -> None:
    """Raise EvaluationCancelled where the user wants to stop."""
    if cancelled():
        raise EvaluationCancelled("The evaluation was stopped.", "Start it again when you like.")
