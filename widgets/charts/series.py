"""What a chart shows: declarations, without drawing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from widgets.charts.scale import figure


class SeriesKind(StrEnum):
    LINE = "line"
    STEPS = "steps"  # holds each value until the next: counts, settings
    DOTS = "dots"  # single samples
    AREA = "area"  # a share in a stack


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a chart. `color` is a name of the theme; `text` writes a value (no unit).

    hold: the newest value stays true until there is another (a state), so the line runs on to
    now. Without it (a measurement) the line ends where the last one was made.

    silence: seconds without a value after which a line runs level up to the next one: a slope
    would tell of a slow change that nobody has seen.
    """

    key: str
    label: str
    color: str
    kind: SeriesKind = SeriesKind.LINE
    width: float = 1.0
    dashed: bool = False
    hold: bool = False
    silence: float = math.inf
    tip: str = ""  # what exactly is shown, for the legend
    text: Callable[[float], str] = figure


class MarkKind(StrEnum):
    SETTING = "setting"
    LOAD = "load"  # a background load began or ended
    MODEL = "model"  # another model was opened


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened. `text` stands at its line; `details`, a line each, are read where
    the cross-line is near it (the text itself where there are none)."""

    time: float
    text: str
    kind: MarkKind = MarkKind.SETTING
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The newest value of a series, printed at its line's end."""

    label: str
    value: str
    color: str  # theme name
    y: float  # in the chart's unit


@dataclass(frozen=True, slots=True)
class Reading:
    """An exact value under the cross-line, and where its point is drawn."""

    label: str
    value: str
    color: str
    time: float
    y: float
