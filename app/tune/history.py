"""What the engine did lately, kept so that two stretches of time can be compared. No Qt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.snapshot import EngineSnapshot, Sample
from widgets.charts.percentiles import FEWEST_FOR_P99
from widgets.charts.ring import Floats, RingBuffer

_TTFT_KEPT, _ITL_KEPT, _STATES_KEPT = 16_384, 262_144, 262_144


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the samples of one stretch. None: there is none; p99 of fewer than 100 is None too."""

    num_samples: int = 0
    p50: float | None = None
    p99: float | None = None
    largest: float | None = None

    @classmethod
    def of(cls, values: Floats) -> Figures:
        if not len(values):
            return cls()
        p99 = float(np.percentile(values, 99)) if len(values) >= FEWEST_FOR_P99 else None
        return cls(len(values), float(np.median(values)), p99, float(values.max()))


class TuneHistory:
    """Latency samples, tokens and KV usage: the newest of each, a bounded number of them.

    Times are the engine's. `complete_since` says how far back nothing was dropped.
    """

    def __init__(self) -> None:
        self._ttft = RingBuffer(_TTFT_KEPT)
        self._itl = RingBuffer(_ITL_KEPT)
        self._kv_usage = RingBuffer(_STATES_KEPT)
        self.complete_since = -math.inf

    def update(self, snapshot: EngineSnapshot) -> None:
        """Take what is new in a snapshot. Cheap."""
        for ring, samples in ((self._ttft, snapshot.ttft), (self._itl, snapshot.itl)):
            _extend(ring, samples)
            if len(ring) == ring.capacity:
                self.complete_since = max(self.complete_since, float(ring.times[0]))
        for step in snapshot.steps:  # what is held and given back between two states counts too
            if step.kv_usage is not None:
                self._kv_usage.append(min(step.end, snapshot.time), step.kv_usage * 100)
        self._kv_usage.append(snapshot.time, snapshot.kv_usage * 100)

    @property
    def began(self) -> float:
        """When the first state was seen that is still known; infinity before any."""
        times = self._kv_usage.times
        return max(float(times[0]), self.complete_since) if len(times) else math.inf

    def figures(self, start: float, end: float) -> dict[str, Figures]:
        """Of the stretch from `start` to `end`: "ttft" and "itl" in ms, "tokens" generated per
        second in its whole seconds, "kv_usage" in percent at every step and state."""
        return {
            "ttft": Figures.of(self._ttft.between(start, end)),
            "itl": Figures.of(self._itl.between(start, end)),
            "tokens": Figures.of(self._tokens_per_second(start, end)),
            "kv_usage": Figures.of(self._states(start, end)),
        }

    def _tokens_per_second(self, start: float, end: float) -> Floats:
        """Every token is one sample of TTFT or of ITL, taken when it came."""
        seconds = math.floor(end - start + 1e-9)
        if seconds < 1 or not self.began < end:
            return np.empty(0)
        edges = start + np.arange(seconds + 1)
        found = [np.searchsorted(ring.times, edges) for ring in (self._ttft, self._itl)]
        return np.diff(found[0] + found[1]).astype(float)

    def _states(self, start: float, end: float) -> Floats:
        found = self._kv_usage.between(start, end)
        before = self._kv_usage.at(start)  # holds until the next
        return found if before is None else np.append(before[1], found)


def _extend(ring: RingBuffer, samples: tuple[Sample, ...]) -> None:
    if samples:
        ring.extend([s.time for s in samples], [s.value * 1e3 for s in samples])
