"""The small lines beside the leading figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QImage, QPainter

from engine.snapshot import Sample
from tests.widgets.synthetic import snapshot
from widgets.live.figures import FIGURES, draw_sparkline
from widgets.live.metric_store import MetricStore
from widgets.live.trends import TREND_S, StatTrends

WIDTH, HEIGHT = 60, 12


def drawn(places: list[float], values: list[float], top: float = 1.0) -> np.ndarray:
    """Which pixels the line covers."""
    image = QImage(WIDTH, HEIGHT, QImage.Format.Format_RGB32)
    image.fill(QColor("black"))
    painter = QPainter(image)
    place = QRectF(0.5, 0.5, WIDTH - 1, HEIGHT - 1)
    draw_sparkline(painter, place, np.array(places), np.array(values), top, QColor("white"))
    painter.end()
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(HEIGHT, WIDTH)
    return (pixels & 0xFF) > 60


def test_a_line_rises_from_the_lower_left_to_the_upper_right() -> None:
    covered = drawn([0.0, 1.0], [0.0, 5.0])
    rows = [int(np.flatnonzero(covered[:, x]).mean()) for x in (2, WIDTH // 2, WIDTH - 3)]
    assert rows == sorted(rows, reverse=True) and rows[0] >= HEIGHT - 2 and rows[-1] <= 1


def test_the_scale_reaches_up_to_top_and_gaps_stay_empty() -> None:
    half = drawn([0.0, 1.0], [50.0, 50.0], top=100.0)
    assert abs(int(np.flatnonzero(half[:, WIDTH // 2]).mean()) - HEIGHT // 2) <= 1
    gap = drawn([0.0, 0.3, 0.5, 0.7, 1.0], [1.0, 1.0, math.nan, 1.0, 1.0])
    assert not gap[:, WIDTH // 2].any() and gap[:, 5].any() and gap[:, -5].any()
    assert not drawn([], []).any() and not drawn([0.5], [math.nan]).any()


@given(st.lists(st.floats(0.05, 20.0), min_size=1, max_size=300))
def test_points_lie_between_the_edges_newest_at_the_right(steps: list[float]) -> None:
    trends, now = StatTrends(("x",)), 0.0
    for step in steps:
        now += step
        if trends.is_due(now):
            trends.add(now, {"x": now})
    places, values = trends.points("x")
    assert len(places) == len(values) and places[-1] == pytest.approx(1.0)
    assert (np.diff(places) >= 0).all() and places[0] >= -1e-9
    kept = values[np.isfinite(values)]
    assert values[-1] == trends.newest and (np.diff(kept) >= 1.0 - 1e-9).all()
    assert kept[0] >= trends.newest - TREND_S


def test_the_figures_leave_a_point_a_second_and_a_gap_where_nothing_was_measured() -> None:
    store = MetricStore()
    for step in range(80):
        at = 100.0 + step / 4
        itl = tuple(Sample(at, 0.02) for _ in range(4)) if step < 8 else ()
        store.update(replace(snapshot(at), itl=itl, ttft=()))
    _, itl_values = store.trends.points("itl")
    _, ttft = store.trends.points("ttft")
    assert len(itl_values) == len(ttft) == 20
    assert itl_values[0] == pytest.approx(20) and np.isnan(itl_values[-1])
    assert np.isnan(ttft).all()
    store.end()
    assert all(len(store.trends.points(one.key)[0]) == 0 for one in FIGURES if one.trend)
