"""`SampleHistory`: what was measured, and statistics of any range of it. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from engine.snapshot import EngineSnapshot, Sample
from widgets.live.statistics import Figures
from widgets.plot.series import Floats, RingBuffer

_KEPT = {"ttft": 16_384, "itl": 262_144}  # at 500 tokens per second: the last nine minutes
_STATES_KEPT, _OTHERS_KEPT = 262_144, 16_384
_PAUSE_S = 1.0  # a shorter stretch without tokens is a gap between two steps
_BUSY_SHARE = 0.25  # of a range's snapshots: less does not move its median


class SampleHistory:
    """Latency samples in ms (NaN: of no epoch, yet a token), KV usage, and cores that other
    programs take from the engine's threads. Bounded."""

    def __init__(self) -> None:
        self.rings = {key: RingBuffer(kept) for key, kept in _KEPT.items()}
        self._kv_usage = RingBuffer(_STATES_KEPT)
        self._others = RingBuffer(_OTHERS_KEPT)
        self.complete_since = -math.inf
        """Older samples were dropped."""

    def add_samples(self, key: str, samples: Sequence[Sample], starts: Floats) -> None:
        """`starts` (ascending) of the epochs: a sample is of the one in which it began and ended.
        Samples older than the newest are another engine's: they are left out."""
        if not samples:
            return
        ring = self.rings[key]
        # (np.array would make an exception of each sample, and a collection of garbage of 700)
        flat = np.fromiter(chain.from_iterable(samples), float, 2 * len(samples))
        times, values = flat[::2], flat[1::2]
        if len(ring) and times[0] < ring.times[-1]:
            is_new = times >= ring.times[-1]
            times, values = times[is_new], values[is_new]
        bounds = np.append(math.inf, starts)  # before the first there is none
        start = bounds[np.searchsorted(starts, times, side="right")]
        ring.extend(times, np.where(times - values >= start, values * 1e3, math.nan))
        if len(ring) == ring.capacity:
            self.complete_since = max(self.complete_since, float(ring.times[0]))

    def add_states(self, s: EngineSnapshot) -> None:
        for step in s.steps:  # usage peaks between two snapshots count
            if step.kv_usage is not None:
                _append(self._kv_usage, min(step.end, s.time), step.kv_usage * 100)
        _append(self._kv_usage, s.time, s.kv_usage * 100)
        threads = s.threads
        is_busy = threads is not None and threads.free < threads.most
        _append(self._others, s.time, (threads.others or 0.0) if threads and is_busy else 0.0)

    # Ranges -----------------------------------------------------------------------------------

    @property
    def began(self) -> float:
        """Time of the oldest complete data; infinity without any."""
        times = self._kv_usage.times
        return max(float(times[0]), self.complete_since) if len(times) else math.inf

    def figures(self, start: float, end: float) -> dict[str, Figures]:
        """Of the range `start` to `end`: "ttft" and "itl" in ms, "output" in tokens per second of
        its whole seconds, "kv_usage" in percent at every step and state."""
        found = {
            "ttft": self.rings["ttft"].between(start, end),
            "itl": self.rings["itl"].between(start, end),
            "output": self._tokens_per_second(start, end),
            "kv_usage": self._states(start, end),
        }
        others = self.other_cores(start, end)
        return {key: Figures.of(values, others) for key, values in found.items()}

    def observed(self, start: float, end: float) -> dict[str, tuple[Floats, float | None]]:
        """Independent observations of the range and their level: "ttft" by request and "itl" by
        second, in ms, with the p50 of all samples; "output" in tokens per second of its whole
        seconds, with the mean: a stall of some seconds is not all that there was."""
        ttft, itl = (_known(self.rings[key].between(start, end)) for key in ("ttft", "itl"))
        tokens = self._tokens_per_second(start, end)
        return {
            "ttft": (ttft, Figures.of(ttft).p50),
            "itl": (self._by_second(start, end), Figures.of(itl).p50),
            "output": (
                tokens if len(ttft) or len(itl) else tokens[:0],
                float(tokens.mean()) if len(tokens) else None,
            ),
        }

    def pause(self, time: float) -> tuple[float, float]:
        """The stretch without tokens around a change at `time`, in which requests waited for a
        rebuild or reload: from the last token before it to the first one since. `time` twice where
        no request waited for it, or none for long."""
        last, first, waited = -math.inf, math.inf, False
        for ring in self.rings.values():
            place = int(np.searchsorted(ring.times, time))
            if place:
                last = max(last, float(ring.times[place - 1]))
            if place < len(ring) and ring.times[place] < first:
                first, waited = float(ring.times[place]), math.isnan(ring.values[place])
        is_pause = waited and math.isfinite(last) and first - last >= _PAUSE_S
        return (last, first) if is_pause else (time, time)

    def other_cores(self, start: float, end: float) -> float:
        """Cores that other programs took from the engine's threads; 0 where none did for long, or
        where it is unknown."""
        taken = self._others.between(start - 1e-9, end)
        is_busy = taken > 0
        if not len(taken) or is_busy.mean() < _BUSY_SHARE:
            return 0.0
        return float(taken[is_busy].mean())

    def _by_second(self, start: float, end: float) -> Floats:
        """Median ITL of each whole second with tokens."""
        ring, edges = self.rings["itl"], start + np.arange(math.floor(end - start + 1e-9) + 1)
        cuts = np.searchsorted(ring.times, edges)
        found = (_known(ring.values[a:b]) for a, b in pairwise(cuts))
        return np.array([float(np.median(values)) for values in found if len(values)])

    def _tokens_per_second(self, start: float, end: float) -> Floats:
        """Counted from latency samples: each token is one TTFT or ITL sample."""
        seconds = math.floor(end - start + 1e-9)
        if seconds < 1 or not self.began < end:
            return np.empty(0)
        edges = start + np.arange(seconds + 1)
        found = [np.searchsorted(ring.times, edges) for ring in self.rings.values()]
        return np.diff(found[0] + found[1]).astype(float)

    def _states(self, start: float, end: float) -> Floats:
        found = self._kv_usage.between(start, end)
        before = self._kv_usage.at(start)  # still valid at start
        return found if before is None else np.append(before[1], found)


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _append(ring: RingBuffer, time: float, value: float) -> None:
    """In the order of time: another engine's past is left out."""
    if not len(ring) or time >= ring.times[-1]:
        ring.append(time, value)
