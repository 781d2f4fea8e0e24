"""The strip along the top of the window: what runs, and its leading figures."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolTip, QWidget

from engine.snapshot import EngineSnapshot, RequestState, Sample
from widgets.charts.clock import RedrawClock
from widgets.charts.percentiles import FEWEST_FOR_P99, percentiles
from widgets.charts.ring import RingBuffer
from widgets.charts.scale import figure, number
from widgets.charts.text import TextPen
from widgets.theme import (
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_6,
    figure_font,
    theme,
    theme_notifier,
    ui_font,
)

StateKind = Literal["idle", "busy", "loading", "error"]

NOTHING = "–"
GIB = 2**30
LATENCY_SPAN_S = 120.0
RATE_SPAN_S = 3.0
_LEAST_WORDS = 200  # pixels that model and state keep before figures give way


@dataclass(frozen=True, slots=True)
class Figure:
    """One leading figure. Its place is made for `template`, or for the widest value that it ever
    had: it may grow but does not jump to and fro. Narrow windows drop the figure with the highest
    `drop` first."""

    key: str
    label: str
    unit: str
    template: str
    drop: int
    tip: str


FIGURES = (
    Figure("output", "Output", "tok/s", "000", 3, "Tokens generated per second, now"),
    Figure("ttft", "TTFT p50", "ms", "0,000", 2,
           "Arrival to first token: median of the last 2 minutes"),
    Figure("itl", "ITL p50 / p99", "ms", "00 / 00", 1,
           "Gap between output tokens: median and 99th percentile of the last 2 minutes\n"
           f"({NOTHING} for p99 of fewer than {FEWEST_FOR_P99} gaps)"),
    Figure("kv", "KV cache", "%", "100", 5, "KV blocks that requests hold"),
    Figure("hits", "Prefix hits", "%", "100", 6,
           "Prompt tokens found in the prefix cache, since the engine was started"),
    Figure("memory", "Memory", "GiB", "0.0 / 0.0", 4,
           "Memory of this process / what the engine may use"),
)  # fmt: skip


class _Value(NamedTuple):
    text: str
    is_current: bool = True  # else it is from a while ago, and drawn muted


class _Counted(NamedTuple):
    time: float
    tokens: int


class StatStrip(QFrame):
    """Model, precision and device; the state in words; the figures, as many as fit.

    `update_snapshot` only takes the snapshot; the strip is painted when `clock` says so. The state
    is what was said last, by `set_state` or by a snapshot.
    """

    def __init__(self, clock: RedrawClock | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.clock = clock or RedrawClock(parent=self)
        self.setProperty("panel", True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Engine status")
        self._title = "No model"
        self._state = "Open a model to start"
        self._kind: StateKind = "idle"
        self._latencies = {"ttft": RingBuffer(2048), "itl": RingBuffer(8192)}
        self._counted: deque[_Counted] = deque()
        self._snapshot: EngineSnapshot | None = None
        self._offset = 0.0  # the engine's clock less ours
        self._values = {f.key: _Value(NOTHING) for f in FIGURES}
        self._templates = {f.key: f.template for f in FIGURES}
        self._painted: dict[str, _Value] = {}
        self._dirty = True
        self._take_fonts()
        theme_notifier().changed.connect(self._on_theme_changed)
        self.clock.add(self)

    # What is shown ----------------------------------------------------------------------------

    def set_model(self, name: str, precision: str = "", device: str = "") -> None:
        """First line: what is loaded."""
        self._title = "  ·  ".join(part for part in (name, precision, device) if part)
        self._changed()

    def set_state(self, text: str, kind: StateKind = "idle") -> None:
        """Second line: a dot whose colour says the kind, and words."""
        self._state, self._kind = text, kind
        self._changed()

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take the engine's state and its new samples."""
        self._snapshot = snapshot
        self._offset = snapshot.time - time.perf_counter()
        self._add("ttft", snapshot.ttft)
        self._add("itl", snapshot.itl)
        tokens = snapshot.counters.generation_tokens
        if self._counted and tokens < self._counted[-1].tokens:
            self._counted.clear()  # the engine was started again
        self._counted.append(_Counted(snapshot.time, tokens))
        model, threads = snapshot.model, getattr(snapshot.config, "num_threads", None)
        device = model.device
        if device == "cpu" and threads:
            device = f"cpu, {threads} thread{'s' if threads != 1 else ''}"
        self._title = f"{model.name}  ·  {short_dtype(model.dtype)}  ·  {device}"
        self._state, self._kind = state_words(snapshot)
        self._changed()

    def clear(self) -> None:
        """No model is loaded."""
        self._snapshot = None
        self._counted.clear()
        for ring in self._latencies.values():
            ring.clear()
        self.set_model("No model")
        self.set_state("Open a model to start")

    @property
    def title(self) -> str:
        return self._title

    @property
    def state(self) -> tuple[str, StateKind]:
        return self._state, self._kind

    def value_text(self, key: str) -> str:
        """What a figure shows, without its unit."""
        self._find_values()
        return self._values[key].text

    def _add(self, key: str, samples: Sequence[Sample]) -> None:
        if samples:
            self._latencies[key].extend([s.time for s in samples], [s.value * 1e3 for s in samples])

    def _changed(self) -> None:
        self._dirty = True
        if self.isVisible():
            self.clock.wake()

    # Figures ----------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() + self._offset

    def wants_redraw(self) -> bool:
        """Something new, or a rate that has to come to rest."""
        return self._dirty or self._values["output"].text != NOTHING

    def redraw(self) -> None:
        self._dirty = False
        self._find_values()
        for key, value in self._values.items():
            if len(value.text) > len(self._templates[key]):
                self._templates[key] = re.sub(r"\d", "0", value.text)
        shown = self.text()
        if shown != self.accessibleDescription() or self._values != self._painted:
            self.setAccessibleDescription(shown)
            self.update()

    def _find_values(self) -> None:
        now, snapshot = self._now(), self._snapshot
        self._values["output"] = self._output_rate(now)
        self._values["ttft"] = self._latency("ttft", now)
        self._values["itl"] = self._latency("itl", now)
        if snapshot is None:
            for key in ("kv", "hits", "memory"):
                self._values[key] = _Value(NOTHING)
            return
        counters, memory = snapshot.counters, snapshot.memory
        hits = number(counters.prefix_hit_rate * 100, 0) if counters.prefix_queries else NOTHING
        used = memory.process or memory.weights + memory.kv_cache + memory.other
        self._values["kv"] = _Value(number(snapshot.kv_usage * 100, 0))
        self._values["hits"] = _Value(hits)
        limit = number(memory.plan.limit / GIB, 1) if memory.plan.limit else NOTHING
        self._values["memory"] = _Value(f"{number(used / GIB, 1)} / {limit}")

    def _output_rate(self, now: float) -> _Value:
        counted = self._counted
        while len(counted) > 1 and counted[1].time <= now - RATE_SPAN_S:
            counted.popleft()
        tokens = counted[-1].tokens - counted[0].tokens if counted else 0
        if not tokens:
            return _Value(NOTHING)
        # from the count before the span on, but no further than the span
        seconds = min(max(now - counted[0].time, 0.1), RATE_SPAN_S)
        return _Value(number(tokens / seconds, 0))

    def _latency(self, key: str, now: float) -> _Value:
        ring = self._latencies[key]
        recent = ring.between(now - LATENCY_SPAN_S, math.inf)
        is_current = len(recent) > 0
        found = percentiles(recent if is_current else ring.values[-FEWEST_FOR_P99:])
        if not found.num_samples:
            return _Value(NOTHING)
        if key == "ttft":
            return _Value(figure(found.p50), is_current)
        p99 = figure(found.p99) if found.num_samples >= FEWEST_FOR_P99 else NOTHING
        return _Value(f"{figure(found.p50)} / {p99}", is_current)

    def text(self) -> str:
        """Everything in words, as a screen reader should say it."""
        figures = [f"{f.label} {self._values[f.key].text} {f.unit}" for f in FIGURES]
        return "; ".join([self._title, self._state, *figures])

    # Layout and painting ----------------------------------------------------------------------

    def _take_fonts(self) -> None:
        self._label_pen = TextPen(ui_font("small"))
        self._value_pen = TextPen(figure_font("large", QFont.Weight.DemiBold))
        self._unit_pen = TextPen(ui_font("small", QFont.Weight.DemiBold))
        self._title_font = ui_font("body", QFont.Weight.DemiBold)
        self._state_font = figure_font("body")
        value = QFontMetricsF(self._value_pen.font)
        label = QFontMetricsF(self._label_pen.font)
        self._line_heights = (label.height(), value.height())
        # the unit stands on the value's base line
        self._unit_drop = (value.ascent() - value.descent()) / 2 - (
            (label.ascent() - label.descent()) / 2
        )
        self.updateGeometry()

    def _on_theme_changed(self) -> None:
        self._take_fonts()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(900, round(sum(self._line_heights)) + 2 * SPACE_2)

    def minimumSizeHint(self) -> QSize:
        return QSize(_LEAST_WORDS, self.sizeHint().height())

    def _width_of(self, one: Figure) -> float:
        value = self._value_pen.width(self._templates[one.key]) + 5 + self._unit_pen.width(one.unit)
        return math.ceil(max(value, self._label_pen.width(one.label)))

    def shown_figures(self) -> list[tuple[Figure, QRectF]]:
        """The figures that fit, each with its place."""
        shown = list(FIGURES)
        room = self.width() - 2 * SPACE_3 - _LEAST_WORDS
        while shown and sum(self._width_of(f) + SPACE_6 for f in shown) > room:
            shown.remove(max(shown, key=lambda f: f.drop))
        right = float(self.width() - SPACE_4)
        placed = []
        for one in reversed(shown):
            width = self._width_of(one)
            placed.append((one, QRectF(right - width, 0, width, self.height())))
            right -= width + SPACE_6
        return placed[::-1]

    def paintEvent(self, event: QPaintEvent) -> None:
        start = time.perf_counter()
        self._painted = dict(self._values)
        super().paintEvent(event)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        placed = self.shown_figures()
        words_end = placed[0][1].left() - SPACE_4 if placed else self.width() - SPACE_4
        self._draw_words(painter, words_end)
        for one, rect in placed:
            self._draw_figure(painter, one, rect)
        painter.end()
        self.clock.charge(time.perf_counter() - start)

    def _rows(self) -> tuple[QRectF, QRectF]:
        small, large = self._line_heights
        top = (self.height() - small - large) / 2
        return QRectF(0, top, 0, small), QRectF(0, top + small, 0, large)

    def _draw_words(self, painter: QPainter, right: float) -> None:
        table = theme()
        upper, lower = self._rows()
        left = float(SPACE_4)
        for row, font, text, x in (
            (upper, self._title_font, self._title, left),
            (lower, self._state_font, self._state, left + SPACE_4),
        ):
            painter.setFont(font)
            painter.setPen(table.color("text"))
            metrics = QFontMetricsF(font)
            text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, right - x)
            place = QRectF(x, row.center().y() - metrics.height() / 2, right - x, metrics.height())
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(table.color(f"state_{self._kind}"))
        painter.drawEllipse(QRectF(left, lower.center().y() - 4, 8, 8))

    def _draw_figure(self, painter: QPainter, one: Figure, rect: QRectF) -> None:
        table = theme()
        upper, lower = self._rows()
        upper.setLeft(rect.left())
        lower.setLeft(rect.left())
        painter.setPen(table.color("text_muted"))
        self._label_pen.left(painter, upper, one.label)
        value = self._values[one.key]
        is_nothing = value.text == NOTHING
        dim = is_nothing or not value.is_current
        painter.setPen(QColor(table.text_muted if dim else table.text))
        self._value_pen.left(painter, lower, value.text)
        painter.setPen(table.color("text_muted"))
        unit = lower.translated(self._value_pen.width(value.text) + 5, self._unit_drop)
        self._unit_pen.left(painter, unit, one.unit)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            tip = next(
                (f"{f.label}: {f.tip}" for f, place in self.shown_figures()
                 if place.contains(event.pos())),
                f"{self._title}\n{self._state}",
            )  # fmt: skip
            QToolTip.showText(event.globalPos(), tip, self)
            return True
        return super().event(event)


def short_dtype(dtype: str) -> str:
    """bfloat16 as bf16, float32 as fp32."""
    return dtype.removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def state_words(snapshot: EngineSnapshot) -> tuple[str, StateKind]:
    """What the requests are doing, and whether that is anything."""
    states = [request.state for request in snapshot.requests]
    running = states.count(RequestState.RUNNING)
    waiting = states.count(RequestState.WAITING)
    preempted = states.count(RequestState.PREEMPTED)
    if not running + waiting + preempted:
        return "Ready", "idle"
    return f"{running} running · {waiting} waiting · {preempted} preempted", "busy"
