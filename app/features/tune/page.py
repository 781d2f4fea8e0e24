"""The Tune page: background load, result of the last change, live charts.

    +-----------------------------------+
    | background load                   |
    +-----------------------------------+
    | result of the last change         |
    | (figures of two time ranges)      |
    +-----------------------------------+
    | live charts                       |
    +-----------------------------------+

The engine settings are at the left of this page.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.features.tune.comparison_view import CompareView
from app.features.tune.load import BackgroundLoad
from app.features.tune.load_bar import LoadBar
from app.features.tune.result_bar import ResultBar
from app.link.bridge import EngineBridge
from app.window.commands import Command
from app.window.settings_store import SettingsStore
from engine.snapshot import EngineSnapshot
from widgets.controls.frames import FittedFrame, scroll_area
from widgets.controls.layouts import dressed, vbox
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.plot.link import LinkedCursor
from widgets.plot.marks import MarkLog, SpanLog
from widgets.plot.series import MarkKind
from widgets.theme.fonts import scaled

ORDER = ("ttft", "itl", "tokens", "memory", "requests", "cache")
METRIC_WORDS = "ITL TTFT latency throughput"
"""By which the palette finds what shows or moves them."""
LEAST_FOR_TABLE = 380
"""Lower pages show the comparison in words."""
LEAST_CHARTS = 100
"""Pixels at 100 % text."""


class TunePage(FittedFrame):
    """`commands_changed`: update enabled and checked commands."""

    commands_changed = Signal()

    def __init__(
        self,
        bridge: EngineBridge,
        settings: SettingsStore,
        store: MetricStore,
        clock: RedrawClock,
        marks: MarkLog,
        cursor: LinkedCursor | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.load = BackgroundLoad(bridge, self)
        self.store = store
        self.spans = SpanLog(self)
        self.load_bar = LoadBar(self.load, bridge, settings)
        self.charts = LiveCharts(store, clock, marks, ORDER, cursor, leads=True)
        self.charts.enable_picking(self.spans)
        self.result = ResultBar(store, marks, lambda: self.charts.now)
        self.comparison = CompareView(
            store, marks, self.spans, lambda: self.charts.now, self.result.merged,
            lambda: self.result.awaits_lesson,
        )  # fmt: skip
        self.result.awaits_changed.connect(self.comparison.refresh)
        self.result.figures.toggled.connect(self._show_figures)
        self.comparison.hide()
        self._build()
        self.charts.span_picked.connect(self._pick)
        self.load.happened.connect(self._mark_load)
        bridge.past.connect(self._on_past)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(lambda state: self.commands_changed.emit())

    def _build(self) -> None:
        """The charts have the height that is left; where they would be low, all scrolls."""
        ignored = QSizePolicy.Policy.Ignored
        self.charts.setSizePolicy(ignored, ignored)
        self._content = dressed(QWidget(), bare=True)
        parts = self.load_bar, self.result, self.comparison, (self.charts, 1)
        self._parts = vbox(*parts, of=self._content)
        area = scroll_area(self._content, "Tune")
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what is in it takes the focus
        vbox(area, of=self)
        self._content.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The area keeps requests of its content from this frame; its bar takes of the width."""
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize):
            self.fit()
        return super().eventFilter(watched, event)

    def commands(self) -> list[Command]:
        return [
            Command(
                "tune.load", "Background load", self.load_bar.toggle, "Tune", "Ctrl+Alt+L", "play",
                "load", is_checked=lambda: self.load.is_on,
                is_enabled=lambda: self.load_bar.button.isEnabled(), keywords=METRIC_WORDS,
            ),
            Command(
                "tune.figures", "Comparison metrics", self.result.figures.toggle, "Tune",
                "Ctrl+Alt+F", "table", "compare", shows_page=True,
                is_checked=self.result.figures.isChecked, keywords=METRIC_WORDS,
            ),
            Command(
                "tune.changes", "Setting changes", self.result.show_list, "Tune", "Ctrl+Alt+H",
                section="compare", shows_page=True,
                is_enabled=lambda: bool(self.result.changes.entries),
            ),
            Command(
                "tune.keep", "Save result as run", self.result.keep_as_run, "Tune",
                section="compare", is_enabled=lambda: self.result.keep.isEnabled(),
            ),
            Command(
                "tune.copy_comparison", "Copy comparison", self.comparison.copy, "Tune",
                section="compare", is_enabled=lambda: self.comparison.ranges is not None,
            ),
            Command(
                "tune.clear_ranges", "Clear ranges", self.comparison.clear, "Tune",
                section="compare",
            ),
        ]  # fmt: skip

    def fit(self) -> None:
        """No table where it or what surrounds it would be lower than its text; no charts where
        the comparison leaves no room for them."""
        spacing, charts = self._parts.spacing(), scaled(LEAST_CHARTS)
        above = sum(self._height_of(part) + spacing for part in (self.load_bar, self.result))
        least = above + self.comparison.height_with_table + spacing + charts
        self.comparison.set_low(self.height() < max(LEAST_FOR_TABLE, least))
        if not self.comparison.isHidden():
            above += self._height_of(self.comparison) + spacing
        has_room = self.height() >= above + charts
        self.charts.setVisible(self.comparison.isHidden() or has_room)
        self._content.setMinimumHeight(above + charts * (not self.charts.isHidden()))

    def _height_of(self, part: QWidget) -> int:
        return max(part.minimumSizeHint().height(), part.heightForWidth(self._content.width()))

    def _pick(self, start: float, end: float) -> None:
        self.result.figures.setChecked(True)
        self.comparison.pick(start, end)

    def _show_figures(self, on: bool) -> None:
        self.comparison.setVisible(on)
        self.commands_changed.emit()

    def _mark_load(self, text: str, words: str) -> None:
        self.charts.mark(text, MarkKind.LOAD, (f"Load: {words}",))
        self.commands_changed.emit()

    def _on_past(self, snapshots: tuple[EngineSnapshot, ...]) -> None:
        for snapshot in snapshots:
            self._on_snapshot(snapshot)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.charts.update_snapshot(snapshot)
