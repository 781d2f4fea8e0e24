"""A run as the table of runs shows it: its kind, models, figures and outcome. No Qt.

A run has one side, or two to compare: reference and model, left and right, before and after.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.storage.intervals import half_interval


class Kind(StrEnum):
    QUANTIZE = "quantize"
    EVALUATE = "evaluate"
    COMPARE = "compare"
    BROADCAST = "broadcast"
    CHANGE = "change"  # of a setting under load: before and after
    BENCH = "bench"  # a sweep over loads or settings
    LADDER = "ladder"  # one technique after the other, under goals

    @property
    def label(self) -> str:
        return self.value.capitalize()


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure; `samples`: the repeats that it is the median or mean of, in the same unit."""

    value: float
    samples: tuple[float, ...] = ()

    @property
    def spread(self) -> float | None:
        """Half of the 95 % confidence interval over the repeats, as a share of the value; None for
        one run."""
        half = half_interval(self.samples)
        return None if half is None or not self.value else half / abs(self.value)


@dataclass(frozen=True, slots=True)
class RunSide:
    """Its precision and settings as `title`, and its figures by the keys of
    `app.storage.report_metrics`."""

    title: str
    figures: Mapping[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`created`: UTC, ISO 8601. `cause`: why it failed or was stopped. `name`: the user's own.
    `details`: JSON of its kind, to show it again. `is_report`: it is an evaluation report of
    `ReportStore`, with the same id."""

    id: str
    kind: Kind
    model: str
    precision: str
    created: str
    sides: tuple[RunSide, ...] = ()
    state: State = State.DONE
    cause: str = ""
    name: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    is_report: bool = False

    @property
    def title(self) -> str:
        return self.name or ", ".join(filter(None, (self.model, self.precision)))


def measured(samples: Sequence[float | None]) -> Measured | None:
    """The median of those that were measured; None without any."""
    known = tuple(value for value in samples if value is not None)
    return Measured(statistics.median(known), known) if known else None
