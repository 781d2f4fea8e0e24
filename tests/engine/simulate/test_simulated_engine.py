"""The simulated engine: the steps of a real engine, at the times that the model says."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLMEngine
from engine.config import Change
from engine.errors import ConfigError, ContextLengthError
from engine.sampling_params import SamplingParams
from engine.simulate.engine import SimulatedEngine
from engine.simulate.settings import REPLAYED, plan_of
from engine.simulate.step_time import StepTimes
from engine.snapshot import EngineSnapshot, FinishReason, StepRecord
from tests.tiers import examples, first_fast
from tests.widgets import synthetic

TIMES = StepTimes.exact(step=1.0, token=0.125, requests=0.25)


def like(num_blocks: int = 64, **changes: Any) -> EngineSnapshot:
    snapshot = synthetic.snapshot(0.0)
    config = snapshot.config.replace(max_num_batched_tokens=64, max_num_seqs=4, **changes)
    plan = synthetic.PLAN.with_blocks(num_blocks)
    memory = dataclasses.replace(snapshot.memory, plan=plan)
    return dataclasses.replace(snapshot, config=config, memory=memory)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def load(seed: int, count: int, longest: int) -> list[tuple[int, list[int], int]]:
    """Requests in order of arrival: the step before which it comes, prompt, tokens of the reply.
    Some prompts begin alike."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 90) for _ in range(longest // 2)]
    found = []
    for _ in range(count):
        own = [rng.randrange(3, 90) for _ in range(rng.randint(1, longest // 2))]
        prompt = shared[: rng.choice((0, len(shared)))] + own
        found.append((rng.randint(0, 20), prompt, rng.randint(1, 40)))
    return sorted(found, key=lambda one: one[0])


def drive(engine: Any, requests: list[tuple[int, list[int], int]]) -> list[StepRecord]:
    """Whoever has had more than 30 tokens is aborted."""
    waiting, lengths, number = list(requests), dict[str, int](), 0
    while waiting or engine.has_unfinished:
        while waiting and waiting[0][0] <= number:
            _, prompt, length = waiting.pop(0)
            lengths[engine.add_request(prompt, greedy(length))] = 0
        for event in engine.step():
            lengths[event.request_id] += len(event.token_ids)
            if event.finish_reason is None and lengths[event.request_id] > 30:
                engine.abort(event.request_id)
        number += 1
    steps: list[StepRecord] = list(engine.snapshot().steps)
    return steps


def plans(steps: list[StepRecord]) -> list[Any]:
    """All of a step's record but its times."""
    return [
        (s.entries, s.num_running, s.num_waiting, s.preempted, s.finished, s.held_back, s.kv_usage)
        for s in steps
    ]


@pytest.mark.parametrize(
    "changes",
    first_fast(3, [
        {},
        {"watermark": 0.0, "kv_cache_memory_bytes": 12 * 2**12},  # preempts
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 16},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 16},
        {"block_size": 4},
        {"batching": "static"},
        {"enable_prefix_caching": False},
        {"kv_allocation": "contiguous"},
    ]),
)  # fmt: skip
def test_it_plans_the_same_steps_as_the_real_engine(
    make_engine: Callable[..., LLMEngine], changes: dict[str, Any]
) -> None:
    real = make_engine(max_num_seqs=4, max_num_batched_tokens=64)
    simulated = SimulatedEngine(real.snapshot(), TIMES, **changes)
    real.reconfigure(**changes)
    assert simulated.plan.num_blocks == real.plan.num_blocks
    requests = load(seed=1, count=12, longest=60)
    expected, found = drive(real, requests), drive(simulated, requests)
    assert plans(found) == plans(expected)
    assert real.snapshot().counters == simulated.snapshot().counters
    if "watermark" in changes:
        assert simulated.snapshot().counters.preemptions > 0


def test_steps_take_the_time_of_the_model_and_idle_time_passes_by_sleeping() -> None:
    engine = SimulatedEngine(like(), TIMES)
    engine.sleep(5.0)
    engine.add_request(list(range(100)), greedy(3))
    events = []
    while engine.has_unfinished:
        events += engine.step()
    # 64 tokens, then 36, then two decodes
    seconds = [1 + 64 / 8 + 0.25, 1 + 36 / 8 + 0.25, 1.375, 1.375]
    steps = engine.snapshot().steps
    assert [step.duration for step in steps] == seconds
    assert engine.now() == 5 + sum(seconds)
    times = events[-1].times
    assert times is not None and times.arrival == 5.0
    assert times.ttft_s == sum(seconds[:2])
    assert times.itl_s == seconds[2:]
    assert events[-1].finish_reason is FinishReason.LENGTH
    assert engine.standard_error == 0.0


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from((1, 4, 16)), st.integers(1, 6),
    st.sampled_from((8, 64)), st.sampled_from(("continuous", "static")), st.booleans(),
    st.integers(0, 10),
)  # fmt: skip
def test_every_request_ends_with_its_tokens_at_any_setting(
    seed: int, size: int, most: int, budget: int, batching: str, caching: bool, when: int
) -> None:
    requests = load(seed, 10, 60)
    before = like(num_blocks=8)  # of 16 tokens
    changes = {
        "block_size": size, "max_num_seqs": most, "max_num_batched_tokens": budget,
        "batching": batching, "enable_prefix_caching": caching,
    }  # fmt: skip
    engines = [SimulatedEngine(before, TIMES, **changes) for _ in range(2)]
    first, second = (drive(engine, requests) for engine in engines)
    assert first == second
    counters = engines[0].snapshot().counters
    assert counters.generation_tokens == sum(min(length, 31) for _, _, length in requests)
    assert sum(counters.finished.values()) == len(requests)
    assert all(len(step.entries) <= most for step in first)
    assert all(sum(e.num_tokens for e in step.entries) <= budget for step in first)
    ends = [step.end for step in first]
    assert ends == sorted(ends)


