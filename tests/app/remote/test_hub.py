"""Windows on a scripted engine: who hears what, who may what, and what a cut line costs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from socket import create_connection
from socket import socket as unconnected
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from app.connections.target import LinkState, Past, Target
from app.remote import client, hub, protocol
from app.remote.client import RemoteEngine
from app.remote.protocol import Frame, Hello, Refused, Welcome, encode, read_answer
from app.server.options import Limits
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.app.fakes import Script
from tests.app.remote.windows import Lab, Proxy, Window, text_of
from tests.app.server.conftest import wait_until

SLOW = Script(step_s=0.01, replies=120)
ENDLESS = Script(step_s=0.01, replies=100_000)
"""A reply that is still written whenever a busy machine looks."""


class Bench:
    """Makes labs, windows and proxies, and takes them down."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def lab(self, script: Script | None = None, **options: Any) -> Lab:
        made = Lab(script, **options)
        self._made.append(made)
        return made

    def window(self, url: str, key: str | None = None) -> Window:
        made = Window(url, key)
        self._made.append(made)
        return made

    def proxy(self, url: str) -> Proxy:
        made = Proxy(url)
        self._made.append(made)
        return made

    def close(self) -> None:
        for one in reversed(self._made):
            one.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


# Who hears what --------------------------------------------------------------------------------


def test_a_window_that_comes_sees_what_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.remote.standing.PAST_S", 0.01)
    lab = bench.lab(Script(replies=60, step_s=0.005))
    lab.load()
    first = bench.window(lab.server.url)
    first.ask("a", max_tokens=60)
    first.reply("a")
    wait_until(lambda: any(s.snapshot.steps for s in first.of(m.SnapshotEvent)))
    second = bench.window(lab.server.url)
    loaded = second.wait(m.Loaded)
    assert (loaded.config.model, loaded.model.path) == ("tiny", "tiny")
    snapshot = second.wait(m.SnapshotEvent).snapshot
    assert len(snapshot.steps) >= 20, "the steps of before"
    assert len(snapshot.ttft) == 1
    assert abs(snapshot.time - time.perf_counter()) < 60
    past = second.wait(Past).snapshots
    assert past[-1].time < snapshot.time
    assert max(s.num_running for s in past) == 1, "the charts of before"
    assert {s.model.path for s in past} == {"tiny"}
    kinds = [type(e) for e in second.events]
    assert kinds.index(m.Loaded) < kinds.index(Past) < kinds.index(m.SnapshotEvent)
    assert second.engine.offers == ("tiny",)


def test_without_a_model_it_sees_that_too(bench: Bench) -> None:
    lab = bench.lab()
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.ask("a")
    assert window.wait(m.RequestFailed).request_id == "a"
    lab.load()
    window.wait(m.Loaded)


