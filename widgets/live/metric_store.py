"""`MetricStore`: the one source of every measured figure that the window shows. No Qt.

    samples     . .  .|. x   .  . .  . .  |  x  . . .
    epochs     |------|-------------------|----------->     begun by a model or a change of settings
    shown                                      [----->]     the last minute, within the epoch

A sample belongs to an epoch if it began and ended in it. One that began before (x: a request that
waited, a gap in which the cache was rebuilt) is drawn, and counts as a token, but enters no
statistic. The server's /metrics count the same samples cumulatively, across epochs.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from engine.snapshot import EngineSnapshot, FinishReason, Part
from widgets.controls.engine_time import EngineTime
from widgets.live.history import SampleHistory
from widgets.live.statistics import Shown
from widgets.live.totals import PercentileLine, RunningTotal
from widgets.live.trends import StatTrends

SPAN_S = 60.0
"""Statistics are of the samples of this long before the newest one, within the epoch."""
RATE_S = 3.0
"""Rates are of this long before the last whole second, within the epoch."""
PASSED_S = 5.0
"""Settings that held for less were stepped through, e.g. by a slider on its way."""
LATENCIES = ("ttft", "itl")
KEYS = ("output", *LATENCIES)
"""Of the sparklines."""
MISSING = {"kv": Part.KV_USAGE, "hits": Part.PREFIX_CACHE, "memory": Part.MEMORY}
"""The parts of a snapshot that figures need."""
GIB = 2**30
_COMPLETED = (FinishReason.STOP.value, FinishReason.LENGTH.value)
_EPOCHS_KEPT, _MEMOS_KEPT = 64, 16
_SAME_S = 0.05  # after a reconnect, the clock of a server differs by less
_HEARD_S = 1.0  # a change reaches the window within this time
_LATE_S = 1.3  # snapshots come up to a second late
_SILENT_S = 10.0  # without a sample: the sparkline has a gap, a rate of requests that run a dash


@dataclass(slots=True)
class Epoch:
    """A period with one model and one set of settings. `reported`: its start as the engine reports
    it. `end`: infinity for the current one. `last`: the latencies that were shown at its end."""

    start: float
    model: str
    config: Any
    reported: float
    end: float = math.inf
    last: dict[str, Shown] = field(default_factory=dict)

    def has_same(self, s: EngineSnapshot) -> bool:
        """Whether model and settings have not changed until `s`."""
        is_later = s.settings_since - self.reported > _SAME_S
        is_same = self.config is s.config or self.config == s.config
        return self.model == _model_of(s) and is_same and not is_later


class Share(NamedTuple):
    """`rate` (0 to 1) of `num_tokens`, the newest of them at `newest`."""

    rate: float
    num_tokens: int
    newest: float


class MetricStore(SampleHistory):
    """Takes every snapshot of one engine, in order. Times are those of the engine's clock."""

    def __init__(self) -> None:
        self.trends = StatTrends(KEYS)
        self.time = EngineTime()
        self.clear()

    def clear(self) -> None:
        """Forget everything: a recording plays from its beginning."""
        super().__init__()
        self._lines = {key: self._line(key) for key in LATENCIES}
        self._tokens = {"in": RunningTotal(), "out": RunningTotal()}
        self._hits, self._queries = RunningTotal(), RunningTotal()
        self._completed = RunningTotal()
        self._epochs: deque[Epoch] = deque(maxlen=_EPOCHS_KEPT)
        self._memo: dict[tuple[str, float, float, int], Shown] = {}
        self.trends.clear()
        self.snapshot: EngineSnapshot | None = None
        """The newest; None without a model."""
        self.last_time = -math.inf

    def _line(self, key: str) -> PercentileLine:
        return PercentileLine(lambda at: self.latency(key, at), SPAN_S)

    # Feeding ----------------------------------------------------------------------------------

    def update(self, snapshot: EngineSnapshot) -> None:
        """Processes new samples only; the points of the sparklines once a second."""
        ended = self._begin(snapshot) if self._is_change(snapshot) else None
        self.snapshot, self.last_time = snapshot, max(snapshot.time, self.last_time)
        self.time.synchronise(snapshot.time)
        starts = np.array([epoch.start for epoch in self._epochs])
        for key in LATENCIES:
            self.add_samples(key, getattr(snapshot, key), starts)
        if ended is not None:
            self._keep_last(ended)
        self.add_states(snapshot)
        self._count(snapshot)
        if self.trends.is_due(snapshot.time):
            self.trends.add(snapshot.time, self._points(snapshot))

    def end(self) -> None:
        """The model was unloaded, or the window turned to another engine."""
        epoch = self.epoch
        if epoch is not None:
            epoch.end = math.nextafter(self.last_time, math.inf)  # the last samples are in it
            self._keep_last(epoch)
        self.snapshot = None
        self.trends.clear()
        for total in (*self._tokens.values(), self._hits, self._queries, self._completed):
            total.restart()

    def _is_change(self, s: EngineSnapshot) -> bool:
        epoch = self.epoch
        return epoch is None or not epoch.has_same(s)

    def _begin(self, s: EngineSnapshot) -> Epoch | None:
        """The epoch that ends. The new one starts when its settings took effect. Where that is not
        reported, this snapshot is the first of them; if nothing was before it, its samples are."""
        before = self._epochs[-1] if self._epochs else None
        if before is not None and before.end < math.inf and before.has_same(s):
            before.end = math.inf  # a load that was refused: nothing changed
            return None
        start = s.settings_since
        if not start:
            begins = () if before else (x.time - x.value for x in (*s.ttft, *s.itl))
            start = min((s.time, *begins))
        if before is not None:
            start = max(start, before.start if before.end == math.inf else before.end)
            before.end = min(before.end, start)
        self._epochs.append(Epoch(start, _model_of(s), s.config, s.settings_since))
        return before

    def _keep_last(self, epoch: Epoch) -> None:
        epoch.last = {key: self._shown(key, epoch, epoch.end) for key in LATENCIES}

    def _count(self, s: EngineSnapshot) -> None:
        completed = sum(n for reason, n in s.counters.finished.items() if reason in _COMPLETED)
        counters, is_whole = s.counters, 0 < s.step_index == len(s.steps)
        for total, count in (
            (self._tokens["in"], counters.prompt_tokens),
            (self._tokens["out"], counters.generation_tokens),
            (self._hits, counters.prefix_hits),
            (self._queries, counters.prefix_queries),
            (self._completed, completed),
        ):
            total.add(s.time, count, is_whole=is_whole)

    def _points(self, s: EngineSnapshot) -> dict[str, float]:
        """The sparklines' points: the figures shown now."""
        shown = {key: self.latency(key) for key in LATENCIES}
        points = {
            key: one.p50
            for key, one in shown.items()
            if one.p50 is not None and s.time - one.newest <= _SILENT_S
        }
        if (rate := self.rate("out", s.time)) is not None:
            points["output"] = rate
        return points

    # Epochs -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch | None:
        """The current one; None without a model."""
        return self.epoch_at(math.inf)

    def epoch_at(self, at: float) -> Epoch | None:
        for epoch in reversed(self._epochs):
            if epoch.start <= at:
                return epoch if at < epoch.end or epoch.end == math.inf else None
        return None

    def change_near(self, time: float) -> float:
        """The start of the epoch whose change of settings came closest to `time`; `time` itself
        where none came within a second: a mark is set when its change reaches the window, and a
        source without the time of its settings shows them with the next snapshot."""
        changes = (
            later.start for earlier, later in pairwise(self._epochs) if earlier.model == later.model
        )
        near = [start for start in changes if abs(time - start) <= _HEARD_S]
        return min(near, key=lambda start: abs(time - start), default=time)

    def before(self, key: str, at: float = math.inf) -> Shown | None:
        """The latency that was shown last before the epoch at `at`, of the same model; not of
        settings that were stepped through, where others have samples."""
        now, passed = self.epoch_at(at), None
        for epoch in reversed(self._epochs):
            if now is None or epoch.start >= now.start or epoch.model != now.model:
                continue
            if (last := epoch.last.get(key)) is not None and last.num_samples:
                if epoch.end - epoch.start >= PASSED_S:
                    return last
                passed = passed or last
        return passed

    # What is shown ----------------------------------------------------------------------------

    def latency(self, key: str, at: float = math.inf) -> Shown:
        """ "ttft" or "itl" as shown at time `at`."""
        epoch = self.epoch_at(at)
        return Shown() if epoch is None else self._shown(key, epoch, at)

    def _shown(self, key: str, epoch: Epoch, at: float) -> Shown:
        times, values = self.rings[key].times, self.rings[key].values
        low, end = np.searchsorted(times, (epoch.start, epoch.end)).tolist()
        high = min(int(np.searchsorted(times, at, side="right")), end)
        while high > low and math.isnan(values[high - 1]):
            high -= 1
        if high <= low:
            return Shown(since=epoch.start)
        newest = float(times[high - 1])
        low = max(low, int(np.searchsorted(times, newest - SPAN_S, side="right")))
        memo = key, epoch.start, newest, high - low
        if memo not in self._memo:
            if len(self._memo) >= _MEMOS_KEPT:
                del self._memo[next(iter(self._memo))]
            others = self.other_cores(max(epoch.start, newest - SPAN_S), newest)
            self._memo[memo] = Shown.between(values[low:high], others, epoch.start, newest)
        return self._memo[memo]

    def line(self, key: str) -> PercentileLine:
        """A latency over time, up to the newest snapshot."""
        line, times = self._lines[key], self.rings[key].times
        if len(times):
            line.advance(float(times[0]), self.last_time)
        return line

    def last_second(self, now: float) -> int:
        """The last one that is over and known, at time `now`. An engine with running requests
        reports more: what came after its newest snapshot is not known yet, however late a busy
        window takes it."""
        is_over = self.snapshot is None or not self.snapshot.num_running
        known = max(self.last_time, now - _LATE_S) if is_over else self.last_time
        return math.floor(min(known, now))

    def rate(self, which: str, now: float) -> float | None:
        """Tokens per second, "in" (computed) or "out", as shown at time `now`; None before the
        first token in this epoch, and where the last known second is long ago."""
        epoch, second = self.epoch_at(now), self.last_second(now)
        is_known = epoch is not None and epoch.start <= second and now - second <= _SILENT_S
        return self.rate_at(which, second) if is_known else None

    def rate_at(self, which: str, second: int) -> float | None:
        total, at = self._tokens[which], float(second)
        epoch = self.epoch_at(at)
        if epoch is None or at - epoch.start < 1 or not total.between(epoch.start, at) > 0.5:
            return None
        start = max(epoch.start, at - RATE_S)
        return total.between(start, at) / (at - start)

    def completed(self, start: float, end: float) -> int:
        """Requests that ended as asked in a range, whenever they arrived."""
        return round(self._completed.between(start, end))

    def prefix_hits(self, at: float = math.inf) -> Share | None:
        """Of the tokens that were looked up; None without any in this epoch."""
        epoch = self.epoch_at(at)
        newest = self._queries.grew_until(min(at, self.last_time))
        if epoch is None or newest <= epoch.start:
            return None
        start = max(epoch.start, newest - SPAN_S)
        count = self._queries.between(start, newest)
        hits = self._hits.between(start, newest)
        return Share(hits / count, max(1, round(count)), newest) if count > 0 else None


def _model_of(s: EngineSnapshot) -> str:
    return s.model.path or s.model.name


def memory_used(s: EngineSnapshot) -> int:
    """Bytes that the process uses, or the sum of the engine's where the system does not report
    them."""
    memory = s.memory
    return memory.process or memory.weights + memory.kv_cache + memory.other


def memory_parts(s: EngineSnapshot) -> dict[str, int]:
    """`memory_used` by what it holds. `kv_reserved`: of the KV cache what takes memory with no
    token in it."""
    memory = s.memory
    used = max(0, memory.kv_used - s.blocks.num_reserved * memory.plan.bytes_per_block)
    parts = {
        "weights": memory.weights,
        "kv_used": used,
        "kv_cached": memory.kv_cached,
        "kv_reserved": max(0, memory.kv_resident - used - memory.kv_cached),
    }
    return parts | {"other": max(0, memory_used(s) - sum(parts.values()))}
