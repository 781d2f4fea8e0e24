"""The heartbeat of the engine's worker: what it does, since when, and whether that is too long.

    worker   begin ... sized ... layer ... end    stamps; one assignment each, so there is no lock
    watcher  look                                 about once a second: Stalled, Recovered or nothing

An idle worker has no beat to miss. How long work may take without a beat:

    a command                             COMMAND_S
    a load, a change of settings          SLOW_S since its last progress
    a step of a size that was seen        STEP_S since its last layer, or MARGIN times what whole
                                          steps of its size took
    the first step of a size              FIRST_STEP_S since its last layer (kernels compile), or
                                          what a layer takes on the slowest CPU

Sizes are counted in powers of two tokens. A step that is replayed on a GPU has no layers, and on
the CPU one every tenth of a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from engine.errors import ErrorInfo
from engine.messages import Recovered, Stalled
from engine.units import rough_duration

COMMAND_S = STEP_S = 4.0
"""With LOOK_S, a stuck engine is reported within 5 s."""
FIRST_STEP_S = 60.0
SLOW_S = 300.0
MARGIN = 4.0
SLOWEST_FLOPS = 1e10
"""Arithmetic of the slowest CPU that serves a model, per second."""
LOOK_S = 1.0
_KEPT = 8
IDLE = ""


class Pulse(NamedTuple):
    """The state of an engine's thread. `doing`: "" while idle; `seconds`: since its last beat, 0
    while idle."""

    doing: str
    seconds: float
    is_stuck: bool = False
    is_alive: bool = True


def unresponsive(stalled: Stalled) -> ErrorInfo:
    """Why the engine is replaced by another one."""
    return ErrorInfo(
        f"The engine did not answer for {rough_duration(stalled.seconds)} ({stalled.doing}).",
        "The engine is restarting. Its requests were lost: send them again.",
        "EngineStuck",
    )


class Beat(NamedTuple):
    doing: str
    at: float
    allowed_s: float = 0.0


class StepTimes:
    """What steps of each size took, and how long the next may take without a beat. layer_s: the
    longest time of one token in one layer; 0: not known, as on GPUs."""

    def __init__(self, layer_s: float = 0.0) -> None:
        self._layer_s = layer_s
        self._seen: dict[int, deque[float]] = {}

    def note(self, num_tokens: int, seconds: float) -> None:
        times = self._seen.setdefault(num_tokens.bit_length(), deque(maxlen=_KEPT))
        times.append(seconds)

    def allowed_s(self, num_tokens: int) -> float:
        seen = self._seen.get(num_tokens.bit_length())
        if seen is None:
            return max(FIRST_STEP_S, num_tokens * self._layer_s)
        return max(STEP_S, MARGIN * median(seen))


class Heartbeat:
    """Stamped by one worker, read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._times = StepTimes()
        self._step: tuple[int, float] | None = None  # that runs: its tokens, and since when
        self.beat = Beat(IDLE, clock())

    def serve(self, layer_s: float) -> None:
        """Another engine: its steps take other times (see `StepTimes`)."""
        self._times = StepTimes(layer_s)

    @contextmanager
    def during(self, doing: str, allowed_s: float) -> Iterator[None]:
        self.beat = Beat(doing, self.clock(), allowed_s)
        try:
            yield
        finally:
            now = self.clock()
            if self._step is not None:
                num_tokens, began = self._step
                self._times.note(num_tokens, now - began)
                self._step = None
            self.beat = Beat(IDLE, now)

    def progress(self) -> None:
        """What runs goes on (a load, a layer of a step): its time starts again."""
        doing, _, allowed_s = self.beat
        self.beat = Beat(doing, self.clock(), allowed_s)

    def sized(self, num_tokens: int) -> None:
        """The step that runs computes `num_tokens`."""
        now = self.clock()
        self._step = num_tokens, now
        tokens = "1 token" if num_tokens == 1 else f"{num_tokens:,} tokens"
        allowed_s = self._times.allowed_s(num_tokens)
        self.beat = Beat(f"step of {tokens}", now, allowed_s)

    @property
    def seconds(self) -> float:
        """Since the last beat; 0 while idle."""
        beat = self.beat
        return max(0.0, self.clock() - beat.at) if beat.doing else 0.0


class Watch:
    """Judges the beats of one worker. Call `look` about every LOOK_S: it counts the time between
    two looks only up to twice that, so that a process that was stopped is not called stuck."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._looked = heartbeat.clock()
        self._beat = heartbeat.beat
        self._waited = 0.0
        self._told_s = 0.0  # in the last Stalled
        self.stalled: Stalled | None = None

    def look(self) -> Stalled | Recovered | None:
        """Stalled where a beat is overdue, again each time the wait has doubled; then Recovered."""
        now = self._heartbeat.clock()
        passed, self._looked = min(now - self._looked, 2 * LOOK_S), now
        beat = self._heartbeat.beat
        if beat is not self._beat:
            waited, self._waited = self._waited, min(passed, max(0.0, now - beat.at))
            self._beat = beat
            if self.stalled is None:
                return None
            self.stalled, self._told_s = None, 0.0
            return Recovered(waited)
        self._waited += passed
        due = max(beat.allowed_s, 2 * self._told_s)
        if not beat.doing or self._waited < due:
            return None
        self._told_s = self._waited
        self.stalled = Stalled(beat.doing, self._waited)
        return self.stalled
