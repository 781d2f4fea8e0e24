"""vLLM's KV cache events: which blocks its prefix cache stores and evicts, as it happens.

    window -- GET /kv_event_sources --> vLLM    where it publishes, if --kv-events-config says so
    window <== topic, number, msgpack == PUB    vllm/distributed/kv_events.py

The socket is ZeroMQ's: ZMTP 3.0 (rfc.zeromq.org/spec/23) with the mechanism NULL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from app.clients.target import Address
from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot

PATH = "kv_event_sources"
MAX_BLOCKS, MAX_FRAME = 1 << 20, 1 << 24
MAX_BLOCK_SIZE = 1 << 16
MAX_RANKS = 64
HANDSHAKE_S = 5.0
PARTS = 3  # of a message: topic, number, content
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
_MORE, _LONG, _COMMAND = 1, 2, 4


class Source(NamedTuple):
    """path: of a Unix socket; else host and port."""

    topic: str
    host: str = ""
    port: int = 0
    path: str = ""


def read_sources(
    value: Any, address: Address, forwards: Mapping[str, int] = MappingProxyType({})
) -> list[Source]:
    """One for each data-parallel rank, from the answer of /kv_event_sources of the server at
    `address`. forwards: see `Target`. None where events are off, or where vLLM connects to a
    collector."""
    ranks = list(value.values())[:MAX_RANKS] if isinstance(value, dict) else []
    found = [_source(one, address, forwards) for one in ranks]
    return [one for one in found if one is not None] if all(found) else []


def _source(given: Any, address: Address, forwards: Mapping[str, int]) -> Source | None:
    if not isinstance(given, dict) or given.get("publisher") != "zmq":
        return None
    endpoint, topic = str(given.get("endpoint")), str(given.get("topic") or "")
    if port := forwards.get(endpoint):
        return Source(topic, "127.0.0.1", port)
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc" and address.is_here and hasattr(asyncio, "open_unix_connection"):
        return Source(topic, path=place)
    host, _, number = place.rpartition(":")
    if scheme != "tcp" or host != "*" or not number.isdecimal():
        return None
    return Source(topic, urlsplit(address.root).hostname or "", int(number))


async def batches(source: Source) -> AsyncGenerator[bytes, None]:
    """An empty one once connected, then the messages of the topic. Raises OSError, EOFError,
    ValueError where the connection ends or is not ZeroMQ's, or where a message was lost."""
    async with asyncio.timeout(HANDSHAKE_S):
        if source.path:
            reader, writer = await asyncio.open_unix_connection(source.path)
        else:
            reader, writer = await asyncio.open_connection(source.host, source.port)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            writer.write(_GREETING)
            if (await reader.readexactly(64))[:10:9] != b"\xff\x7f":
                raise ValueError("not a ZeroMQ socket")
            writer.write(bytes((_COMMAND, len(_READY))) + _READY)
            topic = b"\x01" + source.topic.encode()
            writer.write(bytes((0, len(topic))) + topic)
            await _frame(reader)  # READY
        parts: list[bytes] = []
        last = None
        yield b""
        while True:
            flags, body = await _frame(reader)
            if flags & _COMMAND:
                continue
            parts.append(body)
            if len(parts) > PARTS:
                raise ValueError(f"a message of more than {PARTS} parts")
            if flags & _MORE:
                continue
            if len(parts) != PARTS or len(parts[1]) != 8:
                raise ValueError(f"a message of {len(parts)} parts")
            _, number, payload = parts
            count = int.from_bytes(number, "big")
            if last is not None and count != last + 1:
                raise ValueError("messages were lost")
            last, parts = count, []
            yield payload
    finally:
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (flags,) = await reader.readexactly(1)
    size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1), "big")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes")
    return flags, await reader.readexactly(size)


class _Event(msgspec.Struct):
    type: str
    block_hashes: list[bytes | int] = []
    block_size: int = 0
    medium: str | None = None
    group_idx: int | None = None


class _Batch(msgspec.Struct, array_like=True):
    time: float
    events: list[_Event]


_decoder = msgspec.msgpack.Decoder(_Batch)


class StoredBlocks:
    """Blocks of the prefix cache in the order in which they were stored; their ids in the engine
    are not published, nor which of them requests use. num_blocks: of the KV cache."""

    def __init__(self, num_blocks: int) -> None:
        self._owner = np.full(min(num_blocks, MAX_BLOCKS), BLOCK_FREE, np.int32)
        self._places: dict[tuple[int | None, bytes | int], int] = {}
        self._free = list(range(len(self._owner)))[::-1]
        self._block_size = 0
        self.evictions = 0

    def apply(self, payload: bytes) -> None:
        """Raises ValueError for content of another version."""
        for event in _decoder.decode(payload).events if payload else ():
            if event.medium not in (None, "GPU"):
                continue  # offloaded
            keys = [(event.group_idx, one) for one in event.block_hashes]
            if event.type == "BlockStored":
                if not 0 < event.block_size <= MAX_BLOCK_SIZE:
                    raise ValueError(f"blocks of {event.block_size} tokens")
                self._block_size = event.block_size
                for key in keys:
                    if key not in self._places and self._free:
                        self._places[key] = self._free.pop()
                        self._owner[self._places[key]] = BLOCK_CACHED
            elif event.type == "BlockRemoved":
                self.evictions += sum(map(self._remove, keys))
            elif event.type == "AllBlocksCleared":
                for key in list(self._places):
                    self._remove(key)

    def _remove(self, key: tuple[int | None, bytes | int]) -> bool:
        """Whether it was known: it may be older than the connection."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        self._owner[place] = BLOCK_FREE
        self._free.append(place)
        return True

    @property
    def blocks(self) -> BlockSnapshot:
        owner = self._owner.copy()
        is_stored = owner == BLOCK_CACHED
        fill = np.where(is_stored, self._block_size, 0).astype(np.int32)
        return BlockSnapshot(
            self._block_size or 1, (), owner, np.zeros(len(owner), np.int32), fill, is_stored
        )


def joined(ranks: Sequence[StoredBlocks]) -> BlockSnapshot:
    """The blocks of all data-parallel ranks, one after the other."""
    parts = [one.blocks for one in ranks]
    owner, ref_count, fill, hashed = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("owner", "ref_count", "fill", "hashed")
    )
    size = max(part.block_size for part in parts)
    return BlockSnapshot(size, (), owner, ref_count, fill, hashed)
