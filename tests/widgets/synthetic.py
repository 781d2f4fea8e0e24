"""Snapshots as an engine under load would make them, without an engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.snapshot import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
)

GIB = 2**30
NUM_BLOCKS = 1152
MODEL = ModelInfo(
    name="Qwen3-0.6B", path="/models/qwen3", architecture="Qwen3ForCausalLM", dtype="bfloat16",
    device="cpu", num_parameters=596_000_000, weights_bytes=round(1.19 * GIB), num_layers=28,
    hidden_size=1024, num_heads=16, num_kv_heads=8, head_dim=128, vocab_size=151_936,
    max_model_len=8192, is_dummy=False, has_chat_template=True, output_bytes=311_000_000,
)  # fmt: skip
PLAN = MemoryPlan(
    total=16 * GIB, free=8 * GIB, reserve=GIB, limit=round(3.6 * GIB), weights=round(1.19 * GIB),
    activations=round(0.25 * GIB), kv_cache=round(1.5 * GIB), bytes_per_block=1_400_000,
    num_blocks=NUM_BLOCKS,
)  # fmt: skip
CONFIG = EngineConfig(num_threads=2)


def blocks(num_used: int, num_cached: int) -> BlockSnapshot:
    owner = np.full(NUM_BLOCKS, BLOCK_FREE, dtype=np.int32)
    owner[:num_used] = 0
    owner[num_used : num_used + num_cached] = BLOCK_CACHED
    return BlockSnapshot(
        16, ("r0",), owner, (owner == 0).astype(np.int32), np.full(NUM_BLOCKS, 16, np.int32),
        owner == BLOCK_CACHED, (tuple(range(num_used)),),
    )  # fmt: skip


def memory(num_used: int, num_cached: int) -> MemorySnapshot:
    kv_used, kv_cached = (n * PLAN.bytes_per_block for n in (num_used, num_cached))
    other = round(0.21 * GIB)
    return MemorySnapshot(
        plan=PLAN, weights=PLAN.weights, kv_cache=PLAN.kv_cache, kv_used=kv_used,
        kv_cached=kv_cached, other=other,
        process=PLAN.weights + kv_used + kv_cached + other, free=4 * GIB, total=16 * GIB,
    )  # fmt: skip


def requests(num_running: int, num_waiting: int) -> tuple[RequestSnapshot, ...]:
    states = [RequestState.RUNNING] * num_running + [RequestState.WAITING] * num_waiting
    return tuple(
        RequestSnapshot(f"r{i}", state, 800, 768, 800, 10, 50, 0, RequestTimes(0.0))
        for i, state in enumerate(states)
    )


def snapshot(
    at: float,
    *,
    num_running: int = 0,
    num_waiting: int = 0,
    num_used: int = 0,
    num_cached: int = 0,
    counters: Counters | None = None,
    ttft: tuple[Sample, ...] = (),
    itl: tuple[Sample, ...] = (),
) -> EngineSnapshot:
    return EngineSnapshot(
        time=at, step_index=int(at * 30), config=CONFIG, model=MODEL,
        requests=requests(num_running, num_waiting), blocks=blocks(num_used, num_cached),
        memory=memory(num_used, num_cached), counters=counters or Counters(), ttft=ttft, itl=itl,
    )  # fmt: skip


def divided_snapshot(at: float, **changes: Any) -> EngineSnapshot:
    """Of a model of which a GPU computes 20 of 28 layers, and the CPU those before them; `changes`:
    of the snapshot."""
    plan = replace(
        PLAN, weights=round(0.85 * GIB), kv_cache=NUM_BLOCKS * 1_000_000, bytes_per_block=1_000_000,
        host_layers=8, host_free=12 * GIB, host_limit=11 * GIB, host_weights=round(0.34 * GIB),
        host_activations=round(0.1 * GIB), host_kv_cache=NUM_BLOCKS * 400_000,
        host_bytes_per_block=400_000,
    )  # fmt: skip
    before = snapshot(at, num_running=1, num_used=300, num_cached=100)
    held = replace(
        before.memory, plan=plan, weights=plan.weights, kv_cache=plan.kv_cache,
        kv_used=300 * plan.bytes_per_block, kv_cached=100 * plan.bytes_per_block,
        process=plan.weights + plan.kv_cache + round(0.21 * GIB), free=GIB,
        host_weights=plan.host_weights, host_kv_cache=plan.host_kv_cache,
    )  # fmt: skip
    name = "NVIDIA GeForce RTX 3050, CPU offload of 8 of 28 layers"
    model = replace(MODEL, device="cuda:0", device_name=name)
    return replace(before, **{"memory": held, "model": model, **changes})


def load_run(end: float, seconds: float, every: float = 0.1) -> Iterator[EngineSnapshot]:
    """A run that ends at `end`; after 58 % of it `max_num_seqs` goes from 8 to 16."""
    rng = np.random.default_rng(7)
    prompt = generated = queries = hits = 0
    for step in range(round(seconds / every)):
        at = end - seconds + (step + 1) * every
        late = step * every > 0.58 * seconds
        running = 16 if late else 8
        itl_ms = (30 if late else 22) + 1.5 * math.sin(step / 60) + rng.gamma(2, 1.6, size=4)
        ttft_ms = (85 if late else 145) * rng.gamma(6, 1 / 6, size=int(rng.random() < 0.3))
        generated += round(every * running * (11 + 2 * math.sin(step / 80)))
        prompt += round(every * (350 if late else 230) * rng.uniform(0.5, 1.5))
        queries, hits = queries + 80, hits + round(80 * (0.71 if late else 0.55))
        used = round(430 + 120 * math.sin(step / 150) + (250 if late else 0))
        yield snapshot(
            at, num_running=running - (step // 17) % 3, num_waiting=3 + (step // 40) % 4,
            num_used=used, num_cached=round(240 + 60 * math.cos(step / 100)),
            counters=Counters(prompt, 0, generated, queries, hits),
            ttft=tuple(Sample(at, ms / 1e3) for ms in ttft_ms),
            itl=tuple(Sample(at, ms / 1e3) for ms in itl_ms),
        )  # fmt: skip


def feed(view: Any, snapshot: EngineSnapshot) -> None:
    """Give a view a snapshot, and its clock's next beat at once."""
    view.update_snapshot(snapshot)
    view._clock.beat.emit()
