"""The memory that a snapshot tells of."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.host.assembly import Held
from engine.telemetry.snapshots import MemoryReading, memory_snapshot

SIZE = 1000
"""Bytes of a block."""
BLOCKS: Any = SimpleNamespace(
    num_used=5, num_cached=3, num_reserved=2, block_size=10, num_wasted_tokens=0
)


def assembly(device: str) -> Any:
    plan: Any = SimpleNamespace(bytes_per_block=SIZE)
    return SimpleNamespace(
        plan=plan, config=SimpleNamespace(device=device), held=Held(500, 100 * SIZE, 0, 0)
    )


@pytest.mark.parametrize(
    "device, cache, resident",
    [
        ("cpu", 40 * SIZE, 40 * SIZE),
        ("cpu", 400 * SIZE, 100 * SIZE),  # read before a smaller cache was made
        ("cpu", None, 6 * SIZE),  # blocks with tokens
        ("cuda:0", None, 100 * SIZE),
    ],
)
def test_the_rest_of_the_process_is_less_what_the_cache_takes(
    device: str, cache: int | None, resident: int
) -> None:
    reading = MemoryReading(10**6, 10**7, 10**8, cache)
    found = memory_snapshot(assembly(device), BLOCKS, reading)
    assert found.kv_resident == resident
    assert found.other == 10**6 - 500 - resident
    unknown = memory_snapshot(assembly(device), BLOCKS, MemoryReading())
    assert (unknown.process, unknown.kv_resident) == (0, found.kv_cache)


@pytest.mark.parametrize("drafts", [{}, {"speculative_method": "draft_model"}])
def test_the_cache_takes_memory_as_it_is_used(tiny_folder: Path, drafts: dict[str, str]) -> None:
    of_drafts = drafts and {**drafts, "speculative_model": str(tiny_folder)}
    engine = LLMEngine(
        EngineConfig(
            model=str(tiny_folder), num_threads=1, kv_cache_memory_bytes=2**20, **of_drafts
        )
    )
    try:
        before = engine.snapshot().memory
        engine.add_request(list(range(3, 190)), SamplingParams(max_tokens=4, temperature=0.0))
        while engine.has_unfinished:
            engine.step()
        engine._meter._next_at = 0.0
        after = engine.snapshot().memory
    finally:
        engine.shutdown()
    assert before.kv_resident < after.kv_resident <= after.kv_cache
    assert after.kv_resident % mmap.PAGESIZE == 0
    assert after.kv_resident >= after.kv_cached
