"""Figures against a run that is worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.load import EngineRun, Observed
from app.bench.report import EngineFacts, figures, latency
from app.bench.runner import engine_facts
from engine.snapshot import RequestTimes, StepEntry, StepRecord, TokenEvent
from tests.widgets import synthetic

FACTS = EngineFacts(
    weights_per_step=800, kv_bytes_per_token=2.0, read_bandwidth=10_000.0,
)  # fmt: skip


def times(arrival: float, *tokens: float) -> RequestTimes:
    return RequestTimes(
        arrival, arrival, tuple(TokenEvent(t, 1) for t in tokens), finished=tokens[-1]
    )


def observed(**changes: object) -> Observed:
    values: dict[str, object] = {
        "steps": [], "peak_kv_usage": 0.5, "waste": [0.1, 0.3],
        "others": [0.0, 1.0, 2.0], "max_concurrent_requests": 2,
        "prefix_queries": 100, "prefix_hits": 25, "preemptions": 1, "num_decode_steps": 4,
        "decode_s": 2.0, "decode_context_tokens": 400,
    }  # fmt: skip
    return Observed(**{**values, **changes})  # type: ignore[arg-type]


def run() -> EngineRun:
    """Two requests of three tokens; TTFT 1 and 2 s, gaps of 0.5 and 1 s."""
    requests = [times(0.0, 1.0, 1.5, 2.0), times(0.0, 2.0, 3.0, 4.0)]
    return EngineRun(requests, num_prompt_tokens=14, duration_s=4.0, observed=observed())


def test_the_figures_of_a_run() -> None:
    result = figures([run()], FACTS)
    assert result["completed"] == 2
    assert result["output_tokens_per_s"] == 6 / 4
    assert result["total_tokens_per_s"] == 20 / 4
    assert result["requests_per_s"] == 2 / 4
    assert result["ttft_ms"]["mean"] == 1500
    assert result["ttft_ms"]["max"] == 2000
    assert result["itl_ms"]["mean"] == 750
    assert result["itl_ms"]["num_samples"] == 4
    assert result["tpot_ms"]["p50"] == 750  # (2 - 1) / 2 and (4 - 2) / 2
    assert result["e2e_ms"]["mean"] == 3000
    assert result["kv_waste"] == {"mean": 0.2, "max": 0.3, "num_samples": 2}
    assert result["prefix_cache_hit_rate"] == 0.25
    assert result["other_cores"] == 1.5  # of the samples with any
    # 4 steps of 800 bytes of weights and 400 tokens of 2 bytes in 2 s, of 10,000 bytes a second
    assert result["decode_bytes_per_s"] == 2000
    assert result["memory_bandwidth_utilization"] == 0.2


def test_runs_are_pooled_and_not_averaged() -> None:
    result = figures([run(), run()], FACTS)
    assert result["completed"] == 4
    assert result["duration_s"] == 8
    assert result["output_tokens_per_s"] == 12 / 8
    assert result["itl_ms"]["num_samples"] == 8
    assert result["preemptions"] == 2
    assert result["memory_bandwidth_utilization"] == 0.2


def test_threads_count_by_the_time_of_their_steps() -> None:
    steps = [
        StepRecord(i, i, duration, (), 1, 0, num_threads=count)
        for i, (duration, count) in enumerate([(0.3, 2), (0.1, 1), (9.0, 0)])
    ]
    seen = dataclasses.replace(run(), observed=observed(steps=steps))
    assert figures([seen], FACTS)["mean_step_threads"] == pytest.approx(1.75)


def test_what_cannot_be_known_is_none() -> None:
    seen = observed(waste=[], prefix_queries=0, decode_s=0.0)
    nothing = EngineRun(num_failed=3, observed=seen)
    result = figures([nothing], FACTS)
    assert result["failed"] == 3
    assert result["ttft_ms"]["mean"] is None
    assert result["output_tokens_per_s"] is None
    assert result["kv_waste"]["mean"] is None
    assert result["prefix_cache_hit_rate"] is None
    assert result["memory_bandwidth_utilization"] is None
    assert result["mean_step_threads"] is None


def test_experts_have_no_bandwidth_figure() -> None:
    facts = EngineFacts(None, 2.0, 10_000.0)
    assert figures([run()], facts)["memory_bandwidth_utilization"] is None


def test_a_divided_model_counts_in_both_memories() -> None:
    """Without a share of one memory's bandwidth."""
    divided = synthetic.divided_snapshot(1.0)
    facts, memory = engine_facts(divided, 1e10), divided.memory
    assert facts.kv_bytes_per_token == 1_400_000 / 16 and facts.read_bandwidth is None
    measured = run()
    measured.keep_sizes(divided)
    measured.observed.peak_kv_usage = 0.5
    result = figures([measured], facts)
    assert result["weights_bytes"] == memory.weights + memory.host_weights
    assert result["kv_cache_bytes"] == memory.kv_cache + memory.host_kv_cache
    assert result["memory_bytes"] == result["weights_bytes"] + result["kv_cache_bytes"] / 2
    assert result["memory_bandwidth_utilization"] is None and result["decode_bytes_per_s"]
    assert engine_facts(synthetic.snapshot(1.0), 1e10).read_bandwidth == 1e10


@given(st.lists(st.floats(0, 10), min_size=1, max_size=250))
def test_percentiles_are_numpy_s(seconds: list[float]) -> None:
    result = latency(seconds)
    assert result["mean"] == pytest.approx(np.mean(seconds) * 1000)
    assert result["p50"] == pytest.approx(np.percentile(seconds, 50) * 1000)
    assert result["p90"] == pytest.approx(np.percentile(seconds, 90) * 1000)
    if len(seconds) >= 100:
        assert result["p99"] == pytest.approx(np.percentile(seconds, 99) * 1000)
    else:
        assert result["p99"] is None
    assert result["max"] == max(seconds) * 1000
    assert result["num_samples"] == len(seconds)


def test_missing_latencies_are_not_counted() -> None:
    assert latency([None, 0.5, None])["num_samples"] == 1


def step(index: int, *entries: StepEntry, preempted: tuple[str, ...] = ()) -> StepRecord:
    return StepRecord(index, float(index), 0.5, entries, len(entries), 0, preempted)


def test_the_steps_tell_concurrency_and_bytes_of_decoding() -> None:
    steps = [
        step(0, StepEntry("a", "prefill", 20)),
        step(1, StepEntry("a", "decode", 1), StepEntry("b", "prefill", 33)),
        step(2, StepEntry("a", "decode", 1), StepEntry("b", "decode", 1)),  # 22 and 34 tokens
        step(3, StepEntry("b", "decode", 1)),  # a was gone after step 2: 35 tokens
    ]
    totals = Observed(steps)
    totals.replay({"a": 2, "b": 3})
    assert totals.max_concurrent_requests == 2
    assert totals.num_decode_steps == 2
    assert totals.decode_s == 1.0
    assert totals.decode_context_tokens == 22 + 34 + 35


def test_a_preempted_request_does_not_run() -> None:
    steps = [
        step(0, StepEntry("a", "prefill", 16), StepEntry("b", "prefill", 16)),
        step(1, StepEntry("a", "decode", 1), preempted=("b",)),
        step(2, StepEntry("b", "prefill", 17)),
    ]
    totals = Observed(steps)
    totals.replay({"a": 1})
    assert totals.max_concurrent_requests == 2


def test_no_figure_is_infinite() -> None:
    flat = figures([run()], FACTS)
    assert all(math.isfinite(v) for v in flat.values() if isinstance(v, float))