def test_a_change_between_steps_keeps_the_requests() -> None:
    engine = SimulatedEngine(like(), TIMES)
    engine.add_request(list(range(40)), greedy(10))
    for _ in range(4):
        engine.step()
    assert engine.reconfigure(max_num_seqs=1) is Change.LIVE
    assert engine.reconfigure(block_size=8) is Change.CACHE_REBUILD
    assert engine.plan.num_blocks == 128
    assert engine.reconfigure() is None
    while engine.has_unfinished:
        engine.step()
    steps = engine.snapshot().steps
    assert sum(step.num_resumed for step in steps) == 1
    assert engine.snapshot().counters.generation_tokens == 10


def test_settings_that_change_a_steps_time_are_refused() -> None:
    assert "dtype" not in REPLAYED
    with pytest.raises(ConfigError, match="quantization"):
        SimulatedEngine(like(), TIMES, quantization="int4", max_num_seqs=2)
    unchanged = like().config.quantization
    SimulatedEngine(like(), TIMES, quantization=unchanged)


def test_a_request_beyond_the_cache_is_refused() -> None:
    engine = SimulatedEngine(like(num_blocks=4), TIMES)
    with pytest.raises(ContextLengthError, match="64"):
        engine.add_request(list(range(70)), greedy(1))


def test_an_automatic_budget_is_the_one_that_was_measured() -> None:
    from engine.snapshot import TokenBudget

    snapshot = like()
    model = dataclasses.replace(snapshot.model, token_budget=TokenBudget(256, 0.1, 0.4))
    engine = SimulatedEngine(
        dataclasses.replace(snapshot, model=model), TIMES, max_num_batched_tokens=None
    )
    assert engine.config.max_num_batched_tokens == 256


def test_a_cache_keeps_its_bytes_at_another_block_size() -> None:
    plan, config = synthetic.PLAN.with_blocks(1152), like().config
    resized = plan_of(plan, config, config.replace(block_size=64))
    assert resized.num_blocks == plan.num_blocks // 4
    assert resized.bytes_per_block == 4 * plan.bytes_per_block
    small = plan_of(plan, config, config.replace(kv_cache_memory_bytes=3 * plan.bytes_per_block))
    assert small.num_blocks == 3
    with pytest.raises(ConfigError, match="block"):
        plan_of(plan, config, config.replace(kv_cache_memory_bytes=1))


def test_arrivals_tell_which_prompts_begin_alike(make_engine: Callable[..., LLMEngine]) -> None:
    """By full blocks, with or without a prefix cache; once, and not of the engine's own work."""
    engine = make_engine(block_size=16, enable_prefix_caching=False)
    first, second = list(range(3, 43)), [*range(3, 35), 7, 7, *range(14)]
    for name, prompt in (("a", first), ("b", second), ("background-1", first)):
        engine.add_request(prompt, greedy(4), name)
    a, b = engine.snapshot().arrivals
    assert (a.request_id, a.num_prompt_tokens, a.max_output_tokens) == ("a", 40, 4)
    assert len(a.prefix) == 2 and len(b.prefix) == 3
    assert a.prefix == b.prefix[:2] and b.prefix[2] not in a.prefix
    assert a.block_size == 16 and a.time <= b.time
    assert engine.snapshot().arrivals == ()
