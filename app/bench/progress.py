"""How far a sweep, a search or a ladder is. No Qt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.units import rough_duration

TELL_S = 1.0
"""Least time between two reports of a run's requests."""
REQUESTS = "requests"


class Progress(NamedTuple):
    """`label`: of the current run; `done`, `total`: in `unit`; `left_s`: None at first. `run`:
    requests of the current run that are done, and all of them; None at its start."""

    label: str
    done: int
    total: int
    left_s: float | None
    unit: str = REQUESTS
    run: tuple[int, int] | None = None

    def __str__(self) -> str:
        label, left = self.label, ""
        if self.run is not None and self.unit != REQUESTS:
            label += f", {self.run[0]:,} of {self.run[1]:,} requests"
        if self.left_s is not None:
            left = f", {rough_duration(self.left_s)} left"
        return f"{label}: {self.done:,} of {self.total:,} {self.unit}{left}"

    @property
    def share(self) -> float:
        return self.done / max(self.total, 1)


@dataclass(slots=True)
class Reporter:
    """Shows the start of each run, and about once a second the requests of it that are done."""

    show: Callable[[Progress], None]
    _last: Progress | None = None  # without the requests of the current run
    _at: float = 0.0

    def begin(self, progress: Progress) -> None:
        self._last, self._at = progress, time.perf_counter()
        self.show(progress)

    def on_request(self, done: int, count: int) -> None:
        """`done` of the `count` requests of the current run; nothing before the first run."""
        last, now = self._last, time.perf_counter()
        if last is None or now - self._at < TELL_S:
            return
        if last.left_s is not None:
            last = last._replace(left_s=max(0.0, last.left_s - (now - self._at)))
        self._last, self._at = last, now
        all_done = last.done + done if last.unit == REQUESTS else last.done
        self.show(last._replace(done=all_done, run=(done, count)))
