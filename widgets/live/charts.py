"""`LiveCharts`: memory, TTFT, ITL, throughput, requests, KV cache; with a GPU also its load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from numpy.typing import ArrayLike
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from engine.snapshot import EngineSnapshot, GpuFigures, Part, StepRecord, undivided
from engine.snapshot.metrics import METRICS
from engine.units import bytes_text, duration_text, number, whole
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import dressed, vbox
from widgets.controls.text import not_reported
from widgets.live.chart_grid import grid_for
from widgets.live.gpu_charts import GpuCharts
from widgets.live.metric_store import GIB, MetricStore, memory_parts
from widgets.live.store_charts import SILENCE_S, CacheChart, LatencyChart, TokenRateChart
from widgets.plot.clock import RedrawClock
from widgets.plot.link import ChartGroup, LinkedCursor
from widgets.plot.marks import MarkLog, SpanLog, SpanPicker
from widgets.plot.series import Mark, MarkKind, Series, SeriesKind, predicted
from widgets.plot.stacked_chart import StackedAreaChart, area
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import SPACE_2, theme_notifier

_GAUGE_INTERVAL_S = 0.2  # least time between two points of a gauge
_MAY_BE_MISSING = ("tokens", "requests", "cache", "memory")
ORDER = ("memory", "ttft", "itl", "tokens", "requests", "cache")


class LiveCharts(QWidget):
    """A grid of time charts of `store`, which is updated with each snapshot first.

    `update_snapshot` only appends; `clock` decides when to draw and measures the cost
    (`clock.redraw_ms_per_s`). Several instances may share `marks` and `cursor`. `leads`: where not
    all charts fit at a readable size, the first four fill the view and the others lie below.
    """

    span_picked = Signal(float, float)  # start and end, on the engine's clock
    window_changed = Signal(float)  # the user chose another length of time, in seconds

    def __init__(
        self,
        store: MetricStore,
        clock: RedrawClock | None = None,
        marks: MarkLog | None = None,
        order: Sequence[str] = ORDER,
        cursor: LinkedCursor | None = None,
        parent: QWidget | None = None,
        *,
        leads: bool = False,
    ) -> None:
        super().__init__(parent)
        self.store, self.leads = store, leads
        self.clock = clock or RedrawClock(parent=self)
        self.marks = marks or MarkLog(self)
        self.group = ChartGroup(cursor, parent=self)
        self._kept_at = self._stretch_began = -math.inf
        self._was_idle, self._fullest = True, 0.0
        self._not_reported: dict[str, str] = {}  # chart: note
        now = store.time.now
        self.memory = _memory_chart(self.clock, now)
        self.ttft = LatencyChart(
            METRICS["ttft"].title, store=store, key="ttft", clock=self.clock, time_source=now,
            empty_text="TTFT appears with the first token. Send a message or start a background "
            "load.",
        )  # fmt: skip
        self.itl = LatencyChart(
            METRICS["itl"].title, store=store, key="itl", clock=self.clock, time_source=now,
            empty_text="ITL appears with the second token. Send a message or start a background "
            "load.",
        )  # fmt: skip
        self.tokens = TokenRateChart(store, self.clock, now)
        self.requests = _requests_chart(self.clock, now)
        self.cache = CacheChart(store, self.clock, now)
        self.charts: tuple[TimeChart, ...] = tuple(getattr(self, name) for name in order)
        self._build()
        self._align_margins()
        theme_notifier().changed.connect(self._arrange)
        theme_notifier().changed.connect(self._align_margins)
        self._gpu: GpuCharts | None = None
        self._spans: SpanLog | None = None
        self._window_s = 120.0
        for chart in self.charts:
            self._adopt(chart)
        self._empty_texts = {name: getattr(self, name).empty_text for name in _MAY_BE_MISSING}
        self.set_window(self._window_s)

    def _adopt(self, chart: TimeChart) -> None:
        """Share marks, spans, cursor and the time range with the other charts."""
        chart.window_changed.connect(self.set_window)
        chart.window_changed.connect(self.window_changed)
        chart.share_marks(self.marks)
        chart.join(self.group)
        if self._spans is not None:
            self._share_spans(chart, self._spans)

    def _build(self) -> None:
        self._inner = dressed(QWidget(), bare=True)
        self._grid = QGridLayout(self._inner)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACE_2)
        area = scroll_area(self._inner)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the charts in it have it
        area.viewport().setAutoFillBackground(False)
        self._inner.setAutoFillBackground(False)
        vbox(area, of=self)
        self._columns, self._row_height = 0, 0
        self._arrange()

    # Layout -----------------------------------------------------------------------------------

    def _align_margins(self) -> None:
        """Equal room for values, so that times line up between charts."""
        names, numbers = zip(*(chart.view.label_widths for chart in self.charts), strict=True)
        for chart in self.charts:
            chart.view.align_labels((max(names), max(numbers)))

    @property
    def num_columns(self) -> int:
        return self._columns

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()
        self._align_margins()

    def _arrange(self) -> None:
        count = len(self.charts)
        columns, height = grid_for(self.width(), self.height(), count, leads=self.leads)
        rows = -(-count // columns)
        if (columns, height) == (self._columns, self._row_height):
            return
        if columns != self._columns:
            for chart in self.charts:
                self._grid.removeWidget(chart)
            for place, chart in enumerate(self.charts):
                self._grid.addWidget(chart, place // columns, place % columns)
        self._columns, self._row_height = columns, height
        for index in range(count):
            self._grid.setColumnStretch(index, 1 if index < columns else 0)
            self._grid.setRowStretch(index, 1 if index < rows else 0)
            self._grid.setRowMinimumHeight(index, height if index < rows else 0)

    # Feeding ----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Append what is new in a snapshot. Draws nothing."""
        at = snapshot.time
        self.clock.take_snapshot()
        self._add_steps(snapshot.steps)
        self.ttft.add_samples(snapshot.ttft)
        self.itl.add_samples(snapshot.itl)
        self.tokens.request_redraw()
        is_idle = not snapshot.num_running
        if at - self._kept_at < _GAUGE_INTERVAL_S and not (is_idle or self._was_idle):
            return
        self._kept_at, self._was_idle = at, is_idle
        self._note_missing(snapshot)
        missing = snapshot.missing
        if Part.MEMORY not in missing:
            self._add_memory(snapshot)
        self.requests.append("running", at, snapshot.num_running)
        self.requests.append("waiting", at, snapshot.num_waiting)
        if Part.KV_USAGE not in missing:
            self.cache.append("kv_usage", at, snapshot.kv_usage * 100)
        if Part.PREFIX_CACHE not in missing:
            share = self.store.prefix_hits()
            self.cache.append("prefix_hits", at, math.nan if share is None else share.rate * 100)

    def _add_steps(self, steps: Sequence[StepRecord]) -> None:
        """The highest KV usage of each interval: a request may start and end between two
        snapshots."""
        for step in steps:
            if step.kv_usage is None:
                continue
            self._fullest = max(self._fullest, step.kv_usage)
            if step.end - self._stretch_began >= _GAUGE_INTERVAL_S or step is steps[-1]:
                self.cache.append("kv_usage", step.end, self._fullest * 100)
                self._stretch_began, self._fullest = step.end, 0.0

    def _note_missing(self, snapshot: EngineSnapshot) -> None:
        notes = {}
        if words := not_reported(snapshot, Part.MEMORY):
            notes["memory"] = words
        if words := not_reported(snapshot, Part.KV_USAGE, Part.PREFIX_CACHE):
            notes["cache"] = words
        elif words := not_reported(snapshot, Part.KV_USAGE):
            notes["cache"] = f"used: {words}"
        elif words := not_reported(snapshot, Part.PREFIX_CACHE):
            notes["cache"] = f"prefix hits: {words}"
        if words := not_reported(snapshot, Part.QUEUE):
            notes["requests"] = f"this window only; other clients {words}"
        if words := not_reported(snapshot, Part.TOKENS):
            notes["tokens"] = f"this window only; other clients {words}"
        if notes != self._not_reported:
            self._not_reported = notes
            self._end_lines(snapshot)
            self._show_notes()

    def _end_lines(self, snapshot: EngineSnapshot) -> None:
        """End the lines that a previous engine drew."""
        at, missing = snapshot.time, snapshot.missing
        if Part.MEMORY in missing and not self.memory.data.is_empty:
            self.memory.append_row(at, dict.fromkeys(self.memory.stacked, math.nan))
            self.memory.set_limit(None)
        for part, key in ((Part.KV_USAGE, "kv_usage"), (Part.PREFIX_CACHE, "prefix_hits")):
            if part in missing and not self.cache.data.is_empty:
                self.cache.append(key, at, math.nan)

    def _add_memory(self, snapshot: EngineSnapshot) -> None:
        memory, parts = snapshot.memory, memory_parts(snapshot)
        self.memory.append_row(snapshot.time, {key: size / GIB for key, size in parts.items()})
        if parts["kv_reserved"] > 0:
            self.memory.set_available("kv_reserved", True)
        # not the plan's: that one depends on what other programs use at each load
        self.memory.set_limit(memory.total / GIB or None)
        note = f"predicted {bytes_text(memory.plan.predicted)} with a full KV cache"
        if memory.plan.host_layers:  # the other figures are of the GPU
            note += f"; {bytes_text(memory.host_weights + memory.host_kv_cache)} in RAM"
        self.memory.set_note(note)

    def update_gpus(self, at: float, gpus: Sequence[GpuFigures]) -> None:
        """The driver's readings: total GPU memory in use, and two charts that appear with the
        first call."""
        if not gpus:
            return
        self.memory.set_available("gpu", True)
        self.memory.append("gpu", at, sum(gpu.used for gpu in undivided(gpus)) / GIB)
        if self._gpu is None:
            self._gpu = GpuCharts(self.clock, self.store.time.now)
            self._join(self._gpu.load, self._gpu.power)
        self._gpu.update(at, gpus)

    def _join(self, *charts: TimeChart) -> None:
        self.charts += charts
        for chart in charts:
            self._adopt(chart)
            chart.set_paused(self.charts[0].is_paused)
            chart.set_window(self._window_s)
        self._columns = 0
        self._arrange()
        self._align_margins()

    @property
    def now(self) -> float:
        return self.store.time.now()

    def mark(
        self, text: str, kind: MarkKind = MarkKind.SETTING, details: tuple[str, ...] = ()
    ) -> None:
        """A dashed line with `text` in every chart, at now."""
        self.marks.add(Mark(self.now, text, kind, details))

    def enable_picking(self, spans: SpanLog) -> None:
        """Let the user select time ranges (`span_picked`), and show those of `spans`."""
        self._spans = spans
        for chart in self.charts:
            self._share_spans(chart, spans)

    def _share_spans(self, chart: TimeChart, spans: SpanLog) -> None:
        chart.share_spans(spans)
        SpanPicker(chart).picked.connect(self.span_picked)

    def show_prediction(self, curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> None:
        """Times and values by chart: what would have been measured at other settings. {}: none."""
        for name in ORDER:
            chart: TimeChart = getattr(self, name)
            chart.show_prediction(*curves.get(name, ((), ())))

    def clear(self) -> None:
        self._kept_at = self._stretch_began = -math.inf
        self._fullest = 0.0
        for chart in self.charts:
            chart.clear()  # the marks with them

    @property
    def is_paused(self) -> bool:
        return self.charts[0].is_paused

    def set_paused(self, paused: bool) -> None:
        """Pause the charts; recording continues."""
        for chart in self.charts:
            chart.set_paused(paused)

    def set_window(self, seconds: float) -> None:
        self._window_s = seconds
        self._span = f"last {duration_text(seconds)}"
        for chart in self.charts:
            chart.set_window(seconds)
        self.ttft.set_note(f"time to first token · {self._span}")
        self.itl.set_note(f"inter-token latency · {self._span}")
        self._show_notes()

    def _show_notes(self) -> None:
        """The time range, or what is not reported."""
        for name in _MAY_BE_MISSING:
            chart: TimeChart = getattr(self, name)
            words = self._not_reported.get(name, "")
            if name != "memory" or words:
                chart.set_note(words or self._span)
            chart.empty_text = f"{chart.title}: {words}." if words else self._empty_texts[name]
            chart.request_redraw()


def _hundredths(value: float) -> str:
    return number(value, 2)


def _memory_chart(clock: RedrawClock, now: Callable[[], float]) -> StackedAreaChart:
    chart = StackedAreaChart(
        METRICS["memory"].title, METRICS["memory"].unit,
        (
            area("weights", "weights", "weights", text=_hundredths, silence=SILENCE_S),
            area("kv_used", "KV used", "kv_used", text=_hundredths, silence=SILENCE_S),
            area("kv_cached", "KV cached", "kv_cached", text=_hundredths, silence=SILENCE_S),
            area("kv_reserved", "KV reserved", "kv_reserved", text=_hundredths, silence=SILENCE_S,
                 tip="KV cache without tokens"),
            area("other", "other", "other", text=_hundredths, silence=SILENCE_S),
            Series("gpu", "GPU", "gpu_memory", dashed=True, hold=True, text=_hundredths),
        ),
        clock=clock, value_template="00.00", least_span=0.1, time_source=now,
        empty_text="Memory usage by category appears when a model is loaded.",
    )  # fmt: skip
    for key in ("gpu", "kv_reserved"):
        chart.set_available(key, False)
    return chart


def _requests_chart(clock: RedrawClock, now: Callable[[], float]) -> TimeChart:
    steps = SeriesKind.STEPS
    return TimeChart(
        "Requests", "",
        (
            Series("running", "running", "running", steps, hold=True, text=whole),
            Series("waiting", "waiting", "waiting", steps, hold=True, text=whole),
            predicted("running", whole),
        ),
        clock=clock, value_template="000", least_span=4.0, time_source=now,
        empty_text="Running and waiting requests appear when a model is loaded.",
    )  # fmt: skip
