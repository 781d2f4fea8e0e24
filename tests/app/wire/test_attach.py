"""Before a window is attached: addresses, keys, versions, and what answers there instead."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from socket import create_connection
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.clients.attached import RemoteEngine
from app.clients.attached_line import stream_url
from app.clients.target import LinkState, Target, TargetError
from app.wire import protocol
from engine import messages as m
from engine.heartbeat import Pulse
from tests.app.wire.windows import Bench


def test_a_wrong_key_is_said(bench: Bench) -> None:
    lab = bench.lab(api_key="right")
    for key in (None, "wrong"):
        window = bench.window(lab.server.url, key)
        assert "API key" in window.wait_link(LinkState.CLOSED).words
        window.ask("a")
        assert "API key" in window.wait(m.RequestFailed).error.cause
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


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://[::1"])
def test_an_invalid_address_is_named(url: str) -> None:
    with pytest.raises(TargetError, match=re.escape(url)):
        RemoteEngine(lambda event: None, Target(url))


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "h:1", "http://h:1/v1", "http://h:1/v1/"]
)
def test_an_address_may_be_written_in_many_ways(url: str) -> None:
    engine = RemoteEngine(lambda event: None, Target(url))
    assert stream_url(engine.address) == "ws://h:1/inferdeck/v1/stream"
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
        assert "Inferdeck" in window.wait_link(LinkState.CLOSED).words


def test_something_else_than_http_is_said(bench: Bench) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    with Listening(answer) as url:
        window = bench.window(url)
        assert "HTTP" in window.wait_link(LinkState.CLOSED).words


class Listening:
    """A server of a few lines on a thread of its own."""

    def __init__(self, answer: Callable[..., Any]) -> None:
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
    monkeypatch.setattr("app.clients.attached_line.VERSION", 99)
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


def test_the_heartbeat_of_the_engine_comes_with_each_exchange(bench: Bench) -> None:
    lab, other = bench.lab(), bench.lab()
    lab.engine_client.pulse = lambda: Pulse("step of 9 tokens", 2.5)
    window = bench.window(lab.server.url)
    window.wait_link(LinkState.LIVE)
    assert window.engine.pulse == Pulse("step of 9 tokens", 2.5)
    window = bench.window(other.server.url)
    window.wait_link(LinkState.LIVE)
    assert window.engine.pulse is None, "not reported"
