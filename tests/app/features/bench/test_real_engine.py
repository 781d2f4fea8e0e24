"""Sweeps of the Bench page on the real engine, with the starter model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.bench.load import Pace
from app.bench.sweep import Axis
from app.bench.workload import Length, Workload
from app.features.bench.controller import BenchPlan
from app.main.application import Application
from tests.app.real_window import started

WAIT_MS = 120_000
SMALL = Workload("small", "Small", 4, Length(8, 24), Length(4, 8))


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    with started(qapp, qtbot) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("axis", [Axis("concurrency", (1, 2)), Axis("max_num_seqs", (1, 2))])
def test_every_point_is_measured(qtbot: QtBot, application: Application, axis: Axis) -> None:
    bridge, bench = application.bridge, application.pages.bench.bench
    qtbot.waitUntil(lambda: bridge.latest is not None, timeout=WAIT_MS)
    assert bridge.config is not None
    before = bridge.config.max_num_seqs
    bench.start(BenchPlan(SMALL, "unique", (axis,), Pace(concurrency=2), 2, 1))
    qtbot.waitUntil(lambda: not bench.is_running, timeout=WAIT_MS)
    assert bench.problem is None and bench.result is not None
    for point, limit in zip(bench.result.points, axis.values, strict=True):
        assert not point.error and point.figures["completed"] == 2 * SMALL.num_requests
        # from the engine's own steps, all of which must have arrived
        assert point.figures["max_concurrent_requests"] == limit
        assert 0 < point.figures["itl_ms"]["p50"] < point.figures["e2e_ms"]["p50"]
    qtbot.waitUntil(lambda: bridge.config and bridge.config.max_num_seqs == before, timeout=WAIT_MS)
