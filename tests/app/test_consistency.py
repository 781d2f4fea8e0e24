"""Every number on the screen of one quantity is the same, and that of an independent client.

The window runs the real engine with the starter model, through the scenes in which its figures once
disagreed: a change, an undo, a cancelled load, another model, an engine elsewhere, a recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.clients.attached import attach
from app.clients.target import Target
from app.features.learn.course import Stage
from app.features.recording.window import ReplayWindow
from app.features.tune.verdict import LEAST
from app.main.application import Application
from tests.app.shown_figures import (
    Client,
    check_equal,
    check_nothing,
    check_true,
    header,
    labels,
    memory,
    read,
    screen,
)
from tests.app.wire.test_attached_window import Headless
from tests.engine.tiny_models import make_model, save
from widgets.live.metric_store import GIB, MetricStore, memory_used

LOAD_MS, WAIT_MS = 120_000, 90_000
SETTLE_MS = 1500
"""Snapshots come up to a second late."""


# The window -----------------------------------------------------------------------------------


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model({"num_threads": 1, "kv_cache_memory_bytes": 2**24})
    yield made
    made.shutdown()


@pytest.fixture
def client(application: Application) -> Client:
    return Client(application.bridge)


def until(qtbot: QtBot, when: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(when()), timeout=WAIT_MS)


def come_to_rest(qtbot: QtBot, application: Application, client: Client) -> None:
    client.run(0)
    until(qtbot, lambda: not client.num_open)
    until(qtbot, lambda: application.strip.state[0] == "Ready")
    qtbot.wait(SETTLE_MS)
    until(qtbot, lambda: application.bridge.dispatcher.is_at_rest)


def measure(
    qtbot: QtBot, application: Application, client: Client, concurrency: int = 4, count: int = 12
) -> None:
    """Under load until `count` requests began after the last change, then to rest."""
    store = application.metrics
    client.run(concurrency)
    until(qtbot, lambda: store.latency("ttft").num_samples >= count)
    come_to_rest(qtbot, application, client)
    check_equal(application)
    check_true(application, client)


def change(qtbot: QtBot, application: Application, **changes: object) -> None:
    """Until a snapshot shows them. The store's cut lies between asking and the answer."""
    asked = time.perf_counter()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=WAIT_MS):
        application.bridge.reconfigure(**changes)
    heard = time.perf_counter()
    until(qtbot, lambda: application.metrics.epoch.start >= asked)  # type: ignore[union-attr]
    assert asked <= application.metrics.epoch.start <= heard  # type: ignore[union-attr]


def check_within_two_seconds(qtbot: QtBot, application: Application, client: Client) -> None:
    """The shown p50 is that of the new samples, two seconds after the third."""
    epoch = application.metrics.epoch
    assert epoch is not None
    own = lambda: [s for s in client.samples["ttft"] if s.began >= epoch.start]
    until(qtbot, lambda: len(own()) >= 3)
    third = own()[2]
    qtbot.wait(max(0, round((third.ended + 2.0 - time.perf_counter()) * 1e3)))
    known = [s.value for s in own()]
    one = screen(application)["ttft"][0]
    assert one.value is not None
    # samples of the last moment may be on their way
    truths = [median(known[:count]) for count in range(3, len(known) + 1)]
    assert any(abs(one.value - t) <= max(0.01 * t, 1.0) + one.half for t in truths), (one, known)
    line = application.charts.ttft.data.history["p50"]
    application.charts.ttft.redraw()
    assert line.last() is not None and line.times[-1] >= third.ended - 0.5


# Scenes ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_under_changes_of_settings(
    qtbot: QtBot, application: Application, client: Client
) -> None:
    """Load, a change under it, its undo, contiguous allocation, other precisions, and rest."""
    check_nothing(application)
    check_equal(application)
    measure(qtbot, application, client)
    store, before = application.metrics, application.metrics.latency("ttft")

    client.run(6, max_tokens=24)
    qtbot.wait(500)
    change(qtbot, application, max_num_seqs=1)
    ghost = store.before("ttft")
    assert ghost is not None and ghost.p50 is not None and before.p50 is not None
    check_within_two_seconds(qtbot, application, client)
    come_to_rest(qtbot, application, client)
    check_equal(application)
    check_true(application, client)
    ghosts = {labels("x", c, "ttft", "before").value for c in (application.charts,)}
    assert ghosts != {None} or "before ↑" in {
        label.label for label in application.charts.ttft.view.end_labels
    }

    client.run(6, max_tokens=24)
    qtbot.wait(500)
    change(qtbot, application, max_num_seqs=16)
    check_within_two_seconds(qtbot, application, client)
    come_to_rest(qtbot, application, client)
    check_equal(application)
    check_true(application, client)

    change(qtbot, application, kv_allocation="contiguous")
    check_nothing(application)
    client.run(2, max_tokens=600)
    until(qtbot, lambda: store.snapshot is not None and store.snapshot.blocks.num_reserved)
    qtbot.wait(SETTLE_MS)
    used, stacks = memory(application)
    assert used.value is not None and store.snapshot is not None
    assert memory_used(store.snapshot) == store.snapshot.memory.process
    for stack in stacks:
        assert stack == pytest.approx(memory_used(store.snapshot) / GIB, rel=0.01)
        assert abs(used.value - stack) <= used.half + 0.01 * stack
    come_to_rest(qtbot, application, client)

    change(qtbot, application, quantization="int8")
    check_nothing(application)
    measure(qtbot, application, client)
    shown = screen(application)
    qtbot.wait(3000)  # idle: nothing changes
    assert {k: [r.value for r in v] for k, v in screen(application).items() if k != "output"} == {
        k: [r.value for r in v] for k, v in shown.items() if k != "output"
    }


