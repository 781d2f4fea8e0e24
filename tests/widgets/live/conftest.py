"""Charts and a strip to feed with snapshots."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from engine.snapshot import EngineSnapshot
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import apply_theme


@pytest.fixture
def clock(qapp: QApplication):
    apply_theme(qapp, "light")
    made = RedrawClock(rate_hz=20)
    yield made
    made._timer.stop()
    made._beat.stop()


@pytest.fixture
def charts(qtbot, clock: RedrawClock) -> LiveCharts:
    made = LiveCharts(MetricStore(), clock)
    qtbot.addWidget(made)
    made.resize(1300, 480)
    return made


@pytest.fixture
def strip(qtbot, clock: RedrawClock) -> StatStrip:
    made = StatStrip(MetricStore(), clock)
    qtbot.addWidget(made)
    made.resize(1280, made.sizeHint().height())
    return made


def take(view: LiveCharts | StatStrip, one: EngineSnapshot) -> None:
    view.store.update(one)
    view.update_snapshot(one)


def redraw(charts: LiveCharts) -> None:
    for chart in charts.charts:
        chart.redraw()


def redraw_strip(strip: StatStrip) -> None:
    strip.redraw()


def values(strip: StatStrip) -> dict[str, str]:
    redraw_strip(strip)
    return {key: value.text for key, value in strip._values.items()}
