"""How the leading figures went over the last minute, for the small lines below them. No Qt."""

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

from engine.snapshot import EngineSnapshot, MemoryPlan, ModelInfo, Part, RequestState, Sample
from widgets.controls.text import untold
from widgets.plot.series import FEWEST_FOR_P99, Floats, RingBuffer, figure, number, percentiles

SPAN_S = 60.0
STEP_S = 1.0
"""Distance of two points: what is drawn is some 80 pixels wide."""
_PAUSE_S = 10.0  # longer than a step of a large model on a small machine
_KEPT = 2 * round(SPAN_S / STEP_S)


class StatTrends:
    """One point of each figure a second. NaN: there was nothing to measure, a gap."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._rings = {key: RingBuffer(_KEPT) for key in keys}
        self._last = -math.inf

    @property
    def newest(self) -> float:
        """Time of the newest point; minus infinity before any."""
        return self._last

    def is_due(self, at: float) -> bool:
        """Whether it is time for the next point."""
        return at - self._last >= STEP_S

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """A point of each figure; one that `values` leaves out has a gap."""
        self._last = at
        for key, ring in self._rings.items():
            ring.append(at, values.get(key, math.nan))

    def clear(self) -> None:
        self._last = -math.inf
        for ring in self._rings.values():
            ring.clear()

    def points(self, key: str) -> tuple[Floats, Floats]:
        """Of the last minute before the newest point: places from 0 to 1, and values. A pause
        without points is a gap as well."""
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
        return  # a dot says nothing
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

NOTHING = "–"
GIB = 2**30
LATENCY_SPAN_S = 120.0
RATE_SPAN_S = 3.0
TREND_SPAN_S = 5.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One leading figure. Its place is made for `template`, or for the widest value that it ever
    had: it may grow but does not jump to and fro. Narrow windows drop the figure with the highest
    `drop` first. The line below it is in `color`, and reaches up to `top` at least."""

    key: str
    label: str
    unit: str
    template: str
    drop: int
    color: str
    top: float
    tip: str


FIGURES = (
    Figure("output", "Output", "tok/s", "000", 3, "tokens_out", 1.0,
           "tokens generated per second, now"),
    Figure("ttft", "TTFT p50", "ms", "0,000", 2, "p50", 1.0,
           "arrival to first token, median of the last 2 minutes"),
    Figure("itl", "ITL p50 / p99", "ms", "00 / 00", 1, "p50", 1.0,
           "gap between output tokens, median and 99th percentile of the last 2 minutes\n"
           f"({NOTHING} for the p99 of fewer than {FEWEST_FOR_P99} gaps)"),
    Figure("kv", "KV cache", "%", "100", 5, "kv_usage", 100.0, "KV blocks that requests hold"),
    Figure("hits", "Prefix hits", "%", "100", 6, "prefix_hits", 100.0,
           "prompt tokens found in the prefix cache since the engine was started"),
    Figure("memory", "Memory", "GiB", "0.0 / 0.0", 4, "other", 0.1,
           "memory of this process / what the engine may use"),
)  # fmt: skip


class Value(NamedTuple):
    """A figure's value as text; not current: measured a while ago, nothing newer since. why_not:
    why there is none. more: what there is to say of it now beside what it is."""

    text: str
    is_current: bool = True
    why_not: str = ""
    more: str = ""


_PARTS = {"kv": Part.KV_USAGE, "hits": Part.PREFIX_CACHE, "memory": Part.MEMORY}
"""What some figures are made of."""


class _Counted(NamedTuple):
    time: float
    tokens: int


class StatFigures:
    """Takes snapshots; `values(now)` gives the text of every figure. `now` is engine time."""

    def __init__(self) -> None:
        self._latencies = {"ttft": RingBuffer(2048), "itl": RingBuffer(8192)}
        self._counted: deque[_Counted] = deque()
        self._snapshot: EngineSnapshot | None = None
        self.trends = StatTrends(tuple(one.key for one in FIGURES))

    def update(self, snapshot: EngineSnapshot) -> None:
        """Take the engine's state and its new samples. Cheap."""
        self._snapshot = snapshot
        self._add("ttft", snapshot.ttft)
        self._add("itl", snapshot.itl)
        tokens = snapshot.counters.generation_tokens
        if self._counted and tokens < self._counted[-1].tokens:
            self._counted.clear()  # the engine was started again
        self._counted.append(_Counted(snapshot.time, tokens))
        self._forget_counts(snapshot.time)
        if self.trends.is_due(snapshot.time):
            self.trends.add(snapshot.time, self._numbers(snapshot))

    def clear(self) -> None:
        """Forget everything: no model is loaded."""
        self._snapshot = None
        self._counted.clear()
        self.trends.clear()
        for ring in self._latencies.values():
            ring.clear()

    def _numbers(self, snapshot: EngineSnapshot) -> dict[str, float]:
        """The figures of the last seconds: what changed shows sooner than in those that are
        printed."""
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
        values = {"output": self._output_rate(now)}
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
            "memory": Value(f"{number(used / GIB, 1)} / {limit}", more=elsewhere_words(snapshot)),
        }
        for key, part in _PARTS.items():
            if words := untold(snapshot, part):
                values[key] = Value(NOTHING, why_not=words)
        return values

    def _forget_counts(self, now: float) -> None:
        """Keep one count from before the span: the span's rate starts there."""
        while len(self._counted) > 1 and self._counted[1].time <= now - RATE_SPAN_S:
            self._counted.popleft()

    def _output_rate(self, now: float) -> Value:
        rate = self._tokens_per_second(now)
        return Value(number(rate, 0)) if rate else Value(NOTHING)

    def _tokens_per_second(self, now: float) -> float:
        self._forget_counts(now)
        tokens = self._counted[-1].tokens - self._counted[0].tokens if self._counted else 0
        if not tokens:
            return 0.0
        return tokens / min(max(now - self._counted[0].time, 0.1), RATE_SPAN_S)

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
    """Bytes that the process holds; what the engine knows of where the system does not say."""
    memory = snapshot.memory
    return memory.process or memory.weights + memory.kv_cache + memory.other


