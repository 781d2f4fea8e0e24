"""What a benchmark run comes to: one flat record. Milliseconds, bytes, fractions 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.load import LoadResult
from app.bench.monitor import Observed
from engine.metrics import Summary


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the figures need to know of the engine and the machine. Sizes in bytes.

    weights_per_step: read by one decode step; None where it depends on the tokens (experts).
    read_bandwidth: measured bytes per second; None where there was no memory to measure it, or
    where a model is divided between a GPU's memory and RAM.
    """

    weights_bytes: int
    kv_cache_bytes: int
    weights_per_step: int | None
    kv_bytes_per_token: float
    read_bandwidth: float | None


def figures(runs: Sequence[LoadResult], facts: EngineFacts) -> dict[str, Any]:
    """The figures of one or more runs of the same work, their samples pooled."""
    requests = [request for run in runs for request in run.requests]
    seen = [run.observed for run in runs]
    duration = sum(run.duration_s for run in runs)
    num_output = sum(run.num_output_tokens for run in runs)
    num_total = num_output + sum(run.num_prompt_tokens for run in runs)
    waste = [value for one in seen for value in one.waste]
    decode = decode_bandwidth(runs, facts)
    return {
        "completed": len(requests),
        "failed": sum(run.num_failed for run in runs),
        "error": next((str(run.error) for run in runs if run.error), None),
        "duration_s": duration,
        "output_tokens_per_s": _rate(num_output, duration),
        "total_tokens_per_s": _rate(num_total, duration),
        "requests_per_s": _rate(len(requests), duration),
        "ttft_ms": latency([r.ttft_s for r in requests]),
        "tpot_ms": latency([r.tpot_s for r in requests]),
        "itl_ms": latency([gap for r in requests for gap in r.itl_s]),
        "e2e_ms": latency([r.e2e_s for r in requests]),
        "peak_kv_usage": max(one.peak_kv_usage for one in seen),
        "kv_waste": {
            "mean": math.fsum(waste) / len(waste) if waste else None,
            "max": max(waste, default=None),
            "num_samples": len(waste),
        },
        "max_concurrent_requests": max(one.max_concurrent_requests for one in seen),
        "prefix_cache_hit_rate": _rate(
            sum(one.prefix_hits for one in seen), sum(one.prefix_queries for one in seen)
        ),
        "preemptions": sum(one.preemptions for one in seen),
        "acceptance_length": _rate(
            sum(one.draft_rounds + one.accepted for one in seen),
            sum(one.draft_rounds for one in seen),
        ),
        "acceptance_rate": _rate(
            sum(one.accepted for one in seen), sum(one.drafted for one in seen)
        ),
        "mean_step_threads": _mean_threads(seen),
        "weights_bytes": facts.weights_bytes,
        "kv_cache_bytes": facts.kv_cache_bytes,
        "decode_bytes_per_s": decode,
        "memory_read_bytes_per_s": facts.read_bandwidth,
        "memory_bandwidth_utilization": (
            decode / facts.read_bandwidth if decode and facts.read_bandwidth else None
        ),
    }


def latency(seconds: Iterable[float | None]) -> dict[str, Any]:
    """Mean and percentiles in milliseconds; the missing (None) are not counted."""
    return Summary.of(value * 1000 for value in seconds if value is not None).as_dict()


def decode_bandwidth(runs: Sequence[LoadResult], facts: EngineFacts) -> float | None:
    """Bytes of weights and KV read per second, over the steps in which every request decoded."""
    seconds = sum(run.observed.decode_s for run in runs)
    if not seconds or facts.weights_per_step is None:
        return None
    steps = sum(run.observed.num_decode_steps for run in runs)
    context = sum(run.observed.decode_context_tokens for run in runs)
    return (steps * facts.weights_per_step + context * facts.kv_bytes_per_token) / seconds


def _mean_threads(seen: Iterable[Observed]) -> float | None:
    """Threads that computed the steps, by the time that these took; None on a GPU."""
    steps = [step for one in seen for step in one.steps if step.num_threads]
    return _rate(
        math.fsum(step.num_threads * step.duration for step in steps),
        math.fsum(step.duration for step in steps),
    )


def _rate(amount: float, per: float) -> float | None:
    return amount / per if per else None

