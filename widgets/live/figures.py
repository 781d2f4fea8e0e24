"""The strip's figures: values, sparklines, and texts for device, precision and state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

from engine.snapshot import EngineSnapshot, ModelInfo, Part, RequestState, Sample
from engine.snapshot.metrics import METRICS, Metric
from engine.units import (
    NOTHING,
    bytes_text,
    figure,
    kv_precision_text,
    number,
    precision_name,
    weights_text,
)
from widgets.controls.text import not_reported
from widgets.plot.series import FEWEST_FOR_P99, Floats, RingBuffer, percentiles

SPAN_S = 60.0
STEP_S = 1.0
"""Seconds between two points: a sparkline is about 80 pixels wide."""
_PAUSE_S = 10.0  # longer than a step of a large model on a small machine
_KEPT = 2 * round(SPAN_S / STEP_S)


class StatTrends:
    """One point per figure and second. NaN: a gap."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._rings = {key: RingBuffer(_KEPT) for key in keys}
        self.newest = -math.inf  # time of the newest point

    def is_due(self, at: float) -> bool:
        """Whether it is time for the next point."""
        return at - self.newest >= STEP_S

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """A point per figure; a gap for those missing from `values`."""
        self.newest = at
        for key, ring in self._rings.items():
            ring.append(at, values.get(key, math.nan))

    def clear(self) -> None:
        self.newest = -math.inf
        for ring in self._rings.values():
            ring.clear()

    def points(self, key: str) -> tuple[Floats, Floats]:
        """The last minute before the newest point: positions 0 to 1, and values. A pause is a
        gap."""
        ring = self._rings[key]
        last = ring.last()
        if last is None:
            return np.empty(0), np.empty(0)
        times, values = ring.times, ring.values
        first = int(np.searchsorted(times, last[0] - SPAN_S))
        times, values = times[first:], values[first:]
        pauses = np.flatnonzero(np.diff(times) > _PAUSE_S) + 1
        places = 1 - (last[0] - times) / SPAN_S
        return np.insert(places, pauses, places[pauses]), np.insert(values, pauses, math.nan)


def draw_sparkline(
    painter: QPainter, rect: QRectF, places: Floats, values: Floats, top: float, color: QColor
) -> None:
    """`values` at `places` (0 to 1, from left to right); the lower edge is zero, the upper one
    `top`, or the largest value where that is larger. NaN is a gap."""
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return  # not a line
    highest = max(top, float(known.max()))
    scale = rect.height() / highest if highest > 0 else 0.0
    xs = rect.left() + places * rect.width()
    ys = rect.bottom() - values * scale
    painter.setPen(QPen(color, 1.0))
    gaps = np.flatnonzero(np.isnan(values)).tolist()
    for before, after in pairwise([-1, *gaps, len(values)]):
        run = slice(before + 1, after)
        points = [QPointF(x, y) for x, y in zip(xs[run].tolist(), ys[run].tolist(), strict=True)]
        if len(points) > 1:
            painter.drawPolyline(QPolygonF(points))
        elif points:
            painter.drawPoint(points[0])


StateKind = Literal["idle", "busy", "loading", "error"]

GIB = 2**30
LATENCY_SPAN_S = 120.0
RATE_SPAN_S = 3.0
TREND_SPAN_S = 5.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. Its width fits `template` or the widest value so far: it grows but never jumps.
    Narrow windows drop the highest `drop` first. `top`: least upper end of the sparkline.
    `statistic` and `span` add to the metric's title and description."""

    key: str
    metric: Metric
    template: str
    drop: int
    color: str
    top: float
    statistic: str = ""
    span: str = ""

    @property
    def label(self) -> str:
        return f"{self.metric.title} {self.statistic}".rstrip()

    @property
    def unit(self) -> str:
        return self.metric.unit

    @property
    def tip(self) -> str:
        return self.metric.description + self.span