def test_words_go_to_who_asked_and_ends_to_all(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    other.wait(m.Loaded)
    one.ask("a", "secret words")
    direct = text_of(one.reply("a"))
    assert len(direct.split()) == 24
    (seen,) = other.reply("a")
    assert (seen.text, seen.token_ids, seen.logprobs) == ("", (), ())
    assert seen.times is not None
    one.ask("b", "reject me")
    one.wait(m.RequestFailed)
    assert not other.of(m.RequestFailed)


def test_a_cache_that_became_smaller_is_told_to_all_without_paths(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one = bench.window(lab.server.url)
    loaded = one.wait(m.Loaded)
    own = next(e for e in lab.events if isinstance(e, m.Loaded))
    plan = dataclasses.replace(own.plan, num_blocks=102)
    lab.engine.on_event(m.MadeRoom("128 → 102 blocks", own.model, plan))
    told = one.wait(m.MadeRoom)
    assert told == m.MadeRoom("128 → 102 blocks", loaded.model, plan)
    assert told.model.path == "tiny"
    later = bench.window(lab.server.url).wait(m.Loaded)
    assert later.plan == plan


def test_a_change_by_one_is_told_to_all_and_a_refusal_to_one(bench: Bench) -> None:
    lab = bench.lab(Script(failing_settings=("kv_cache_dtype",)))
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    one.wait(m.Loaded)
    other.wait(m.Loaded)
    one.engine.submit(m.Reconfigure({"max_num_seqs": 3}))
    for window in (one, other):
        assert window.wait(m.Reconfigured).config.max_num_seqs == 3
    one.engine.submit(m.Reconfigure({"kv_cache_dtype": "fp8"}))
    assert "not enough memory" in one.wait(m.ReconfigureFailed).error.cause
    one.engine.submit(m.Load(EngineConfig(model="tiny", max_num_seqs=5)))
    assert one.wait(m.Loaded, 2).config.max_num_seqs == 5
    assert other.wait(m.Loaded, 2).config.max_num_seqs == 5
    assert not other.of(m.ReconfigureFailed)
    assert other.of(m.LoadProgress), "the other one sees it loading"


def test_requests_of_two_windows_do_not_mix(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    for number in range(6):
        one.ask(f"one-{number}")
        other.ask(f"other-{number}")
    for window, name in ((one, "one"), (other, "other")):
        for number in range(6):
            reply = window.reply(f"{name}-{number}")
            assert [t for e in reply for t in e.token_ids] == list(range(1, 25))
    one.ask("same", max_tokens=20_000)
    wait_until(lambda: "same" in lab.gate.foreign)
    other.ask("same")
    assert "runs already" in other.wait(m.RequestFailed).error.cause


def test_loading_can_be_cancelled_over_the_line(bench: Bench) -> None:
    lab = bench.lab(Script(load_steps=1000, load_step_s=0.01), models=("/models/other",))
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.engine.submit(m.Load(EngineConfig(model="other")))
    window.wait(m.LoadProgress)
    window.engine.cancel_load()
    assert window.wait(m.LoadFailed).cancelled


# Who may what ----------------------------------------------------------------------------------


def test_a_path_from_a_window_reaches_no_file(bench: Bench) -> None:
    lab = bench.lab(models=("/models/other",))
    lab.load()
    window = bench.window(lab.server.url)
    window.wait(m.Loaded)
    for wanted in ("/etc", "/models/tiny", "../tiny", "", "other/"):
        count = len(window.of(m.LoadFailed))
        window.engine.submit(m.Load(EngineConfig(model=wanted)))
        failed = window.wait(m.LoadFailed, count + 1)
        assert "does not offer" in failed.error.cause
        assert failed.serving == "tiny"
    window.engine.submit(m.Reconfigure({"speculative_model": "/etc/passwd"}))
    assert "does not offer" in window.wait(m.ReconfigureFailed).error.cause
    assert [c.config.model for c in lab.commands(m.Load)] == ["/models/tiny"]
    assert not lab.commands(m.Reconfigure)
    window.engine.submit(m.Load(EngineConfig(model="other")))
    assert window.wait(m.Loaded, 2).config.model == "other"
    assert lab.commands(m.Load)[-1].config.model == "/models/other"


def test_a_part_of_the_window_itself_takes_paths(bench: Bench) -> None:
    lab = bench.lab(trusts_paths=True)
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.engine.submit(m.Load(EngineConfig(model="/models/any")))
    assert window.wait(m.Loaded).config.model == "/models/any"
    assert window.engine.offers is None


def test_windows_may_be_let_in_to_look_and_ask_alone(bench: Bench) -> None:
    lab = bench.lab(Script(step_s=0.01, replies=100_000), allows_control=False)
    lab.load()
    window, other = bench.window(lab.server.url), bench.window(lab.server.url)
    window.wait(m.Loaded)
    other.ask("of-another", max_tokens=100_000)
    wait_until(lambda: other.outputs("of-another"))
    assert not window.engine.may_control
    sent = len(lab.engine.commands)
    window.engine.submit(m.Load(EngineConfig(model="tiny")))
    window.engine.submit(m.Unload())
    window.engine.submit(m.Reconfigure({"max_num_seqs": 2}))
    window.engine.submit(m.MeasurePeaks())
    window.engine.submit(m.Abort("of-another"))
    window.engine.submit(m.Abort("of-nobody"))
    window.engine.cancel_load()
    assert "--no-control" in window.wait(m.LoadFailed, 2).error.cause
    assert "--no-control" in window.wait(m.ReconfigureFailed).error.cause
    assert "--no-control" in window.wait(m.PeaksMeasured).why_not
    assert window.wait(m.RequestFailed).request_id == "of-another"
    assert len(lab.engine.commands) == sent
    window.ask("mine", max_tokens=100_000)
    wait_until(lambda: window.outputs("mine"))
    window.engine.submit(m.Abort("mine"))
    wait_until(lambda: lab.commands(m.Abort) == [m.Abort("mine")])


def test_the_queue_has_the_limit_of_every_client(bench: Bench) -> None:
    lab = bench.lab(SLOW, limits=Limits(max_queued=0, max_output_tokens=1000))
    lab.load()
    window = bench.window(lab.server.url)
    for number in range(17):  # max_num_seqs is 16
        window.ask(f"r-{number}", max_tokens=1000)
    failed = window.wait(m.RequestFailed)
    assert (failed.request_id, failed.error.cause) == ("r-16", "The queue is full.")
    window.ask("long", max_tokens=2000)
    assert "allows 1000" in window.wait(m.RequestFailed, 2).error.cause


def test_windows_have_a_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_WINDOWS", 1)
    lab = bench.lab()
    first = bench.window(lab.server.url)
    first.wait_link(LinkState.LIVE)
    second = bench.window(lab.server.url)
    assert "watch this engine already" in second.wait_link(LinkState.CLOSED).words


def test_a_wrong_key_is_said(bench: Bench) -> None:
    lab = bench.lab(api_key="right")
    for key in (None, "wrong"):
        window = bench.window(lab.server.url, key)
        assert "another API key" in window.wait_link(LinkState.CLOSED).words
        window.ask("a")
        assert "another API key" in window.wait(m.RequestFailed).error.cause
    right = bench.window(lab.server.url, "right")
    right.wait(m.Unloaded)


def test_no_web_page_attaches(bench: Bench) -> None:
    """Not even one that may call the other routes."""
    lab = bench.lab(cors_origins=("*",))
    port = int(lab.server.url.rsplit(":", 1)[1])
    for host, origin in (("127.0.0.1", "https://evil.example"), ("evil.example", None)):
        socket = create_connection(("127.0.0.1", port))
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{host}:{port}{protocol.STREAM_PATH}", sock=socket, origin=origin)
        assert refused.value.response.status_code == 403
        assert b"error" in refused.value.response.body


@pytest.mark.parametrize(
    ("url", "words"),
    [("ftp://host", "no address"), ("http://", "no address"), ("http://host:port", "no address"),
     ("http://[::1", "no address")],
)  # fmt: skip
def test_what_is_no_address_is_said(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RemoteEngine(lambda event: None, Target(url))


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "h:1", "http://h:1/v1", "http://h:1/v1/"]
)
def test_an_address_may_be_written_in_many_ways(url: str) -> None:
    engine = RemoteEngine(lambda event: None, Target(url))
    assert engine.address.url == "ws://h:1/inferdeck/v1/stream"
    assert engine.place == "h:1"


def test_a_server_of_another_kind_is_said(bench: Bench) -> None:
    """It speaks HTTP and knows no stream."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    with Listening(answer) as url:
        window = bench.window(url)
        assert "no Inferdeck server" in window.wait_link(LinkState.CLOSED).words


def test_something_else_than_http_is_said(bench: Bench) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    with Listening(answer) as url:
        window = bench.window(url)
        assert "does not speak HTTP" in window.wait_link(LinkState.CLOSED).words


class Listening:
    """A server of a few lines on a thread of its own."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        import threading

        self._answer, self._ready = answer, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        assert self._ready.wait(60)
        return f"http://127.0.0.1:{self._port}"

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()


def test_versions_that_differ_are_said_on_both_sides(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = bench.lab()
    monkeypatch.setattr("app.remote.line.VERSION", 99)
    window = bench.window(lab.server.url)
    words = window.wait_link(LinkState.CLOSED).words
    assert "version 1" in words
    assert "version 99" in words
    assert lab.server.is_running


def test_what_can_be_attached_to_is_told_before(bench: Bench) -> None:
    lab = bench.lab(models=("/models/other",), api_key="k")
    lab.load()
    headers = {"Authorization": "Bearer k"}
    with httpx.Client(trust_env=False) as http:
        assert http.get(lab.server.url + protocol.PATH).status_code == 401
        facts = http.get(lab.server.url + protocol.PATH, headers=headers).json()
    assert facts["program"] == "inferdeck"
    assert facts["protocol"] == protocol.VERSION
    assert (facts["model"], facts["models"]) == ("tiny", ["other", "tiny"])


# What is no window -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [b"", b"\x00", b"\xc1\xff", b"hello", encode(Frame(1, 0)), b"\x80" * 70_000]
)
def test_what_does_not_greet_is_cut_off(bench: Bench, first: bytes) -> None:
    lab = bench.lab()
    with raw(lab) as socket:
        socket.send(first)
        with pytest.raises(WebSocketException):
            socket.recv(60)
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)


def test_a_frame_that_cannot_be_read_ends_the_line_alone(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    other = bench.window(lab.server.url)
    other.wait(m.Loaded)
    for bad in (b"\xc1", encode(Frame(5, 0)), encode(Frame(0, 77)), greeted_frame("shell", {})):
        with raw(lab) as socket:
            socket.send(encode(Hello(protocol.VERSION)))
            assert isinstance(read_answer(socket.recv(60)), Welcome)
            socket.send(greeted_frame("ready", {}, number=0))
            socket.send(bad)
            with pytest.raises(WebSocketException):
                for _ in range(100):
                    socket.recv(60)
    other.ask("a", max_tokens=3)
    assert len(other.reply("a")) == 3


def test_a_version_of_the_future_is_refused_in_words(bench: Bench) -> None:
    lab = bench.lab()
    with raw(lab) as socket:
        socket.send(encode(Hello(7, "9.9")))
        answer = read_answer(socket.recv(60))
    assert isinstance(answer, Refused)
    assert "version 7 (Inferdeck 9.9)" in answer.words


def greeted_frame(kind: str, body: Any, number: int = 1) -> bytes:
    import msgspec

    return encode(Frame(number, 0, ((kind, msgspec.Raw(msgspec.msgpack.encode(body))),)))


def raw(lab: Lab) -> Any:
    url = lab.server.url.replace("http", "ws") + protocol.STREAM_PATH
    return connect(url, proxy=None, compression=None)


# A cut line ------------------------------------------------------------------------------------


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
        assert "try" in window.wait_now(LinkState.RECONNECTING).words
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
        assert "cannot be reached" in wait_words(window, LinkState.CONNECTING)
        for number in range(5):
            window.ask(f"r-{number}")
        assert "3 commands wait" in window.wait(m.RequestFailed, 2).error.cause


def wait_words(window: Window, state: LinkState) -> str:
    from app.connections.target import LinkChanged

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
    wait_until(lambda: not lab.gate.foreign)
    proxy.mend()
    failed = window.wait(m.RequestFailed)
    assert failed.request_id == "a"
    assert "the reply was stopped" in failed.error.cause
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
    assert "The line was cut for" in window.wait(m.RequestFailed).error.cause
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
    assert "started anew" in window.wait(m.RequestFailed).error.cause
    assert window.wait(m.Loaded, 2).config.model == "another"


def test_silence_is_said_and_ends_with_the_next_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.remote.line.STALE_S", 0.5)
    monkeypatch.setattr("app.remote.line.BEAT_S", 0.1)
    lab = bench.lab()
    proxy = bench.proxy(lab.server.url)
    window = bench.window(proxy.url)
    window.wait_link(LinkState.LIVE)
    proxy.hold()
    assert "Nothing was heard" in window.wait_now(LinkState.STALE).words
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


def test_a_reader_that_stops_costs_a_bounded_amount_and_slows_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It greets, asks for much, and never reads again."""
    monkeypatch.setattr("app.remote.outbox.MAX_WEIGHT", 2000)
    lab = bench.lab(Script(step_s=0.001, replies=1_000_000), limits=Limits(stall_s=3.0))
    lab.load()
    other = bench.window(lab.server.url)
    monkeypatch.setattr("app.remote.ledger.MAX_UNHEARD_FRAMES", 4)
    with raw(lab) as socket:
        socket.send(encode(Hello(protocol.VERSION)))
        socket.recv(60)
        socket.send(greeted_frame("ready", {}, number=0))
        ask = {"request_id": "greedy", "prompt": "p", "params": {}}
        socket.send(greeted_frame("add", ask))
        wait_until(lambda: m.Abort("greedy") in lab.engine.commands)
        with suppress(WebSocketException):
            for _ in range(1000):
                socket.recv(1)
    monkeypatch.setattr("app.remote.ledger.MAX_UNHEARD_FRAMES", 512)
    other.ask("a", max_tokens=5)
    assert len(other.reply("a")) == 5


def test_a_ping_that_is_none_ends_the_line(bench: Bench) -> None:
    lab = bench.lab()
    with raw(lab) as socket:
        socket.send(encode(Hello(protocol.VERSION)))
        socket.recv(60)
        socket.send(greeted_frame("ping", "now", number=0))
        with pytest.raises(WebSocketException):
            socket.recv(60)
