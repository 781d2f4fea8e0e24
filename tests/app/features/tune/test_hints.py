"""What the line under a setting says, from snapshots of a known engine. No Qt."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from app.features.tune.hints import Hints
from engine.config import EngineConfig
from engine.memory.plan import max_useful_blocks
from engine.snapshot import (
    BLOCK_FREE,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    StepEntry,
    StepRecord,
    ThreadFigures,
    ThreadsOf,
    TokenBudget,
)
from tests.figures import numbers


def step(start: float, duration: float, *entries: StepEntry) -> StepRecord:
    return StepRecord(int(start * 10), start, duration, entries, len(entries), 0)


def test_nothing_is_said_before_a_snapshot() -> None:
    assert Hints().hint("block_size") == ""


def test_an_idle_engine(idle: EngineSnapshot) -> None:
    hints = Hints()
    none = dataclasses.replace(idle.counters, prefix_queries=0, prefix_hits=0)
    hints.metrics.update(dataclasses.replace(idle, time=idle.time - 1, counters=none))
    hints.metrics.update(idle)
    hints.update(idle)
    assert numbers(hints.hint("max_num_seqs")) == [0, 0]
    assert hints.hint("max_num_batched_tokens")
    assert numbers(hints.hint("block_size")) == [15]
    assert numbers(hints.hint("watermark")) == [6, 128]
    assert numbers(hints.hint("enable_prefix_caching")) == [40, 100]
    assert str(idle.model.max_model_len) in hints.hint("max_model_len").replace(",", "")
    assert hints.hint("seed") == ""


def test_a_measured_budget_says_why_it_was_chosen(idle: EngineSnapshot) -> None:
    hints = Hints()
    model = dataclasses.replace(idle.model, token_budget=TokenBudget(2048, 0.14, 0.25))
    config = idle.config.replace(max_num_batched_tokens=2048)
    measured = dataclasses.replace(idle, model=model, config=config)
    hints.update(measured)
    assert numbers(hints.hint("max_num_batched_tokens")) == [2048, 140, 250]
    slow = step(999.0, 1.8, StepEntry("a", "prefill", 255), StepEntry("b", "decode", 1))
    within = step(998.0, 0.2, StepEntry("a", "decode", 1), StepEntry("b", "prefill", 255))
    alone = step(997.0, 1.9, StepEntry("a", "prefill", 2048))  # no request waits for a token
    hints.update(dataclasses.replace(measured, steps=(alone, within)))
    assert numbers(hints.hint("max_num_batched_tokens")) == [2048, 140, 250]
    hints.update(dataclasses.replace(measured, steps=(within, slow)))
    assert numbers(hints.hint("max_num_batched_tokens")) == [2048, 140, 250, 256, 1.8]
    model = dataclasses.replace(model, token_budget=TokenBudget(256, 0.14, 0.25))
    config = config.replace(max_num_batched_tokens=256)
    hints.update(dataclasses.replace(measured, model=model, config=config))
    assert numbers(hints.hint("max_num_batched_tokens"))[:4] == [256, 140, 250, 2048]


def test_compressed_weights_say_how_many_bits_they_take(idle: EngineSnapshot) -> None:
    hints = Hints()
    count = idle.model.num_parameters
    found = []
    for size in (2 * count, 3 * count // 2):
        model = dataclasses.replace(idle.model, dtype="bfloat16", weights_bytes=size)
        hints.update(dataclasses.replace(idle, model=model))
        found.append(numbers(hints.hint("quantization"))[-1])
    assert found == [16, 12]


def test_the_cache_names_its_precision(idle: EngineSnapshot) -> None:
    hints = Hints()
    plan = dataclasses.replace(
        idle.memory.plan, bytes_per_block=16 * 1056, key_dtype="int8", value_dtype="bfloat16"
    )
    hints.update(dataclasses.replace(idle, memory=dataclasses.replace(idle.memory, plan=plan)))
    assert numbers(hints.hint("kv_cache_dtype")) == [8, 16, 1.03]


def test_what_was_captured_is_said(idle: EngineSnapshot) -> None:
    hints = Hints()
    hints.update(idle)
    assert hints.hint("enforce_eager")
    words = "CUDA graphs: 5 sizes up to 16 requests, 12 MiB"
    model = dataclasses.replace(idle.model, kernels={"decode": words})
    hints.update(dataclasses.replace(idle, model=model))
    assert hints.hint("enforce_eager") == words


def test_steps_are_summed_over_the_last_minute(idle: EngineSnapshot) -> None:
    prefill, decode = StepEntry("a", "prefill", 512), StepEntry("b", "decode", 1)
    steps = (
        step(930.0, 0.5, StepEntry("a", "prefill", 4096)),  # too long ago
        step(990.0, 0.058, prefill),
        step(990.5, 0.030, prefill, decode),
        step(995.0, 0.002, decode),
    )
    hints = Hints()
    hints.update(dataclasses.replace(idle, steps=steps))
    assert numbers(hints.hint("max_num_batched_tokens")) == [513, 30]
    assert numbers(hints.hint("enable_chunked_prefill")) == [2, 1]
    assert numbers(hints.hint("batching")) == [1.3]
    assert "30 ms" in hints.hint("num_threads")
    hints.update(dataclasses.replace(idle, time=1100.0))
    assert hints.hint("max_num_batched_tokens")


def test_threads_of_the_steps_are_told(idle: EngineSnapshot) -> None:
    hints = Hints()
    steps = (step(999.0, 0.002, StepEntry("a", "decode", 1)),)
    hints.update(dataclasses.replace(idle, steps=steps, threads=None))
    assert hints.hint("adaptive_threads") == ""  # a server of before tells nothing of them
    assert numbers(hints.hint("num_threads")) == [2]
    found = (ThreadsOf(1, 1, 1), ThreadsOf(4, 7, 2))
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(4, 1, 3, 1.04, found)))
    assert numbers(hints.hint("num_threads")) == [1, 4, 2]
    assert numbers(hints.hint("adaptive_threads")) == [1, 1, 1, 4, 7, 2]
    found = (ThreadsOf(1, 1, 1), ThreadsOf(2, 3, 1), ThreadsOf(4, 7, 2), ThreadsOf(16, 31, 2))
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(4, 1, 3, None, found)))
    assert numbers(hints.hint("adaptive_threads")) == [1, 3, 1, 4, 7, 2, 16, 31, 2]
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(1, 1, 1, None)))
    assert hints.hint("adaptive_threads")


@pytest.mark.parametrize("seqs", [1, 8, 9])
def test_an_automatic_cache_says_for_how_many_requests_it_has_room(
    idle: EngineSnapshot, seqs: int
) -> None:
    """Those of the cache: max running requests may have changed since without a rebuild."""
    length = 2048
    made = EngineConfig(max_num_seqs=seqs, max_model_len=length)
    count = max_useful_blocks(made)
    nothing = np.zeros(count, np.int32)
    blocks = BlockSnapshot(
        made.block_size, (), np.full(count, BLOCK_FREE, np.int32), nothing, nothing,
        nothing.astype(np.bool_),
    )  # fmt: skip
    model = dataclasses.replace(idle.model, max_model_len=length)
    seen = dataclasses.replace(idle, config=made, model=model, blocks=blocks)
    hints = Hints()
    for config in (made, made.replace(max_num_seqs=2 * seqs)):
        hints.update(dataclasses.replace(seen, config=config))
        assert [seqs, length] == numbers(hints.hint("kv_cache_memory_bytes"))[-2:]
    hints.update(dataclasses.replace(seen, config=made.replace(kv_cache_memory_bytes=2**30)))
    assert length not in numbers(hints.hint("kv_cache_memory_bytes"))


def test_preemptions_are_those_since_the_last_change(idle: EngineSnapshot) -> None:
    def seen(count: int, at: float, seqs: int, *steps: StepRecord) -> list[float]:
        hints.update(
            dataclasses.replace(
                idle, time=at, steps=steps, config=EngineConfig(max_num_seqs=seqs),
                counters=Counters(preemptions=count),
            )
        )  # fmt: skip
        return numbers(hints.hint("kv_cache_memory_bytes").rpartition(" · ")[2])

    hints = Hints()
    assert seen(0, 1.0, 4) == []
    step = StepRecord(1, 9.5, 0.5, (), 1, 0, preempted=("a",), kv_usage=0.98)
    assert seen(12, 50.0, 4, step) == [12, 40, 98]
    assert seen(12, 60.0, 4) == [12, 50, 98]
    assert seen(15, 70.0, 2) == [0, 15]  # the change itself preempted three
    assert seen(16, 80.0, 2) == [1, 15]


def test_a_fast_engine_costs_little_to_explain(idle: EngineSnapshot) -> None:
    """30,000 steps a minute are kept as 60 sums."""
    decode = tuple(StepEntry(str(i), "decode", 1) for i in range(8))
    steps = tuple(step(940 + i * 0.002, 0.002, *decode) for i in range(30_000))
    hints = Hints()
    hints.update(dataclasses.replace(idle, steps=steps))
    assert len(hints._seconds) <= 62
    began = time.thread_time()
    for name in hints._makers:
        hints.hint(name)
    assert time.thread_time() - began < 0.1  # 30,000 steps one by one take longer
