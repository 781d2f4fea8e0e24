"""The clock at the socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from app.clients.socket_clock import MOST_KEPT, TimedStream, stream_of, timed_transport

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(talk: Talk, use: Callable[[httpx.AsyncClient, str], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await talk(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        transport = timed_transport(httpx.Limits(), is_here=True)
        async with server, httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return await use(client, url)

    return asyncio.run(go())


def stream_in(response: httpx.Response) -> TimedStream:
    found = stream_of(response)
    assert found is not None
    return found


async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(2):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD % 2)
        await asyncio.sleep(0.05)
        writer.write(b"ok")


def test_bytes_have_the_time_when_they_came_however_late_they_are_read() -> None:
    async def use(client: httpx.AsyncClient, url: str) -> None:
        last = time.perf_counter()
        for is_first in (True, False):
            before = time.perf_counter()
            async with client.stream("GET", url) as response:
                wire = stream_in(response)
                head_at = wire.read_at
                # of a new connection, when it began; of one that was kept, when the bytes went out
                assert before <= wire.begun_at <= head_at
                assert is_first or wire.begun_at > last
                await asyncio.sleep(0.5)  # busy elsewhere: the loop has the bytes meanwhile
                assert await response.aread() == b"ok"
                assert head_at < wire.read_at < time.perf_counter() - 0.2
                last = wire.read_at

    with_server(answer_twice, use)


def test_a_request_goes_out_in_one_piece_and_a_large_one_in_several() -> None:
    pieces: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = None
        data = b""
        while wanted is None or len(data) < wanted:
            part = await reader.read(2**20)
            pieces.append(len(part))
            data += part
            head, mark, _ = data.partition(b"\r\n\r\n")
            if mark:
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                wanted = len(head) + 4 + size
        writer.write(HEAD % 2 + b"ok")

    async def use(client: httpx.AsyncClient, url: str) -> None:
        assert (await client.post(url, content=b"x" * 100)).text == "ok"

    with_server(talk, use)
    assert len(pieces) == 1

    async def use_large(client: httpx.AsyncClient, url: str) -> None:
        assert (await client.post(url, content=b"x" * (5 * MOST_KEPT))).text == "ok"

    with_server(talk, use_large)


def test_more_than_is_read_waits_in_the_socket() -> None:
    size = 40 * MOST_KEPT

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD % size)
        for _ in range(40):
            writer.write(b"x" * MOST_KEPT)
            await writer.drain()

    async def use(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as response:
            await asyncio.sleep(0.2)
            protocol = stream_in(response)._protocol
            assert sum(len(one.data) for one in protocol.arrived) < 8 * MOST_KEPT
            assert len(await response.aread()) == size

    with_server(talk, use)


def test_what_goes_wrong_is_said_as_httpx_says_it() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def use(client: httpx.AsyncClient, url: str) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)

    with_server(hang_up, use)

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use_late(client: httpx.AsyncClient, url: str) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=0.2)

    with_server(be_silent, use_late)

    async def nobody() -> None:
        transport = timed_transport(httpx.Limits(), is_here=True)
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:1/")

    asyncio.run(nobody())


def test_a_program_that_slept_while_it_connected_connects_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that was stopped, or on a laptop: its time is over, and the server is there."""
    sleeps = [0.3]

    async def use(client: httpx.AsyncClient, url: str) -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def connect_slowly(*given: Any, **more: Any) -> Any:
            if sleeps:
                loop.call_soon(time.sleep, sleeps.pop())  # when it waits for its connection
            return await connect(*given, **more)

        monkeypatch.setattr(loop, "create_connection", connect_slowly)
        answer = await client.get(url, timeout=httpx.Timeout(20.0, connect=0.1))
        assert answer.status_code == 200 and not sleeps

    with_server(answer_twice, use)


def test_a_client_that_is_closed_leaves_no_socket_to_a_loop_that_ends() -> None:
    async def use(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as response:
            await response.aread()
            protocol = stream_in(response)._protocol
        assert not protocol.closed.is_set()  # kept for the next request
        await client.aclose()
        assert protocol.closed.is_set()

    with_server(answer_twice, use)


def test_where_a_proxy_stands_between_httpx_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert timed_transport(httpx.Limits(), is_here=False) is None
    assert timed_transport(httpx.Limits(), is_here=True) is not None