FIGURES = (
    Figure("output", METRICS["output"], "000", 3, "tokens_out", 1.0),
    Figure("ttft", METRICS["ttft"], "0,000", 2, "p50", 1.0, "p50",
           ", median over the last 2 minutes"),
    Figure("itl", METRICS["itl"], "00 / 00", 1, "p50", 1.0, "p50 / p99",
           ", over the last 2 minutes\n"
           f"({NOTHING}: fewer than {FEWEST_FOR_P99} samples)"),
    Figure("kv", METRICS["kv_usage"], "100", 5, "kv_usage", 100.0),
    Figure("hits", METRICS["prefix_hit_rate"], "100", 6, "prefix_hits", 100.0,
           span=" since the engine started"),
    Figure("memory", METRICS["memory"], "0.0 / 0.0", 4, "other", 0.1,
           span=" and the engine's memory budget"),
)  # fmt: skip


class Value(NamedTuple):
    """A figure's text. `is_current` False: older than the span. `why_not`: why it is missing.
    `more`: details for the tooltip."""

    text: str
    is_current: bool = True
    why_not: str = ""
    more: str = ""


_PARTS = {"kv": Part.KV_USAGE, "hits": Part.PREFIX_CACHE, "memory": Part.MEMORY}
"""Snapshot parts that figures need."""


class StatFigures:
    """Takes snapshots; `values(now)` gives the text of every figure. `now` is engine time."""

    def __init__(self) -> None:
        self._latencies = {"ttft": RingBuffer(2048), "itl": RingBuffer(8192)}
        self._counted: deque[tuple[float, int]] = deque()  # time, tokens
        self._snapshot: EngineSnapshot | None = None
        self.trends = StatTrends(tuple(one.key for one in FIGURES))

    def update(self, snapshot: EngineSnapshot) -> None:
        """Take a snapshot. Cheap."""
        self._snapshot = snapshot
        self._add("ttft", snapshot.ttft)
        self._add("itl", snapshot.itl)
        tokens = snapshot.counters.generation_tokens
        if self._counted and tokens < self._counted[-1][1]:
            self._counted.clear()  # the engine was started again
        self._counted.append((snapshot.time, tokens))
        self._forget_counts(snapshot.time)
        if self.trends.is_due(snapshot.time):
            self.trends.add(snapshot.time, self._numbers(snapshot))

    def clear(self) -> None:
        """Reset: no model is loaded."""
        self._snapshot = None
        self._counted.clear()
        self.trends.clear()
        for ring in self._latencies.values():
            ring.clear()

    def _numbers(self, snapshot: EngineSnapshot) -> dict[str, float]:
        """The sparklines' points: over a shorter span than the printed values."""
        now = snapshot.time
        recent = {k: ring.between(now - TREND_SPAN_S, now) for k, ring in self._latencies.items()}
        numbers = {key: float(np.median(found)) for key, found in recent.items() if len(found)}
        counters = snapshot.counters
        if counters.prefix_queries:
            numbers["hits"] = counters.prefix_hit_rate * 100
        numbers |= {
            "output": self._tokens_per_second(now),
            "kv": snapshot.kv_usage * 100,
            "memory": _used(snapshot) / GIB,
        }
        return {k: v for k, v in numbers.items() if _PARTS.get(k) not in snapshot.missing}

    def _add(self, key: str, samples: Sequence[Sample]) -> None:
        if samples:
            self._latencies[key].extend([s.time for s in samples], [s.value * 1e3 for s in samples])

    def values(self, now: float) -> dict[str, Value]:
        """The value of each figure by its key."""
        rate = self._tokens_per_second(now)
        values = {"output": Value(number(rate, 0)) if rate else Value(NOTHING)}
        values |= {key: self._latency(key, now) for key in self._latencies}
        snapshot = self._snapshot
        if snapshot is None:
            return values | dict.fromkeys(("kv", "hits", "memory"), Value(NOTHING))
        counters, memory = snapshot.counters, snapshot.memory
        used = _used(snapshot)
        hits = number(counters.prefix_hit_rate * 100, 0) if counters.prefix_queries else NOTHING
        limit = number(memory.plan.limit / GIB, 1) if memory.plan.limit else NOTHING
        values |= {
            "kv": Value(number(snapshot.kv_usage * 100, 0)),
            "hits": Value(hits),
            "memory": Value(f"{number(used / GIB, 1)} / {limit}", more=placement_text(snapshot)),
        }
        for key, part in _PARTS.items():
            if words := not_reported(snapshot, part):
                values[key] = Value(NOTHING, why_not=words)
        return values

    def _forget_counts(self, now: float) -> None:
        """Keep one count from before the span as the rate's start."""
        while len(self._counted) > 1 and self._counted[1][0] <= now - RATE_SPAN_S:
            self._counted.popleft()

    def _tokens_per_second(self, now: float) -> float:
        self._forget_counts(now)
        if not self._counted:
            return 0.0
        (begin, before), (_, tokens) = self._counted[0], self._counted[-1]
        return (tokens - before) / min(max(now - begin, 0.1), RATE_SPAN_S)

    def _latency(self, key: str, now: float) -> Value:
        ring = self._latencies[key]
        recent = ring.between(now - LATENCY_SPAN_S, math.inf)
        is_current = len(recent) > 0
        found = percentiles(recent if is_current else ring.values[-FEWEST_FOR_P99:])
        if not found.num_samples:
            return Value(NOTHING)
        if key == "ttft":
            return Value(figure(found.p50), is_current)
        p99 = figure(found.p99) if found.num_samples >= FEWEST_FOR_P99 else NOTHING
        return Value(f"{figure(found.p50)} / {p99}", is_current)