def elsewhere_words(snapshot: EngineSnapshot) -> str:
    """Of a model that is divided, what is not on the GPU; "" for one on one device."""
    memory, model = snapshot.memory, snapshot.model
    if model.num_gpus > 1:
        part = "a part" if model.num_ranks > 1 else "some of the layers"
        return f"all of this on {model.device}, one of {model.num_gpus} GPUs with {part} each"
    if not memory.plan.host_layers:
        return ""
    return (
        f"all of this on {snapshot.model.device}; in RAM "
        f"{number(memory.host_weights / GIB, 2)} GiB of weights and "
        f"{number(memory.host_kv_cache / GIB, 2)} GiB of KV cache, of layers that the CPU computes"
    )


def short_dtype(dtype: str) -> str:
    """bfloat16 as bf16, float32 as fp32."""
    return dtype.removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def precision_words(snapshot: EngineSnapshot) -> str:
    """bf16; bf16 · int8 weights; bf16, KV int8; bf16, K int8, V bf16."""
    plan = snapshot.memory.plan
    kv = kv_precision(plan)
    own = short_dtype(snapshot.model.dtype)
    plain = own if kv in ("", f"KV {own}") else f"{own}, {kv}"
    return " · ".join(filter(None, (plain, weights_words(snapshot.model))))


def kv_precision(plan: MemoryPlan) -> str:
    """KV int8; K int8, V bf16; nothing where it is not known."""
    keys, values = short_dtype(plan.key_dtype), short_dtype(plan.value_dtype)
    if keys == values:
        return f"KV {keys}" if keys else ""
    return f"K {keys}, V {values}"


def weights_words(model: ModelInfo) -> str:
    """How linear layers are held: int8 weights; int4 weights (groups of 128); nothing for plain
    numbers."""
    name, _, details = model.quantization.partition(", ")
    return f"{name} weights" + (f" ({details})" if details else "") if name else ""


def device_words(snapshot: EngineSnapshot) -> str:
    """cpu, 2 threads; cpu, 2 ranks, 4 threads; cuda:0, H200; cuda:0, 2 ranks, H200; cuda:0, 2
    stages, H200; cuda:0 20/32 layers, H200; or who serves."""
    device, threads = snapshot.model.device, getattr(snapshot.config, "num_threads", None)
    several = several_words(snapshot.model)
    if device.startswith("cuda"):
        name = snapshot.model.device_name
        in_ram, count = snapshot.memory.plan.host_layers, snapshot.model.num_layers
        if in_ram:
            device += f" {count - in_ram}/{count} layers"
        if in_ram or several:
            name = name.partition(",")[0]  # without the CPU, or how they compute
        name = name.removeprefix(f"{snapshot.model.num_gpus} x ")
        name = name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        return ", ".join(filter(None, (device, several, name)))
    has_threads = device == "cpu" and threads
    words = f"{threads} thread{'' if threads == 1 else 's'}" if has_threads else ""
    return ", ".join(filter(None, (device, several, words)))


def several_words(model: ModelInfo) -> str:
    """2 ranks; 2 stages; nothing where one computes all."""
    if model.num_stages > 1:
        return f"{model.num_stages} stages"
    return f"{model.num_ranks} ranks" if model.num_ranks > 1 else ""


def state_words(snapshot: EngineSnapshot) -> tuple[str, StateKind]:
    """What the requests are doing, and whether that is anything."""
    if snapshot.told is not None:
        running, waiting = snapshot.num_running, snapshot.num_waiting
        return (f"{running} running · {waiting} waiting", "busy") if running + waiting else (
            "Ready", "idle",
        )  # fmt: skip
    states = [request.state for request in snapshot.requests]
    running = states.count(RequestState.RUNNING)
    preempted = states.count(RequestState.PREEMPTED)
    waiting = states.count(RequestState.WAITING) + preempted  # as in charts and settings
    if not running + waiting:
        return "Ready", "idle"
    of_them = f", {preempted} of them preempted" if preempted else ""
    return f"{running} running · {waiting} waiting{of_them}", "busy"
