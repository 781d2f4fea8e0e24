"""The background load through the real engine, with the starter model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.bench.load import Pace
from app.bench.workload import Length, Workload
from app.features.tune.load_plan import LoadPlan
from app.main.application import Application
from engine.snapshot import FinishReason
from tests.figures import numbers

LOAD_MS, SERVE_MS = 120_000, 120_000
SMALL = Workload("small", "Small", 4, Length(8, 24), Length(4, 8))


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model({"num_threads": 1, "kv_cache_memory_bytes": 4 * 2**20})
    made.window.show_page(1)
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_load_runs_beside_a_chat_and_through_a_rebuild_of_the_cache(
    qtbot: QtBot, application: Application
) -> None:
    load, bridge, chat = application.pages.tune.load, application.bridge, application.pages.chat
    ends: list[FinishReason] = []
    bridge.outputs.connect(
        lambda events: ends.extend(e.finish_reason for e in events if e.finish_reason)
    )
    load.start(LoadPlan(SMALL, "unique", Pace(concurrency=4)))
    chat.set_sampling("max_tokens", 12)
    chat.send("What is TTFT?")
    qtbot.waitUntil(lambda: load.counts.completed >= 6, timeout=SERVE_MS)
    with qtbot.waitSignal(bridge.reconfigured, timeout=SERVE_MS):
        bridge.reconfigure(block_size=32)
    before = load.counts.completed
    qtbot.waitUntil(lambda: load.counts.completed >= before + 6, timeout=SERVE_MS)
    qtbot.waitUntil(lambda: not chat.is_busy, timeout=SERVE_MS)
    assert chat.current.path()[-1].text
    load.stop()
    qtbot.waitUntil(lambda: application.strip.state[0] == "Ready", timeout=SERVE_MS)
    counts = load.counts
    assert counts.failed == 0 and counts.in_flight == 0 and load.problem is None
    assert ends.count(FinishReason.LENGTH) >= counts.completed
    tune = application.pages.tune  # its charts take a state a little later than the strip
    figures = application.metrics.figures(0.0, tune.charts.now)

    def has_all() -> bool:
        figures.update(application.metrics.figures(0.0, tune.charts.now))
        return figures["ttft"].num_samples >= 12 and figures["itl"].num_samples >= 12 * 3

    qtbot.waitUntil(has_all, timeout=SERVE_MS)
    assert figures["kv_usage"].largest is not None and 0 < figures["kv_usage"].largest <= 100


def test_what_the_cache_cannot_hold_is_refused_before_it_is_sent(
    qtbot: QtBot, application: Application
) -> None:
    page = application.pages.tune
    with qtbot.waitSignal(
        application.bridge.snapshot, timeout=SERVE_MS,
        check_params_cb=lambda s: s.config.kv_cache_memory_bytes == 2**20,
    ):  # fmt: skip
        application.bridge.reconfigure(kv_cache_memory_bytes=2**20)
    page.load_bar.choose("mixed-lengths")
    page.load_bar.toggle()
    assert not page.load.is_on
    assert {2024, 128} <= set(numbers(page.load_bar.problem.text()))