def _used(snapshot: EngineSnapshot) -> int:
    """Bytes of the process, or the sum of the engine's where the system does not report it."""
    memory = snapshot.memory
    return memory.process or memory.weights + memory.kv_cache + memory.other


def placement_text(snapshot: EngineSnapshot) -> str:
    """Placement of a model on several devices; "" for one device."""
    memory, model = snapshot.memory, snapshot.model
    if model.num_gpus > 1:
        parallel = "tensor" if model.num_ranks > 1 else "pipeline"
        return f"Memory of {model.device} only; {parallel} parallelism on {model.num_gpus} GPUs"
    if not memory.plan.host_layers:
        return ""
    return (
        f"on {snapshot.model.device}; CPU offload: "
        f"{bytes_text(memory.host_weights)} of weights, "
        f"{bytes_text(memory.host_kv_cache)} of KV cache in RAM"
    )


def precision_text(snapshot: EngineSnapshot) -> str:
    """BF16; BF16 · INT8 weights; BF16, KV INT8; BF16, K INT8, V BF16."""
    plan = snapshot.memory.plan
    kv = kv_precision_text(plan.key_dtype, plan.value_dtype)
    own = precision_name(snapshot.model.dtype)
    plain = own if kv in ("", f"KV {own}") else f"{own}, {kv}"
    return " · ".join(filter(None, (plain, weights_text(snapshot.model.quantization))))


def device_text(snapshot: EngineSnapshot) -> str:
    """cpu, 2 threads; cuda:0, H200; cuda:0, TP 2, H200; cuda:0, PP 2, H200; cuda:0 20/32 layers,
    H200; or the server's make."""
    device, threads = snapshot.model.device, getattr(snapshot.config, "num_threads", None)
    several = parallel_text(snapshot.model)
    if device.startswith("cuda"):
        name = snapshot.model.device_name
        in_ram, count = snapshot.memory.plan.host_layers, snapshot.model.num_layers
        if in_ram:
            device += f" {count - in_ram}/{count} layers"
        if in_ram or several:
            name = name.partition(",")[0]  # without the CPU and the kind of parallelism
        name = name.removeprefix(f"{snapshot.model.num_gpus} x ")
        name = name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        return ", ".join(filter(None, (device, several, name)))
    has_threads = device == "cpu" and threads
    words = f"{threads} thread{'' if threads == 1 else 's'}" if has_threads else ""
    return ", ".join(filter(None, (device, several, words)))


def parallel_text(model: ModelInfo) -> str:
    """TP 2; PP 2; "" on one device."""
    if model.num_stages > 1:
        return f"PP {model.num_stages}"
    return f"TP {model.num_ranks}" if model.num_ranks > 1 else ""


def state_text(snapshot: EngineSnapshot) -> tuple[str, StateKind]:
    """Running, waiting and preempted requests."""
    running, waiting = snapshot.num_running, snapshot.num_waiting
    preempted = sum(one.state is RequestState.PREEMPTED for one in snapshot.requests)
    if not running + waiting:
        return "Ready", "idle"
    of_them = f" ({preempted} preempted)" if preempted else ""
    return f"{running} running · {waiting} waiting{of_them}", "busy"
