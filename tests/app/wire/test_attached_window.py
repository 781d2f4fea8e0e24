"""The real window on an engine elsewhere: `inferdeck serve` on the starter model in another process
where the engine itself is looked at, else a scripted one behind the same server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.clients.attached import attach
from app.clients.target import LinkState, Target
from app.features.chat.conversation import State
from app.features.models.session import LINK
from app.link.bridge import EngineBridge, EngineState
from app.main.application import Application
from app.paths import starter_model
from engine import messages as m
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot
from tests import ROOT
from tests.app.fakes import FakeEngineThread, Script, words_of
from tests.app.window_fixtures import ask, reply
from tests.app.wire.windows import Bench, Lab, Proxy

LONG = "Write the alphabet three times."
REPLIES = 120
"""Words of a scripted reply: it is still written when a test looks."""
WAIT_MS = 60_000


class Headless:
    """An `inferdeck serve` of its own."""

    def __init__(self, *options: str) -> None:
        words = [
            sys.executable, "-m", "app", "serve", "--port", "0", "--json", "--dtype", "float32",
            "--num-threads", "1", "--kv-cache-memory-bytes", str(64 * 2**20),
            "--max-num-batched-tokens", "512", "--shutdown-timeout", "1", *options,
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if k != "INFERDECK_API_KEY"}
        self.process = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, "it did not start"
        self.url = str(json.loads(ready)["url"])

    def direct(self, text: str, max_tokens: int) -> str:
        """What another client gets for the same question, greedily."""
        body = {
            "messages": [{"role": "user", "content": text}], "temperature": 0,
            "max_tokens": max_tokens,
        }  # fmt: skip
        with httpx.Client(trust_env=False, timeout=60) as http:
            answer = http.post(f"{self.url}/v1/chat/completions", json=body).json()
        return str(answer["choices"][0]["message"]["content"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def headless() -> Iterator[Headless]:
    made = Headless()
    yield made
    made.close()


@pytest.fixture
def lab(bench: Bench) -> Lab:
    made = bench.lab(Script(replies=REPLIES))
    made.load(str(starter_model()))
    return made


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Proxy]:
    made = Proxy(lab.server.url)
    yield made
    made.close()


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    """Its own engine is a scripted one, with nothing loaded."""
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event))
    made.show()
    yield made
    made.shutdown()


@pytest.fixture
def bridges() -> Iterator[list[EngineBridge]]:
    made: list[EngineBridge] = []
    yield made
    for bridge in made:
        bridge.shutdown()


def attached(qtbot: QtBot, bridge: EngineBridge, url: str, key: str | None = None) -> None:
    with qtbot.waitSignal(bridge.loaded, timeout=WAIT_MS):
        attach(bridge, Target(url, key))


def until(qtbot: QtBot, when: Any) -> None:
    qtbot.waitUntil(lambda: bool(when()), timeout=WAIT_MS)


def wait_for_end(qtbot: QtBot, application: Application) -> str:
    until(qtbot, lambda: not application.pages.chat.is_busy)
    return reply(application).text


@pytest.mark.slow
def test_every_view_shows_the_engine_elsewhere(
    qtbot: QtBot, application: Application, headless: Headless
) -> None:
    window, bridge = application.window, application.bridge
    attached(qtbot, bridge, headless.url)
    assert bridge.is_remote and bridge.is_ready
    assert window.windowTitle() == f"Demo model at {bridge.place} – Inferdeck"
    ask(application, "What is TTFT?")
    assert wait_for_end(qtbot, application) == headless.direct("What is TTFT?", 48)
    figures = reply(application).figures
    assert figures is not None and figures.ttft_ms is not None and 0 < figures.ttft_ms < 60_000
    until(qtbot, lambda: not application.charts.itl.data.is_empty)
    assert not application.charts.ttft.data.is_empty
    now = application.charts.now
    views = application.views
    timeline = views.timeline.view.history
    until(qtbot, lambda: len(timeline.between(now - 60, now + 60)) > 5)
    snapshots: list[EngineSnapshot] = []
    bridge.snapshot.connect(snapshots.append)
    bridge.add_request("long", "One", SamplingParams(max_tokens=1900, ignore_eos=True))
    until(qtbot, lambda: any(s.blocks.num_used for s in snapshots))
    assert bridge.plan is not None
    assert snapshots[-1].blocks.num_blocks == bridge.plan.num_blocks
    assert any(r.request_id == "long" for r in application.views.requests.model.records)
    bridge.abort("long")
    until(qtbot, lambda: not snapshots[-1].requests)
    charts = application.charts
    assert not charts.requests.data.is_empty and not charts.cache.data.is_empty
    assert application.strip.title.startswith(headless.url.removeprefix("http://"))
    with qtbot.waitSignal(bridge.block_inspected, timeout=WAIT_MS) as told:
        bridge.inspect_block(0)
    assert told.args[0].details is not None
    with qtbot.waitSignal(bridge.tokens_counted, timeout=WAIT_MS) as counted:
        bridge.count_tokens("mine", "three words here")
    assert counted.args[0] == m.TokensCounted("mine", counted.args[0].num_tokens)
    assert counted.args[0].num_tokens > 2


@pytest.mark.slow
def test_every_knob_turns_the_engine_elsewhere(
    qtbot: QtBot, application: Application, headless: Headless
) -> None:
    bridge, panel = application.bridge, application.engine_settings
    attached(qtbot, bridge, headless.url)
    for settings in (
        {"max_num_seqs": 3},
        {"block_size": 32},
        {"block_size": 16, "max_num_seqs": 16},
    ):
        with qtbot.waitSignal(bridge.reconfigured, timeout=WAIT_MS) as done:
            panel.commands.change(settings)
        for name, value in settings.items():
            assert getattr(done.args[0].config, name) == value
    assert bridge.config is not None and bridge.config.block_size == 16
    with qtbot.waitSignal(bridge.reconfigure_failed, timeout=WAIT_MS) as refused:
        panel.commands.change({"kv_cache_memory_bytes": 1})
    assert refused.args[0].config.block_size == 16


def test_a_reply_goes_on_over_a_cut_line(
    qtbot: QtBot, application: Application, proxy: Proxy
) -> None:
    bridge = application.bridge

    def kind() -> str:
        """Of the notice about the connection."""
        notice = application.notices.notice(LINK)
        return notice.kind if notice is not None else ""

    attached(qtbot, bridge, proxy.url)
    proxy.slow()
    ask(application, LONG, 400)
    until(qtbot, lambda: len(reply(application).text) > 10)
    proxy.cut()
    until(qtbot, lambda: kind() == "warning")
    until(qtbot, lambda: "Reconnecting to" in application.strip.state[0])
    assert bridge.state is EngineState.READY
    assert reply(application).state is State.STREAMING
    proxy.fast()
    proxy.mend()
    until(qtbot, lambda: kind() == "info")
    assert wait_for_end(qtbot, application) == words_of(REPLIES)
    assert reply(application).state is State.COMPLETE
    until(qtbot, lambda: "Reconnecting" not in application.strip.state[0])
    proxy.cut()
    until(qtbot, lambda: kind() == "warning")


def test_two_windows_watch_one_engine(
    qtbot: QtBot, qapp: QApplication, lab: Lab, bridges: list[EngineBridge]
) -> None:
    bridges += [EngineBridge(FakeEngineThread) for _ in range(2)]
    one, other = bridges
    said: dict[str, list[m.OutputEvent]] = {"one": [], "other": []}
    snapshots: list[EngineSnapshot] = []
    one.outputs.connect(said["one"].extend)
    other.outputs.connect(said["other"].extend)
    other.snapshot.connect(snapshots.append)
    for bridge in bridges:
        attached(qtbot, bridge, lab.server.url)
    with qtbot.waitSignal(other.reconfigured, timeout=WAIT_MS) as told:
        one.reconfigure(max_num_seqs=5)
    assert told.args[0].config.max_num_seqs == 5
    one.add_request("of-one", "One and one is", SamplingParams(max_tokens=40, temperature=0.0))
    until(qtbot, lambda: said["one"] and said["one"][-1].finish_reason)
    until(qtbot, lambda: said["other"])
    assert "".join(e.text for e in said["one"])
    assert [(e.request_id, e.text) for e in said["other"]] == [("of-one", "")]
    until(qtbot, lambda: any(s.counters.generation_tokens >= 40 for s in snapshots))
    with qtbot.waitSignal(other.reconfigured, timeout=WAIT_MS):
        one.reconfigure(max_num_seqs=16)


@pytest.mark.slow
def test_a_model_of_this_machine_leaves_the_engine_elsewhere(
    qtbot: QtBot, application: Application, lab: Lab
) -> None:
    bridge, session = application.bridge, application.session
    attached(qtbot, bridge, lab.server.url)
    assert bridge.offers == ("Demo model",)
    assert session.latest is None
    with qtbot.waitSignal(bridge.loaded, timeout=WAIT_MS) as loaded:
        session.open("Demo model")
    assert bridge.is_remote and loaded.args[0].config.model == "Demo model"
    assert not application.settings.recent, "models elsewhere are not among those of here"
    with qtbot.waitSignal(bridge.loaded, timeout=WAIT_MS):
        session.open("/models/tiny")
    assert not bridge.is_remote and bridge.link is None
    assert "127.0.0.1" in application.notices.notice(LINK).cause  # type: ignore[union-attr]
    assert [known.path for known in application.settings.recent] == ["/models/tiny"]
    assert "127.0.0.1" not in application.strip.title


@pytest.mark.slow
def test_turning_to_another_engine_ends_what_was_asked_of_the_one_before(
    qtbot: QtBot, application: Application, proxy: Proxy
) -> None:
    attached(qtbot, application.bridge, proxy.url)
    proxy.slow()
    ask(application, LONG, 400)
    until(qtbot, lambda: reply(application).text)
    application.bridge.detach()
    assert application.bridge.state is EngineState.EMPTY
    until(qtbot, lambda: not application.pages.chat.is_busy)
    assert reply(application).error is not None


@pytest.mark.slow
def test_a_wrong_key_is_said_in_the_window(qtbot: QtBot, application: Application) -> None:
    with_key = Headless("--api-key", "right")
    try:
        attach(application.bridge, Target(with_key.url, "wrong"))
        notices = application.notices
        until(qtbot, lambda: notices.notice(LINK) is not None)
        assert "API key" in notices.notice(LINK).cause  # type: ignore[union-attr]
        assert application.strip.state[1] == "error"
        attached(qtbot, application.bridge, with_key.url, "right")
        until(qtbot, lambda: notices.notice(LINK) is None)
        ask(application, LONG, 400)
        until(qtbot, lambda: reply(application).text)
        with_key.kill()  # in mid-reply
        until(qtbot, lambda: "Reconnecting to" in application.strip.state[0])
        assert application.bridge.link is not None
        assert application.bridge.link.state is not LinkState.LIVE
        application.bridge.detach()
        until(qtbot, lambda: not application.pages.chat.is_busy)
    finally:
        with_key.close()


@pytest.mark.slow
def test_the_command_line_attaches(
    qtbot: QtBot, application: Application, headless: Headless
) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=WAIT_MS):
        application.start({"attach": headless.url, "api_key": None})
    assert application.bridge.is_remote
    assert str(starter_model()) not in str(application.bridge.config)
    application.start({"attach": "nowhere://", "api_key": None})
    notice = application.notices.notice(LINK)
    assert notice is not None and "nowhere://" in notice.cause
