"""KV cache events of vLLM: recorded payloads, a scripted ZeroMQ publisher, and the window's map."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.kv_events import PATH, Source, StoredBlocks, batches, joined, read_sources
from app.clients.latencies import Samples
from app.clients.probe import probe
from app.clients.target import parse_address
from app.clients.watch import Watch, model_named, num_blocks_of
from engine.config import EngineConfig
from engine.snapshot import Part
from tests.app.clients.conftest import PAGES, ScriptedServer, server

__all__ = ["server"]
HERE = parse_address("http://127.0.0.1:8123")
RECORDED = json.loads((PAGES / "vllm_0.32_kv_events.json").read_text())


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def stored(*hashes: int, **more: Any) -> bytes:
    event = {"type": "BlockStored", "block_hashes": hashes, "block_size": 32, "token_ids": [1]}
    return batch({**event, "medium": "GPU", **more})


def removed(*hashes: int) -> bytes:
    return batch({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})


CLEARED = batch({"type": "AllBlocksCleared"})


def sources(**more: Any) -> dict[str, Any]:
    return {"0": {"publisher": "zmq", "topic": "kv", **more}}


@pytest.mark.parametrize("value, wanted", [
    (sources(endpoint="tcp://*:5557"), Source("kv", "127.0.0.1", 5557)),
    (sources(endpoint="ipc:///run/kv"), Source("kv", path="/run/kv")),
    (sources(endpoint="tcp://collector:5557"), None),  # vLLM connects to that one
    (sources(endpoint="tcp://*:5557", publisher="null"), None),
    ({**sources(endpoint="tcp://*:1"), "1": {}}, None),
    (sources(endpoint="ipc:///there/kv"), Source("kv", "127.0.0.1", 23)),  # forwarded
    ({"detail": "Not Found"}, None), (None, None),
])  # fmt: skip
def test_where_events_are_published(value: Any, wanted: Source | None) -> None:
    found = read_sources(value, HERE, {"ipc:///there/kv": 23})
    assert found == ([wanted] if wanted is not None else [])


def test_each_data_parallel_rank_has_its_own() -> None:
    first = sources(endpoint="tcp://*:5557")["0"]
    value = {"0": first, "1": {**first, "endpoint": "tcp://*:5558"}}
    assert [one.port for one in read_sources(value, HERE)] == [5557, 5558]
    ranks = [StoredBlocks(2), StoredBlocks(3)]
    ranks[0].apply(stored(7))
    ranks[1].apply(stored(7, 8))
    found = joined(ranks)
    assert (found.num_blocks, found.num_cached, found.block_size) == (5, 3, 32)
    assert list(found.hashed) == [True, False, True, True, False]
    assert num_blocks_of(
        'vllm:cache_config_info{engine="0",num_gpu_blocks="64"} 1.0\n'
        'vllm:cache_config_info{engine="1",num_gpu_blocks="32"} 1.0\n'
    ) == (64, 32)


def test_a_socket_of_another_machine_is_not_looked_for_here() -> None:
    far = parse_address("http://gpu:8000")
    assert read_sources(sources(endpoint="ipc:///run/kv"), far) == []
    assert [one.host for one in read_sources(sources(endpoint="tcp://*:5557"), far)] == ["gpu"]


@given(st.lists(st.tuples(st.sampled_from("src"), st.sets(st.integers(0, 9))), max_size=20))
def test_what_is_stored_is_what_was_stored_and_not_removed(
    steps: list[tuple[str, set[int]]],
) -> None:
    made, wanted, evictions = StoredBlocks(10), set[int](), 0
    for kind, hashes in steps:
        if kind == "s":
            made.apply(stored(*hashes))
            wanted |= hashes
        elif kind == "r":
            evictions += len(wanted & hashes)
            made.apply(removed(*hashes))
            wanted -= hashes
        else:
            made.apply(CLEARED)
            wanted = set()
        blocks = made.blocks
        assert (blocks.num_cached, blocks.num_used) == (len(wanted), 0)
        assert (blocks.num_blocks, made.evictions) == (10, evictions)


def test_more_than_there_is_room_for_and_offloaded_blocks() -> None:
    made = StoredBlocks(2)
    made.apply(stored(1, 2, 3))
    made.apply(stored(4, medium="CPU"))
    assert made.blocks.num_cached == 2
    with pytest.raises(ValueError):
        made.apply(b"\x93\x01\x02\x03")


def test_recorded_events_of_vllm() -> None:
    """Four prompts: their full blocks as they are computed, one more for each 32 tokens."""
    made = StoredBlocks(64)
    counts = []
    for payload in map(bytes.fromhex, RECORDED):
        made.apply(payload)
        counts.append(made.blocks.num_cached)
    assert counts == [9, 10, 19, 20, 29, 30, 31, 34, 35, 36]
    assert (made.blocks.block_size, made.evictions) == (32, 0)


# A scripted publisher ---------------------------------------------------------------------------


@asynccontextmanager
async def publisher(
    path: Path, *messages: tuple[int, bytes], more: bytes = b""
) -> AsyncIterator[list[bytes]]:
    """Sends the numbered payloads, and `more`, once it is subscribed to; what it was sent."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16 + 32))
        writer.write(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB")
        seen.append(await reader.readexactly(64))
        for _ in range(2):
            _, size = await reader.readexactly(2)
            seen.append(await reader.readexactly(size))
        for number, payload in messages:
            size = len(payload).to_bytes(8, "big")
            writer.write(b"\x01\x02kv\x01\x08" + number.to_bytes(8, "big"))
            writer.write(b"\x02" + size + payload)
        writer.write(more)
        await writer.drain()
        writer.close()

    made = await asyncio.start_unix_server(serve, path)
    async with made:
        yield seen


async def received(path: Path) -> list[bytes]:
    return [one async for one in batches(Source("kv", path=str(path)))]


def test_messages_come_in_order_until_the_connection_ends(tmp_path: Path) -> None:
    async def go() -> None:
        got: list[bytes] = []
        async with publisher(tmp_path / "kv", (4, b"one"), (5, b"x" * 300)) as seen:
            with pytest.raises(EOFError):
                async for one in batches(Source("kv", path=str(tmp_path / "kv"))):
                    got += [one]
        assert got == [b"", b"one", b"x" * 300]
        assert seen[0][:10:9] == b"\xff\x7f" and b"SUB" in seen[1] and seen[2] == b"\x01kv"

    asyncio.run(go())


def test_a_lost_message_is_an_error(tmp_path: Path) -> None:
    async def go() -> None:
        async with publisher(tmp_path / "kv", (4, b"one"), (6, b"two")):
            with pytest.raises(ValueError, match="lost"):
                await received(tmp_path / "kv")

    asyncio.run(go())


@pytest.mark.parametrize("said, error", [
    (b"HTTP/1.1 400 Bad Request\r\n".ljust(64), ValueError), (b"", TimeoutError),
])  # fmt: skip
def test_a_socket_that_is_not_zeromqs_or_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, error: type[Exception]
) -> None:
    monkeypatch.setattr("app.clients.kv_events.HANDSHAKE_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    async def go() -> None:
        async with await asyncio.start_unix_server(serve, tmp_path / "kv"):
            with pytest.raises(error):
                await received(tmp_path / "kv")

    asyncio.run(go())


def test_a_message_without_an_end_and_blocks_of_no_size(tmp_path: Path) -> None:
    async def go() -> None:
        async with publisher(tmp_path / "kv", more=9 * b"\x01\x01x"):
            with pytest.raises(ValueError, match="parts"):
                await received(tmp_path / "kv")

    asyncio.run(go())
    with pytest.raises(ValueError, match="-1 tokens"):
        StoredBlocks(2).apply(stored(1, block_size=-1))


def test_the_window_has_the_blocks_beside_what_is_not_reported(
    server: ScriptedServer, tmp_path: Path
) -> None:
    page = (PAGES / "vllm_0.32_details.txt").read_text()
    server.replica(page=page).answers[f"/{PATH}"] = sources(endpoint=f"ipc://{tmp_path / 'kv'}")
    assert num_blocks_of(page) == (2048,)

    async def go() -> None:
        async with httpx.AsyncClient() as client, publisher(tmp_path / "kv", (0, stored(7, 8))):
            target = server.target
            watch = Watch(client, target, parse_address(target.base_url), probe(target))
            task = asyncio.create_task(watch.follow_blocks())
            await watch.look()
            async with asyncio.timeout(20):
                while not watch.stored or not watch.stored[0].blocks.num_cached:
                    await asyncio.sleep(0)
            model = model_named("m", "vLLM", None)
            found = watch.snapshot(EngineConfig(model="m"), model, (), Samples())
            assert (found.blocks.num_blocks, found.blocks.num_cached) == (2048, 2)
            assert Part.BLOCKS in found.missing  # which ones are in use
            task.cancel()

    asyncio.run(go())


def test_a_server_without_events_is_asked_once(server: ScriptedServer) -> None:
    server.replica(page=(PAGES / "vllm_0.32_details.txt").read_text())

    async def go() -> None:
        async with httpx.AsyncClient() as client:
            target = server.target
            watch = Watch(client, target, parse_address(target.base_url), probe(target))
            await watch.look()
            await watch.follow_blocks()
            assert not watch.stored

    asyncio.run(go())
    assert [path for path, _ in server.seen].count(f"/{PATH}") == 1
