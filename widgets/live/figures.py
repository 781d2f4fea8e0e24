"""The strip's figures: values, sparklines, and texts for device, precision and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

from engine.snapshot import EngineSnapshot, RequestState
from engine.snapshot.metrics import METRICS, Metric
from engine.units import (
    NOTHING,
    bytes_text,
    counted,
    duration_text,
    figure,
    kv_precision_text,
    latency_texts,
    number,
    precision_name,
    weights_text,
)
from widgets.controls.text import not_reported
from widgets.live.metric_store import GIB, MISSING, RATE_S, SPAN_S, MetricStore, Share, memory_used
from widgets.live.statistics import Figures, Shown
from widgets.plot.series import FEWEST_FOR_P99, Floats


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
State = tuple[str, StateKind]

LATENCY_SPAN = f"over {duration_text(SPAN_S)} or since the last change"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. Its width fits `template` or the widest value so far: it grows but never jumps.
    Narrow windows drop the highest `drop` first. `trend`: colour of its sparkline, "" for none.
    `statistic` and `span` add to the metric's title and description."""

    key: str
    metric: Metric
    template: str
    drop: int
    trend: str = ""
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
    Figure("output", METRICS["output"], "000", 3, "tokens_out",
           span=f" by all requests, mean of the last {duration_text(RATE_S)}, idle time included"),
    Figure("ttft", METRICS["ttft"], "0,000", 2, "p50", "p50", f", median {LATENCY_SPAN}"),
    Figure("itl", METRICS["itl"], "00 / 00", 1, "p50", "p50 / p99",
           f", {LATENCY_SPAN}\n({NOTHING}: fewer than {FEWEST_FOR_P99} samples)"),
    Figure("kv", METRICS["kv_usage"], "100", 5),
    Figure("hits", METRICS["prefix_hit_rate"], "100", 6, span=f" {LATENCY_SPAN}"),
    Figure("memory", METRICS["memory"], "0.0 / 0.0", 4, span=" and the total of the device"),
)  # fmt: skip


class Value(NamedTuple):
    """A figure's text. `is_firm` False: of few samples, of a busy machine, older than the span, or
    the rate of an idle engine. `why_not`: why it is missing. `more`: details for the tooltip.
    `few`: " (n=7)" of few samples, for a card. `unit`: another than the figure's."""

    text: str
    is_firm: bool = True
    why_not: str = ""
    more: str = ""
    few: str = ""
    unit: str = ""


EMPTY = Value(NOTHING, is_firm=False)


def header_values(store: MetricStore, now: float) -> dict[str, Value]:
    """The value of each figure by its key. `now` is engine time."""
    values = {
        "output": _output(store, now),
        "ttft": _latency(store.latency("ttft"), now, with_p99=False),
        "itl": _latency(store.latency("itl"), now, with_p99=True),
    }
    snapshot = store.snapshot
    if snapshot is None:
        return dict.fromkeys((one.key for one in FIGURES), EMPTY)
    share, total = store.prefix_hits(), snapshot.memory.total
    of_total = number(total / GIB, 1) if total else NOTHING
    used = number(memory_used(snapshot) / GIB, 1)
    values |= {
        "kv": Value(number(snapshot.kv_usage * 100, 0)),
        "hits": EMPTY if share is None else _share(share, now),
        "memory": Value(f"{used} / {of_total}", more=placement_text(snapshot)),
    }
    for key, part in MISSING.items():
        if words := not_reported(snapshot, part):
            values[key] = Value(NOTHING, why_not=words)
    return values


def changes_by_itself(values: Mapping[str, Value]) -> bool:
    """Whether figures of the header change without a snapshot: a rate is still falling, or a
    latency grows old."""
    ages = any(values[key].is_firm for key in ("ttft", "itl", "hits"))
    return ages or values["output"].text not in (NOTHING, "0")


def latency_text(ms: float | None) -> str:
    """ "7.4", "63", "940": with tenths below ten only."""
    return figure(ms, 2)


def _output(store: MetricStore, now: float) -> Value:
    rate = store.rate("out", now)
    if rate is None:
        return EMPTY
    text, snapshot = number(rate, 0), store.snapshot
    is_working = snapshot is not None and snapshot.num_running > 0
    return Value(text, is_firm=is_working or text != "0")


def _share(share: Share, now: float) -> Value:
    more = age_text(share.newest, now)
    return Value(number(share.rate * 100, 0), is_firm=not more, more=more)


def _latency(shown: Shown, now: float, *, with_p99: bool) -> Value:
    if shown.p50 is None:
        return EMPTY
    known = [shown.p50, shown.p99] if with_p99 else [shown.p50]
    words, unit = latency_texts(known)
    age = age_text(shown.newest, now)
    return Value(
        " / ".join(words), not (shown.is_few or shown.is_busy_machine or age),
        more="\n".join(filter(None, (reservations(shown), age))),
        few=f" (n={shown.num_samples})" if shown.is_few else "", unit="" if unit == "ms" else unit,
    )  # fmt: skip


def reservations(figures: Figures) -> str:
    """The number of samples, and what else the machine did meanwhile."""
    count = counted(figures.num_samples, "sample")
    lines = [f"{count}: a rough figure" if figures.is_few else count]
    if figures.is_busy_machine:
        lines.append(f"Other programs used {figures.other_cores:.1f} cores")
    return "\n".join(lines)


def age_text(newest: float, now: float) -> str:
    """Of a statistic whose newest sample is older than its span; "" for a current one."""
    age = now - newest
    return f"Newest sample: {duration_text(age, digits=2)} ago" if age > SPAN_S else ""


def placement_text(snapshot: EngineSnapshot) -> str:
    """Placement of a model with CPU offload; "" for one device."""
    memory = snapshot.memory
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
    """cpu, 2 threads; cuda:0, H200; cuda:0 20/32 layers, H200; or the server's make."""
    device, threads = snapshot.model.device, getattr(snapshot.config, "num_threads", None)
    if device.startswith("cuda"):
        name = snapshot.model.device_name
        in_ram, count = snapshot.memory.plan.host_layers, snapshot.model.num_layers
        if in_ram:
            device += f" {count - in_ram}/{count} layers"
            name = name.partition(",")[0]  # without the CPU
        name = name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        return ", ".join(filter(None, (device, name)))
    has_threads = device == "cpu" and threads
    words = f"{threads} thread{'' if threads == 1 else 's'}" if has_threads else ""
    return ", ".join(filter(None, (device, words)))


def state_text(snapshot: EngineSnapshot) -> State:
    """Running, waiting and preempted requests."""
    running, waiting = snapshot.num_running, snapshot.num_waiting
    preempted = sum(one.state is RequestState.PREEMPTED for one in snapshot.requests)
    if not running + waiting:
        return "Ready", "idle"
    of_them = f" ({preempted} preempted)" if preempted else ""
    return f"{running} running · {waiting} waiting{of_them}", "busy"