@pytest.mark.slow
def test_under_other_models_and_elsewhere(
    qtbot: QtBot, application: Application, client: Client, tmp_path: Path
) -> None:
    """A cancelled load, another model and back, an engine elsewhere, and here again."""
    measure(qtbot, application, client)
    bridge, store = application.bridge, application.metrics
    assert bridge.config is not None
    config = bridge.config
    with qtbot.waitSignals([bridge.load_failed, bridge.loaded], timeout=LOAD_MS):
        bridge.load(config.replace(dtype="bfloat16"))
        bridge.cancel_load()
    qtbot.wait(SETTLE_MS)
    check_nothing(application)
    check_equal(application)
    measure(qtbot, application, client)

    made = make_model("llama", vocab_size=512, max_position_embeddings=4096)
    other = config.replace(model=str(save(made, tmp_path)))
    for one in (other, config):
        with qtbot.waitSignal(bridge.loaded, timeout=LOAD_MS):
            bridge.load(one)
        assert bridge.config is not None and bridge.config.model == one.model
        check_nothing(application)
        assert store.before("ttft") is None or one is config  # not the other model's
        measure(qtbot, application, client)

    headless = Headless()
    try:
        with qtbot.waitSignal(bridge.loaded, timeout=LOAD_MS):
            attach(bridge, Target(headless.url, None))
        qtbot.wait(SETTLE_MS)
        check_nothing(application)
        client.run(4)
        until(qtbot, lambda: application.metrics.latency("ttft").num_samples >= 12)
        come_to_rest(qtbot, application, client)
        check_equal(application)
        check_true_elsewhere(application, client)
        bridge.detach()
    finally:
        headless.close()
    check_nothing(application)


def check_true_elsewhere(application: Application, client: Client) -> None:
    """A remote engine's samples begin when its server has the request: the client has waited for
    the way there too, which takes as long as this machine is busy."""
    assert application.metrics.epoch is not None
    for key in ("ttft", "itl"):
        one = screen(application)[key][0]
        own = client.gaps(key, application.metrics.epoch.start)
        truth = median(gap.value - gap.way_ms for gap in own)
        assert one.value is not None
        assert abs(one.value - truth) <= max(0.01 * truth, 1.0) + one.half, (key, one, truth)
        assert all(-1.0 <= gap.way_ms < gap.value for gap in own)  # the clocks: within 1 ms


@pytest.mark.slow
def test_in_a_recording(
    qtbot: QtBot, application: Application, client: Client, tmp_path: Path
) -> None:
    """What a recording shows at its end is what the window showed."""
    measure(qtbot, application, client)
    client.run(4)
    change(qtbot, application, max_num_seqs=2)
    until(qtbot, lambda: application.metrics.latency("ttft").num_samples >= 8)
    come_to_rest(qtbot, application, client)
    live = {key: reads[0].value for key, reads in screen(application).items()}
    path = tmp_path / "run.inferdeck-flight"
    application.recordings.save(path)
    until(qtbot, lambda: application.notices.notice("recording") is not None)
    application.recordings.open(path)
    until(qtbot, lambda: application.recordings.windows)
    window: ReplayWindow = application.recordings.windows[-1]
    until(qtbot, lambda: window.views.kv_blocks.map.blocks is not None)
    window.player.seek(window.player.duration)
    until(qtbot, lambda: not window.player.is_jumping)
    replayed = header(window.strip)
    for key in ("ttft", "kv", "hits"):
        assert read("recording", replayed[key]).value == live[key]
    assert read("recording", replayed["itl"].partition(" / ")[0]).value == live["itl"]
    for key in ("ttft", "itl"):
        one = labels("recording", window.charts, key, "p50")
        assert one.value is not None and live[key] is not None
        assert abs(one.value - live[key]) <= one.half + 0.5
    window.player.seek(window.player.beginning)
    until(qtbot, lambda: not window.player.is_jumping)
    assert metrics_of(window).latency("ttft").num_samples <= len(client.samples["ttft"])
    window.close()


@pytest.mark.slow
def test_in_a_lesson(qtbot: QtBot, application: Application) -> None:
    """Every request of its load counts for the baseline: none began before the setup."""
    application.window.commands.run("learn.queue")
    course, load = application.lessons.course, application.pages.tune.load
    until(qtbot, lambda: course.stage is Stage.MOVE)
    first_tokens = application.metrics.rings["ttft"].values
    assert len(first_tokens) >= LEAST and not np.isnan(first_tokens).any()
    qtbot.wait(SETTLE_MS)
    assert load.counts.completed > 0 and load.counts.failed == 0
    check_equal(application)
    application.lessons.leave()
    until(qtbot, lambda: application.bridge.config.max_num_seqs != 8)  # type: ignore[union-attr]


def metrics_of(window: ReplayWindow) -> MetricStore:
    return window.metrics


@pytest.mark.slow
def test_the_server_counts_the_same_events(
    qtbot: QtBot, application: Application, client: Client
) -> None:
    """Counters stay cumulative; since a change their difference is what the store counts."""
    measure(qtbot, application, client)
    change(qtbot, application, max_num_seqs=2)
    store = application.metrics
    assert store.snapshot is not None and store.epoch is not None
    before = store.snapshot.counters
    since = store.epoch.start
    measure(qtbot, application, client)
    after = store.snapshot.counters
    times = [ring.times for ring in store.rings.values()]
    num_tokens = sum(int((t > since).sum()) for t in times)
    assert num_tokens == after.generation_tokens - before.generation_tokens
    finished = sum(after.finished.values()) - sum(before.finished.values())
    assert store.latency("ttft").num_samples == finished
    assert after.generation_tokens > before.generation_tokens > 0
