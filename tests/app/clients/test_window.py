"""The real window on a server of another make: chat, figures, and words for what is not told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.clients.engine import ForeignEngine
from app.clients.target import LinkState
from app.features.chat.conversation import State
from app.main.application import Application
from engine.snapshot import Part
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer, chat_chunk, usage
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import open_model
from widgets.controls.text import not_reported

CHAT = "/v1/chat/completions"
WAIT_MS = 20_000


@pytest.fixture
def vllm(server: ScriptedServer) -> ScriptedServer:
    server.models("vllm", "Qwen/Qwen3-8B", max_model_len=4096)
    server.answers |= {
        "/version": {"version": "0.12.0"},
        "/metrics": (PAGES / "vllm_0.12.txt").read_text(),
        CHAT: lambda exchange: exchange.stream(
            *(chat_chunk(f"word{i} ", usage=usage(12, i + 1, cached=8)) for i in range(5)),
            chat_chunk(finish="stop", usage=usage(12, 5, cached=8)), "[DONE]",
        ),
    }  # fmt: skip
    return server


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, vllm: ScriptedServer) -> Iterator[Application]:
    script = Script()
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, script))
    try:
        made.window.resize(1600, 1000)
        made.show()
        open_model(qtbot, made)  # it leaves an engine of its own
        attach(qtbot, made, vllm)
        yield made
    finally:
        made.shutdown()


def attach(qtbot: QtBot, application: Application, server: ScriptedServer) -> None:
    with qtbot.waitSignal(application.bridge.snapshot, timeout=WAIT_MS):
        application.bridge.attach(lambda on_event: ForeignEngine(on_event, server.target))
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)


def ask(qtbot: QtBot, application: Application, **sampling: float) -> None:
    application.pages.chat_page.new_chat()
    for name, value in sampling.items():
        application.pages.chat.set_sampling(name, value)
    application.pages.chat_page.send("hello")
    last = lambda: application.pages.chat.current.path()[-1]
    qtbot.waitUntil(lambda: not last().state.is_open, timeout=WAIT_MS)


def texts(widget: object) -> str:
    return " ".join(label.text() for label in widget.findChildren(QLabel))  # type: ignore[attr-defined]


def test_a_window_on_vllm(application: Application, qtbot: QtBot, vllm: ScriptedServer) -> None:
    bridge = application.bridge
    strip = application.strip
    qtbot.waitUntil(lambda: "3 running · 2 waiting" in strip.state[0], timeout=WAIT_MS)
    assert "Qwen/Qwen3-8B" in strip.title and "vLLM" in strip.title
    assert bridge.offers == ("Qwen/Qwen3-8B",)
    assert bridge.link is not None and bridge.link.state is LinkState.LIVE

    # what is told, and what is not
    qtbot.waitUntil(lambda: " 25 %" in strip.text(), timeout=WAIT_MS)
    with qtbot.waitSignal(bridge.snapshot, timeout=WAIT_MS) as seen:
        pass
    unreported = not_reported(seen.args[0], Part.MEMORY)
    assert unreported.endswith("vLLM") and f"Memory {unreported}" in strip.text()
    views = application.views
    for view, what in (
        (views.kv_blocks, "KV blocks"), (views.timeline, "Steps"), (views.memory, "Memory"),
    ):  # fmt: skip
        assert f"{what}: {unreported}." in texts(view)
    assert views.speculation.chart.isVisibleTo(views.speculation)  # drafts it does count
    views.bottleneck_dock.show()
    views.bottleneck_dock.raise_()
    qtbot.waitUntil(lambda: unreported in texts(views.bottleneck), timeout=WAIT_MS)
    assert application.charts.memory.empty_text == f"Memory: {unreported}."

    # knobs are the server's own
    settings = application.engine_settings
    assert "vLLM" in texts(settings)
    assert not any(row.isVisibleTo(settings) for row in settings.rows.values())

    # and one can chat with it
    ask(qtbot, application)
    reply = application.pages.chat.current.path()[-1]
    assert (reply.state, reply.text) == (State.COMPLETE, "word0 word1 word2 word3 word4 ")
    assert reply.figures is not None
    assert (reply.figures.num_tokens, reply.figures.num_prompt_tokens) == (5, 12)
    assert reply.figures.ttft_ms is not None and reply.figures.queue_ms is None

    # back to the engine of this machine, where all is told again
    bridge.detach()
    open_model(qtbot, application)
    assert settings.rows["max_num_seqs"].isVisibleTo(settings)
    assert settings.rows["max_num_seqs"].isEnabled()


def test_a_server_that_stops_in_mid_reply(
    application: Application, qtbot: QtBot, vllm: ScriptedServer
) -> None:
    vllm.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk("so "), chat_chunk("far"))
    ask(qtbot, application)
    reply = application.pages.chat.current.path()[-1]
    assert (reply.state, reply.text) == (State.ERROR, "so far")
    assert reply.error is not None and "after 2 tokens" in reply.error.cause
    # what it does not take is said
    vllm.models("somebody", "m")
    del vllm.answers["/metrics"], vllm.answers["/version"]
    application.bridge.detach()
    attach(qtbot, application, vllm)
    vllm.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk("x", "stop"))
    ask(qtbot, application, top_k=5)
    assert application.pages.chat.context[1] is None  # it does not say how long it may be
    qtbot.waitUntil(
        lambda: any("remark" in key and "top_k" in key for key in application.notices.keys),
        timeout=WAIT_MS,
    )


@pytest.mark.slow
def test_a_load_needs_no_token_ids(
    application: Application, qtbot: QtBot, vllm: ScriptedServer
) -> None:
    """A background load sends text where the vocabulary is not known."""
    ended = threading.Event()

    def answer(exchange: Exchange) -> None:
        exchange.stream({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
        ended.set()

    vllm.answers["/v1/completions"] = answer
    load = application.pages.tune.load
    load.start(application.pages.tune.load_bar.plan())
    assert load.problem is None
    qtbot.waitUntil(lambda: load.counts.completed > 0, timeout=WAIT_MS)
    load.stop()
    body = next(body for path, body in vllm.seen if path == "/v1/completions")
    assert isinstance(body["prompt"], str) and body["ignore_eos"] is True
