"""Every number on the screen of one quantity is the same, and that of an independent client.

The window runs the real engine with the starter model, through the scenes in which its figures once
disagreed: a change, an undo, a cancelled load, another model, an engine elsewhere, a recording.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.clients.attached import attach
from app.clients.target import Target
from app.features.recording.window import ReplayWindow
from app.link.bridge import EngineBridge
from app.main.application import Application
from engine import messages as m
from engine.sampling_params import SamplingParams
from tests.app.wire.test_attached_window import Headless
from tests.engine.tiny_models import make_model, save
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import GIB, SPAN_S, MetricStore, memory_used
from widgets.live.strip import StatStrip

LOAD_MS, WAIT_MS = 120_000, 90_000
PROMPT = tuple(range(200, 248))
SETTLE_MS = 1500
"""Snapshots come up to a second late."""
UNITS = {"µs": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}


# An independent client ------------------------------------------------------------------------


class Gap(NamedTuple):
    """A latency in ms that began and ended at these times. way_ms: of it, the request's way to its
    engine."""

    began: float
    ended: float
    value: float
    way_ms: float = 0.0


class Client:
    """Sends every request of the window, and measures by its own clock and the times of replies."""

    def __init__(self, bridge: EngineBridge) -> None:
        self._bridge = bridge
        self._numbers = itertools.count()
        self._last: dict[str, float] = {}  # by open request
        self._has_first: set[str] = set()
        self.samples: dict[str, list[Gap]] = {"ttft": [], "itl": []}
        self.concurrency = self.max_tokens = 0
        bridge.outputs.connect(self._take)

    def run(self, concurrency: int, max_tokens: int = 8) -> None:
        """Keep so many requests open; 0: send no more."""
        self.concurrency, self.max_tokens = concurrency, max_tokens
        self._send()

    @property
    def num_open(self) -> int:
        return len(self._last)

    def _send(self) -> None:
        while len(self._last) < self.concurrency:
            request_id = f"client-{next(self._numbers)}"
            prompt = (200 + next(self._numbers) % 200, *PROMPT)
            params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True)
            self._last[request_id] = time.perf_counter()
            self._bridge.add_request(request_id, prompt, params)

    def _take(self, events: list[m.OutputEvent]) -> None:
        for event in events:
            began = self._last.get(event.request_id)
            if began is None:
                continue
            if count := len(event.token_ids):
                key = "itl" if event.request_id in self._has_first else "ttft"
                gap = (event.time - began) * 1e3 / (count if key == "itl" else 1)
                self._has_first.add(event.request_id)
                is_first = key == "ttft" and event.times is not None
                way = (event.times.arrival - began) * 1e3 if is_first else 0.0  # type: ignore
                found = Gap(began, event.time, gap, way)
                self.samples[key] += [found] * (count if key == "itl" else 1)
                self._last[event.request_id] = event.time
            if event.finish_reason is not None:
                del self._last[event.request_id]
        self._send()

    def figures(self, key: str, since: float) -> list[float]:
        """Of samples that began after `since`, in the minute before the newest."""
        return [s.value for s in self.gaps(key, since)]

    def gaps(self, key: str, since: float) -> list[Gap]:
        own = [s for s in self.samples[key] if s.began >= since]
        return [s for s in own if s.ended > own[-1].ended - SPAN_S]


# What is on the screen ------------------------------------------------------------------------


class Read(NamedTuple):
    """A number as printed, and the half of its last digit; None for a dash."""

    where: str
    value: float | None
    half: float


def read(where: str, text: str, unit: str = "") -> Read:
    found = re.search(r"(\d[\d,]*\.?(\d*)) ?(ms|µs|s\b)?", text)
    if found is None:
        assert text.strip() in ("–", ""), f"{where}: {text}"
        return Read(where, None, 0.0)
    scale = UNITS[found[3] or unit]
    half = scale * 0.5 * 10 ** -len(found[2])
    return Read(where, float(found[1].replace(",", "")) * scale, half)


def labels(where: str, charts: LiveCharts, name: str, key: str) -> Read:
    chart = getattr(charts, name)
    chart.redraw()
    unit = chart._header.title.rpartition(", ")[2] if name in ("ttft", "itl") else ""
    texts = {label.label: label.value for label in chart.view.end_labels}
    return read(f"{where} {name}", texts.get(key, "–"), unit)


def header(strip: StatStrip) -> dict[str, str]:
    strip.redraw()
    return {key: value.text for key, value in strip._values.items()}


def screen(application: Application) -> dict[str, list[Read]]:
    """Every number of each quantity, at one time: rates change with the second."""
    store = application.metrics
    while True:
        second = store.last_second(store.time.now())
        found = _read_all(application)
        if store.last_second(store.time.now()) == second:
            return found


def _read_all(application: Application) -> dict[str, list[Read]]:
    shown = header(application.strip)
    card = application.pages.server.cards.local
    card.redraw()
    is_here = not application.bridge.is_remote
    charts = {"dock": application.charts, "Tune": application.pages.tune.charts}
    found: dict[str, list[Read]] = {
        "ttft": [read("header", shown["ttft"])],
        "itl": [read("header", shown["itl"].partition(" / ")[0])],
        "output": [read("header", shown["output"])],
        "kv": [read("header", shown["kv"])],
        "hits": [read("header", shown["hits"])],
    }
    if is_here:
        for key, place in (("ttft", "ttft"), ("itl", "itl"), ("output", "tokens"), ("kv", "kv")):
            found[key].append(read("card", card.figures.value(place).partition(" (")[0]))
    for where, one in charts.items():
        found["ttft"].append(labels(where, one, "ttft", "p50"))
        found["itl"].append(labels(where, one, "itl", "p50"))
        found["kv"].append(labels(where, one, "cache", "used"))
        found["hits"].append(labels(where, one, "cache", "prefix hits"))
        found["output"].append(labels(where, one, "tokens", "out"))
    return found


def memory(application: Application) -> tuple[Read, list[float]]:
    """In GiB: of the header, and the sums of the stacked charts."""
    used = read("header", header(application.strip)["memory"].partition(" / ")[0])
    stacks = [c.memory for c in (application.charts, application.pages.tune.charts)]
    return used, [sum(s.data.history[key].last()[1] for key in s.stacked) for s in stacks]


def check_equal(application: Application) -> None:
    """All numbers agree within what their last digits hide; no figure is shown beside a dash."""
    for quantity, reads in screen(application).items():
        values = [one for one in reads if one.value is not None]
        assert len(values) in (0, len(reads)), (quantity, reads)
        for one, other in itertools.combinations(values, 2):
            assert one.value is not None and other.value is not None
            assert abs(one.value - other.value) <= one.half + other.half + 1e-9, (quantity, reads)


def check_true(application: Application, client: Client) -> None:
    """The latencies are those of the client: within 1 % or 1 ms, and the last digit."""
    store = application.metrics
    assert store.epoch is not None
    shown = screen(application)
    for key in ("ttft", "itl"):
        own = client.figures(key, store.epoch.start)
        assert own, key
        one = shown[key][0]
        assert one.value is not None
        truth = median(own)
        assert abs(one.value - truth) <= max(0.01 * truth, 1.0) + one.half, (key, one, truth)
        assert store.latency(key).num_samples == len(own)


def check_nothing(application: Application) -> None:
    shown = screen(application)
    for key in ("ttft", "itl", "output", "hits"):
        assert {one.value for one in shown[key]} == {None}, (key, shown[key])


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
