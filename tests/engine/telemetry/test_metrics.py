"""Summaries of samples, and the metrics registry."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.snapshot import (
    BLOCK_FREE,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    FinishReason,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    RequestTimes,
    Sample,
    SpeculationSnapshot,
    StepEntry,
    StepRecord,
    TokenEvent,
)
from engine.telemetry.metrics import (
    EXPORTED,
    EngineMetrics,
    MetricKind,
    MetricsSnapshot,
    Summary,
)

numbers = st.floats(-1e6, 1e6)


def value(now: MetricsSnapshot, name: str, *labels: str) -> float:
    return now.values[name].get(labels, 0.0)


class TestSummary:
    @settings(deadline=None)
    @given(st.lists(numbers, min_size=1, max_size=250))
    def test_of_values(self, values):
        summary = Summary.of(values)
        assert summary.num_samples == len(values)
        assert summary.max == max(values)
        assert summary.mean == pytest.approx(float(np.mean(values)), abs=1e-6)
        for q, found in ((0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)):
            assert found is None or found == pytest.approx(float(np.quantile(values, q)), abs=1e-6)
        assert (summary.p99 is None) == (len(values) < 100)

    def test_of_nothing(self):
        assert asdict(Summary.of([])) == {
            "mean": None,
            "p50": None,
            "p90": None,
            "p99": None,
            "max": None,
            "num_samples": 0,
        }


def engine_snapshot(**changes) -> EngineSnapshot:
    plan = MemoryPlan(1, 1, 0, 1, 0, 0, 0, 1, 4)
    info = dict.fromkeys(ModelInfo.__dataclass_fields__, 0)
    values = {
        "time": 1.0,
        "step_index": 1,
        "config": EngineConfig(block_size=8),
        "model": ModelInfo(**info),
        "requests": (),
        "blocks": BlockSnapshot(
            8,
            ("a",),
            np.array([0, 0, BLOCK_FREE, 0], dtype=np.int32),
            np.ones(4, dtype=np.int32),
            np.full(4, 8, dtype=np.int32),
            np.zeros(4, dtype=np.bool_),
        ),
        "memory": MemorySnapshot(plan, 0, 0, 0, 0, 0, 0, 0, 0),
        "counters": Counters(),
    }
    return EngineSnapshot(**(values | changes))


class TestEngineMetrics:
    def test_a_snapshot_is_counted_once(self):
        metrics = EngineMetrics()
        entries = (StepEntry("a", "prefill", 30, 16), StepEntry("b", "decode", 1))
        steps = tuple(StepRecord(i, 0.0, 0.1, entries, 2, 3) for i in range(2))
        metrics.observe_snapshot(
            engine_snapshot(
                steps=steps,
                ttft=(Sample(1.0, 0.5),),
                itl=(Sample(1.0, 0.0005), Sample(1.0, 0.001), Sample(1.1, 100.0)),
                counters=Counters(
                    prompt_tokens=60,
                    cached_prompt_tokens=32,
                    generation_tokens=2,
                    prefix_queries=92,
                    prefix_hits=32,
                    preemptions=5,
                ),
            )
        )
        now = metrics.snapshot()
        assert value(now, "kv_cache_usage_perc") == 0.75
        assert value(now, "num_requests_running") == 0  # of the snapshot, newer than the steps
        assert value(now, "prompt_tokens") == 92
        assert value(now, "generation_tokens") == 2
        assert value(now, "prefix_cache_queries") == 92
        assert value(now, "prefix_cache_hits") == 32
        assert value(now, "num_preemptions") == 5
        assert value(now, "cache_config_info", "8", "4", "True", "0.9") == 1
        itl = now.histograms["inter_token_latency_seconds"]
        assert itl.buckets[0] == 0.001
        assert itl.cumulative[:2] == (2, 2)  # 1 ms belongs to the bucket up to 1 ms
        assert itl.cumulative[-2:] == (2, 3) and itl.count == 3
        assert itl.sum == pytest.approx(100.0015)
        assert now.histograms["engine_time_to_first_token_seconds"].count == 1
        # what the server hands to a client is told apart
        assert now.histograms["time_to_first_token_seconds"].count == 0
        metrics.observe_first_token(0.03)
        assert metrics.snapshot().histograms["time_to_first_token_seconds"].sum == 0.03
        assert now.histograms["iteration_tokens_total"].sum == 62

        metrics.observe_snapshot(engine_snapshot())
        assert metrics.snapshot().histograms["inter_token_latency_seconds"] == itl

    def test_a_finished_request(self):
        metrics = EngineMetrics()
        events = (TokenEvent(3.0, 1), TokenEvent(3.5, 2), TokenEvent(4.0, 1))
        metrics.observe_finished(RequestTimes(1.0, 1.5, events, 4.5), FinishReason.LENGTH)
        metrics.observe_finished(RequestTimes(2.0, finished=2.25), FinishReason.ABORT)
        now = metrics.snapshot()
        sums = {name: h.sum for name, h in now.histograms.items() if h.count}
        assert sums == {
            "e2e_request_latency_seconds": 3.75,
            "request_time_per_output_token_seconds": 0.5,
            "request_queue_time_seconds": 0.5,
            "request_prefill_time_seconds": 1.5,
            "request_decode_time_seconds": 1.0,
        }
        assert now.histograms["e2e_request_latency_seconds"].count == 2
        reasons = {r.value: value(now, "request_success", r.value) for r in FinishReason}
        assert reasons == {"stop": 0, "length": 1, "abort": 1, "error": 0}

    def test_lengths_and_drafts(self):
        metrics = EngineMetrics()
        metrics.observe_lengths(30, 12)
        drafts = SpeculationSnapshot(
            "ngram", rounds=4, drafted_per_position=(4, 3), accepted_per_position=(2, 1)
        )
        metrics.observe_snapshot(engine_snapshot(speculation=drafts))
        now = metrics.snapshot()
        assert now.histograms["request_prompt_tokens"].sum == 30
        assert now.histograms["request_generation_tokens"].sum == 12
        assert value(now, "spec_decode_num_drafts") == 4
        assert value(now, "spec_decode_num_draft_tokens") == 7
        assert value(now, "spec_decode_num_accepted_tokens") == 3
        assert value(now, "spec_decode_num_accepted_tokens_per_pos", "1") == 1

    def test_a_snapshot_does_not_change_later(self):
        metrics = EngineMetrics()
        before = metrics.snapshot()
        metrics.observe_finished(RequestTimes(1.0, finished=2.0), FinishReason.STOP)
        assert value(before, "request_success", "stop") == 0
        assert before.histograms["e2e_request_latency_seconds"].count == 0


class TestRegistry:
    def test_names_are_those_that_a_vllm_dashboard_reads(self):
        exported = {m.exported_name for m in EXPORTED.values()}
        assert exported >= {
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:num_preemptions_total",
            "vllm:prompt_tokens_total",
            "vllm:request_success_total",
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:iteration_tokens_total",
        }
        assert not any("_total_total" in name for name in exported)

    def test_everything_declared_is_kept_and_described(self):
        now = EngineMetrics().snapshot()
        for name, metric in EXPORTED.items():
            assert metric.name == name and metric.help.endswith(".")
            is_histogram = metric.kind is MetricKind.HISTOGRAM
            assert (name in now.histograms) == is_histogram == bool(metric.buckets)
            assert (name in now.values) != is_histogram
            assert list(metric.buckets) == sorted(set(metric.buckets))


def test_metrics_need_no_torch():
    code = "import sys, engine.telemetry.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
