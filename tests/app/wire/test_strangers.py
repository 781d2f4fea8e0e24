"""What comes to the door of the windows and is none, or stops being one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.http11 import Response
from websockets.sync.client import connect

from app.clients.attached_line import _not_let_in
from app.clients.target import Address
from app.server.options import Limits
from app.wire import protocol
from app.wire.protocol import Frame, Hello, Refused, Welcome, encode, read_answer
from engine import messages as m
from tests.app.fakes import Script
from tests.app.server.conftest import wait_until
from tests.app.wire.windows import Bench, Lab


def greeted_frame(kind: str, body: Any, number: int = 1) -> bytes:
    return encode(Frame(number, 0, ((kind, msgspec.Raw(msgspec.msgpack.encode(body))),)))


def raw(lab: Lab) -> Any:
    url = lab.server.url.replace("http", "ws") + protocol.STREAM_PATH
    return connect(url, proxy=None, compression=None)


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


def test_a_reader_that_stops_costs_a_bounded_amount_and_slows_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It greets, asks for much, and never reads again."""
    monkeypatch.setattr("app.server.attach_session.MAX_WEIGHT", 2000)
    lab = bench.lab(Script(step_s=0.001, replies=1_000_000), limits=Limits(stall_s=3.0))
    lab.load()
    other = bench.window(lab.server.url)
    monkeypatch.setattr("app.wire.sequencer.MAX_UNACKNOWLEDGED_FRAMES", 4)
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
    monkeypatch.setattr("app.wire.sequencer.MAX_UNACKNOWLEDGED_FRAMES", 512)
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


@pytest.mark.parametrize("body", [b"[" * 5000, b"{}", b'{"error": []}', b"\xff", b""])
def test_a_refusal_without_a_reason_is_a_refusal(body: bytes) -> None:
    answer = Response(418, "", Headers(), body)
    error = _not_let_in(InvalidStatus(answer), Address("http://host:1", "host:1"))
    assert "host" in str(error) and "418" in str(error)
