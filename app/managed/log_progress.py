"""Progress of a start, read from the engine's log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Stage(StrEnum):
    STARTING = "Starting"
    WAITING = "Waiting for GPUs of the Ray cluster"
    DOWNLOADING = "Downloading"
    LOADING = "Loading weights"
    COMPILING = "Compiling"
    CAPTURING = "Capturing CUDA graphs"
    SERVING = "Starting the server"


class Progress(NamedTuple):
    """fraction: 0 to 1 of this stage; None: not reported."""

    stage: Stage = Stage.STARTING
    fraction: float | None = None

    @property
    def text(self) -> str:
        known = "" if self.fraction is None else f" · {100 * self.fraction:.0f} %"
        return f"{self.stage}{known}"


_MARKS: Sequence[tuple[Stage, re.Pattern[str]]] = tuple(
    (stage, re.compile(words, re.IGNORECASE)) for stage, words in (
        # vLLM and SGLang on uvicorn
        (Stage.SERVING, r"started server process|starting vllm (api )?server|"
                        r"uvicorn running on|application startup"),
        (Stage.CAPTURING, r"captur\w+ (cuda|cudagraph|batches|.*graph)|capture cuda graph"),
        (Stage.COMPILING, r"compiling|torch\.compile|dynamo bytecode|warming up model"),
        (Stage.LOADING, r"starting to load model|loading (safetensors|pt) checkpoint|"
                        r"loading weights|load weight begin|multi-thread loading"),
        (Stage.DOWNLOADING, r"downloading|fetching \d+ files|download(ing)? weights"),
        # vLLM waits for 30 minutes (v1/executor/ray_utils.py)
        (Stage.WAITING, r"waiting for creating a placement group|number of required \w+ exceeds"),
    )
)  # fmt: skip
_ORDER = tuple(Stage)
_PERCENT = re.compile(r"(\d{1,3})% ?(?:\||completed)", re.IGNORECASE)
"""Of tqdm and of vLLM's "Loading safetensors checkpoint shards: 50% Completed"."""
LONGEST_MARK = 400
"""Longer lines are configurations, which have the words of every stage."""
_FORMS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def clean(line: str) -> str:
    """A line as a terminal shows it: without colours, and the last of what overwrites itself."""
    return _FORMS.sub("", line).rstrip("\r\n").rpartition("\r")[2].rstrip()


def advanced(now: Progress, line: str) -> Progress:
    """The progress after a cleaned line. Stages go forward only."""
    if len(line) > LONGEST_MARK:
        return now
    stage = next((stage for stage, words in _MARKS if words.search(line)), None)
    if stage is None or _ORDER.index(stage) < _ORDER.index(now.stage):
        return now
    percent = _PERCENT.search(line)
    fraction = min(100, int(percent[1])) / 100 if percent else None
    if fraction is None and stage is now.stage:
        return now
    return Progress(stage, fraction)
