"""What the line under a setting says, from snapshots of a known engine. No Qt."""

from __future__ import annotations

import dataclasses
import time

import pytest

from app.panels.hints import Hints
from engine.snapshot import EngineSnapshot, StepEntry, StepRecord, ThreadFigures, ThreadsOf
from tests.app.fakes import Script, snapshot_at_rest


@pytest.fixture(scope="module")
def idle() -> EngineSnapshot:
    """The snapshot of a loaded engine that does nothing, at time 1000."""
    return dataclasses.replace(snapshot_at_rest("/m", Script(load_step_s=0.0)), time=1000.0)


def step(start: float, duration: float, *entries: StepEntry) -> StepRecord:
    return StepRecord(int(start * 10), start, duration, entries, len(entries), 0)


def test_nothing_is_said_before_a_snapshot() -> None:
    assert Hints().hint("block_size") == ""


def test_an_idle_engine(idle: EngineSnapshot) -> None:
    hints = Hints()
    hints.update(idle)
    assert hints.hint("max_num_seqs") == "0 running · 0 waiting"
    assert hints.hint("max_num_batched_tokens") == "no step in the last minute"
    assert hints.hint("block_size") == "at most 15 tokens lost per request"
    assert hints.hint("watermark") == "6 of 128 blocks kept free"
    assert hints.hint("enable_prefix_caching") == "hits 40 % of 100 prompt tokens"
    assert hints.hint("max_model_len").startswith("no request now · model allows ")
    assert hints.hint("seed") == ""


def test_the_cache_names_its_precision(idle: EngineSnapshot) -> None:
    hints = Hints()
    plan = dataclasses.replace(
        idle.memory.plan, bytes_per_block=16 * 1056, key_dtype="int8", value_dtype="bfloat16"
    )
    hints.update(
        dataclasses.replace(idle, memory=dataclasses.replace(idle.memory, plan=plan))
    )
    assert hints.hint("kv_cache_dtype") == "K int8, V bfloat16 · 1.03 KiB a token"


def test_what_was_captured_is_said(idle: EngineSnapshot) -> None:
    hints = Hints()
    hints.update(idle)
    assert hints.hint("enforce_eager") == "no steps are captured"
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
    assert hints.hint("max_num_batched_tokens") == "largest step 30.0 ms at 513 tokens"
    assert hints.hint("enable_chunked_prefill") == "2 prefill steps a minute, 1 shared with decode"
    assert hints.hint("batching") == "1.3 requests per step in the last minute"
    assert hints.hint("num_threads").endswith("step 30.0 ms on average in the last minute")
    hints.update(dataclasses.replace(idle, time=1100.0))
    assert hints.hint("max_num_batched_tokens") == "no step in the last minute"


def test_threads_of_the_steps_are_told(idle: EngineSnapshot) -> None:
    hints = Hints()
    steps = (step(999.0, 0.002, StepEntry("a", "decode", 1)),)
    hints.update(dataclasses.replace(idle, steps=steps, threads=None))
    assert hints.hint("adaptive_threads") == ""  # a server of before tells nothing of them
    assert hints.hint("num_threads") == "step 2.0 ms on average in the last minute"
    found = (ThreadsOf(1, 1, 1), ThreadsOf(4, 7, 2))
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(4, 1, 3, 1.04, found)))
    assert hints.hint("num_threads") == (
        "1 of 4 in the last step · step 2.0 ms on average in the last minute"
    )
    assert hints.hint("adaptive_threads") == (
        "other work uses 1.0 cores · 1 token: 1 thread · 4 to 7 tokens: 2 threads"
    )
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(1, 1, 1, None)))
    assert hints.hint("adaptive_threads") == "one thread computes every step"


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
