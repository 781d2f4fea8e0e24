"""What a cut line costs a window: nothing, or words."""

from __future__ import annotations

from socket import socket as unconnected

import pytest

from app.clients import attached as client
from app.clients.target import LinkChanged, LinkState
from app.server import attach_hub as hub
from engine import messages as m
from tests.app.fakes import Script
from tests.app.server.conftest import wait_until
from tests.app.wire.windows import ENDLESS, SLOW, Bench, Window, text_of
from tests.figures import numbers


@pytest.mark.slow
def test_a_reply_goes_on_over_a_cut_line(bench: Bench) -> None:
    lab = bench.lab(SLOW)
    lab.load()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.wait(m.Loaded)
    window.ask("a", max_tokens=120)
    wait_until(lambda: len(window.outputs("a")) > 10)
    for _ in range(2):
        proxy.cut()
        link = window.wait_now(LinkState.RECONNECTING)
        assert link.attempt == numbers(link.words)[0] == 1
        proxy.mend()
        window.wait_now(LinkState.LIVE)
    reply = window.reply("a")
    assert [t for e in reply for t in e.token_ids] == list(range(1, 121))
    direct = [e for e in lab.events if isinstance(e, m.OutputEvent)]
    assert text_of(reply) == text_of(direct)
    assert not window.of(m.RequestFailed)
    assert len(window.of(m.Loaded)) == 1, "nothing was shown anew"


def test_commands_wait_for_the_line_and_arrive_once(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.wait(m.Loaded)
    proxy.cut()
    window.wait_now(LinkState.RECONNECTING)
    window.ask("a", max_tokens=5)
    window.engine.submit(m.Reconfigure({"max_num_seqs": 7}))
    proxy.mend()
    assert len(window.reply("a")) == 5
    assert window.wait(m.Reconfigured).config.max_num_seqs == 7
    assert len(lab.commands(m.AddRequest)) == len(lab.commands(m.Reconfigure)) == 1


def test_commands_that_wait_have_a_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_WAITING", 3)
    with unconnected() as deaf:  # nobody listens at its port
        deaf.bind(("127.0.0.1", 0))
        window = bench.window(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        assert "127.0.0.1" in wait_words(window, LinkState.CONNECTING)
        for number in range(5):
            window.ask(f"r-{number}")
        assert "3 commands" in window.wait(m.RequestFailed, 2).error.cause


def wait_words(window: Window, state: LinkState) -> str:
    said = lambda: [e.words for e in window.of(LinkChanged) if e.state is state and e.words]
    wait_until(said)
    return str(said()[-1])


def test_after_too_long_its_requests_are_stopped_and_it_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SESSION_S", 0.3)
    lab = bench.lab(Script(step_s=0.01, replies=100_000))
    lab.load()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.ask("a", max_tokens=100_000)
    wait_until(lambda: len(window.outputs("a")) > 3)
    proxy.cut()
    wait_until(lambda: m.Abort("a") in lab.engine.commands)
    wait_until(lambda: not lab.engine_client.foreign)
    proxy.mend()
    failed = window.wait(m.RequestFailed)
    assert failed.request_id == "a"
    assert failed.error.cause
    window.wait(m.Loaded, 2)
    window.ask("b", max_tokens=4)
    assert len(window.reply("b")) == 4


def test_a_server_that_never_comes_back_ends_the_replies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GIVE_UP_S", 0.5)
    lab = bench.lab(ENDLESS)
    lab.load()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.ask("a", max_tokens=100_000)
    wait_until(lambda: window.outputs("a"))
    proxy.cut()
    assert "s." in window.wait(m.RequestFailed).error.cause
    proxy.mend()
    window.wait(m.Loaded, 2)


def test_a_server_that_was_started_anew_is_attached_to(bench: Bench) -> None:
    lab, other = bench.lab(ENDLESS), bench.lab()
    lab.load()
    other.load("/models/another")
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.ask("a", max_tokens=100_000)
    wait_until(lambda: window.outputs("a"))
    proxy._target = ("127.0.0.1", int(other.server.url.rsplit(":", 1)[1]))
    proxy.cut(stays=False)
    assert window.wait(m.RequestFailed).error.cause
    assert window.wait(m.Loaded, 2).config.model == "another"


def test_silence_is_said_and_ends_with_the_next_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.clients.attached_line.STALE_S", 0.5)
    monkeypatch.setattr("app.clients.attached_line.BEAT_S", 0.1)
    lab = bench.lab()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.wait_link(LinkState.LIVE)
    proxy.hold()
    assert "s." in window.wait_now(LinkState.STALE).words
    proxy.flow()
    window.wait_now(LinkState.LIVE)


def test_a_window_that_leaves_ends_its_requests(bench: Bench) -> None:
    lab = bench.lab(ENDLESS)
    lab.load()
    window = bench.window(lab.server.url)
    window.ask("a", max_tokens=100_000)
    wait_until(lambda: window.outputs("a"))
    window.close()
    wait_until(lambda: m.Abort("a") in lab.engine.commands)
    assert window.of(client.LinkChanged)[-1].state is LinkState.CLOSED
