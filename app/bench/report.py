"""Results of a benchmark: one flat record. Milliseconds, bytes, fractions 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from app.bench.load import EngineRun, Run
from engine.snapshot.metrics import METRICS
from engine.telemetry.metrics import Summary
from engine.units import bytes_text, duration_with

BUSY_SHARE = 0.25
"""Of a run's samples: less moves no median."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Sizes and bandwidth of the engine and the machine. Sizes in bytes.

    weights_per_step: read by one decode step; None if it depends on the tokens (MoE).
    read_bandwidth: measured bytes per second; None without memory to measure it, or with CPU
    offload.
    """

    weights_per_step: int | None
    kv_bytes_per_token: float
    read_bandwidth: float | None


def figures(runs: Sequence[EngineRun], facts: EngineFacts) -> dict[str, Any]:
    """The figures of one or more runs of the same work, with pooled samples."""
    decode = decode_bandwidth(runs, facts)
    return request_figures(runs) | observed_figures(runs) | memory_figures(runs) | {
        "decode_bytes_per_s": decode,
        "memory_read_bytes_per_s": facts.read_bandwidth,
        "memory_bandwidth_utilization": ratio(decode, facts.read_bandwidth),
    }


def observed_figures(runs: Sequence[EngineRun]) -> dict[str, Any]:
    """Figures from the engine's steps and counters."""
    seen = [run.observed for run in runs]
    waste = [value for one in seen for value in one.waste]
    steps = [step for one in seen for step in one.steps if step.num_threads]  # none on a GPU
    step_s = [step.duration for one in seen for step in one.steps if step.entries]
    request_s = (len(s.entries) * s.duration for one in seen for s in one.steps)
    thread_s = math.fsum(step.num_threads * step.duration for step in steps)
    return {
        "peak_kv_usage": max(one.peak_kv_usage for one in seen),
        "kv_waste": {
            "mean": math.fsum(waste) / len(waste) if waste else None,
            "max": max(waste, default=None),
            "num_samples": len(waste),
        },
        "max_concurrent_requests": max(one.max_concurrent_requests for one in seen),
        "mean_batch_size": ratio(math.fsum(request_s), math.fsum(step_s)),
        "prefix_cache_hit_rate": ratio(
            sum(one.prefix_hits for one in seen), sum(one.prefix_queries for one in seen)
        ),
        "preemptions": sum(one.preemptions for one in seen),
        "acceptance_length": ratio(
            sum(one.draft_rounds + one.accepted for one in seen),
            sum(one.draft_rounds for one in seen),
        ),
        "acceptance_rate": ratio(
            sum(one.accepted for one in seen), sum(one.drafted for one in seen)
        ),
        "other_cores": other_cores([taken for one in seen for taken in one.others]),
        "mean_step_threads": ratio(thread_s, math.fsum(step.duration for step in steps)),
    }


def other_cores(taken: Sequence[float]) -> float | None:
    """Cores that other programs took from the engine's threads, of samples; 0 where that was rare.
    None without samples."""
    if not taken:
        return None
    busy = [cores for cores in taken if cores]
    return math.fsum(busy) / len(busy) if len(busy) > BUSY_SHARE * len(taken) else 0.0


def memory_figures(runs: Sequence[EngineRun]) -> dict[str, Any]:
    """Bytes of the weights and of the KV cache, and `memory_bytes`: of the weights and of the KV
    cache that was in use at its peak."""
    used = max(run.observed.peak_kv_usage * run.kv_cache_bytes for run in runs)
    return {
        "weights_bytes": runs[-1].weights_bytes,
        "kv_cache_bytes": runs[-1].kv_cache_bytes,
        "memory_bytes": runs[-1].weights_bytes + used,
    }


def request_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Figures from the requests' times: all that a client can measure."""
    requests = [request for run in runs for request in run.requests]
    duration = sum(run.duration_s for run in runs)
    num_output = sum(run.num_output_tokens for run in runs)
    num_total = num_output + sum(run.num_prompt_tokens for run in runs)
    waits = [run.core_wait_s for run in runs if run.core_wait_s is not None]
    return {
        "completed": len(requests),
        "failed": sum(run.num_failed for run in runs),
        "error": next((str(run.error) for run in runs if run.error), None),
        "duration_s": duration,
        "output_tokens_per_s": ratio(num_output, duration),
        "total_tokens_per_s": ratio(num_total, duration),
        "requests_per_s": ratio(len(requests), duration),
        "ttft_ms": latency([r.ttft_s for r in requests]),
        "tpot_ms": latency([r.tpot_s for r in requests]),
        "itl_ms": latency([gap for r in requests for gap in r.itl_s]),
        "e2e_ms": latency([r.e2e_s for r in requests]),
        "client_core_wait": ratio(sum(waits), duration) if waits else None,
    }


def latency(seconds: Iterable[float | None]) -> dict[str, Any]:
    """Mean and percentiles in milliseconds; None is not counted."""
    return asdict(Summary.of(value * 1000 for value in seconds if value is not None))


def decode_bandwidth(runs: Sequence[EngineRun], facts: EngineFacts) -> float | None:
    """Bytes of weights and KV read per second, over the steps in which every request decoded."""
    seconds = sum(run.observed.decode_s for run in runs)
    if not seconds or facts.weights_per_step is None:
        return None
    steps = sum(run.observed.num_decode_steps for run in runs)
    context = sum(run.observed.decode_context_tokens for run in runs)
    return (steps * facts.weights_per_step + context * facts.kv_bytes_per_token) / seconds


def ratio(part: float | None, whole: float | None) -> float | None:
    """None without a divisor, or if either is unknown."""
    return part / whole if part is not None and whole else None


Figures = Mapping[str, Any]
LATENCIES = tuple((METRICS[key].title, f"{key}_ms") for key in ("ttft", "tpot", "itl", "e2e"))
STATISTICS = ("mean", "p50", "p90", "p99", "max")
NOT_REPORTED = "not reported"


def _number(value: float, unit: str = "") -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}{unit}"


_share = "{:.1%}".format
ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Duration", "duration_s", partial(_number, unit=" s")),
    (METRICS["output"].heading, "output_tokens_per_s", _number),
    (METRICS["throughput"].heading, "total_tokens_per_s", _number),
    (METRICS["request_rate"].heading, "requests_per_s", _number),
    ("Max concurrent requests", "max_concurrent_requests", str),
    (f"{METRICS['kv_usage'].title}, peak", "peak_kv_usage", _share),
    ("Unused KV slots, mean", "kv_waste.mean", _share),
    ("Unused KV slots, max", "kv_waste.max", _share),
    (METRICS["prefix_hit_rate"].title, "prefix_cache_hit_rate", _share),
    (METRICS["preemptions"].title, "preemptions", str),
    (METRICS["acceptance_length"].title, "acceptance_length", _number),
    (METRICS["acceptance_rate"].title, "acceptance_rate", _share),
    ("Compute threads per step, mean", "mean_step_threads", _number),
    ("Cores used by other programs", "other_cores", _number),
    (METRICS["weights"].title, "weights_bytes", bytes_text),
    (METRICS["kv_cache"].title, "kv_cache_bytes", bytes_text),
    ("Decode bandwidth", "decode_bytes_per_s", lambda value: _number(value / 1e9, " GB/s")),
    ("Bandwidth utilization", "memory_bandwidth_utilization", _share),
)
"""Title, key of the figure, and its text."""


def _latency_rows(columns: Mapping[str, Figures]) -> list[list[str]]:
    rows = []
    for title, key in LATENCIES:
        for statistic in STATISTICS:
            values = [figures[key][statistic] for figures in columns.values()]
            if any(value is not None for value in values):
                texts = ("-" if value is None else _number(value, " ms") for value in values)
                rows.append([f"{title}, {statistic}", *texts])
    return rows


def beside_server(figures: Figures) -> str:
    """Latencies measured by the client, the server and its engine, and the difference between
    client and server; "" if the server reports none."""
    server = figures.get("server")
    if server is None or not server["client_less_server_ms"]:
        return ""
    engine = {"ttft_ms": server["engine_ttft_ms"]} if server["engine_ttft_ms"] else {}
    rows = [["", "client", "server", *(["engine"] if engine else []), "difference"]]
    for title, key in LATENCIES:
        for statistic in ("mean", "p50"):
            difference = server["client_less_server_ms"].get(key, {}).get(statistic)
            if difference is not None:
                cells = [_ms(one[key][statistic]) for one in (figures, server)]
                if engine:
                    cells.append(_ms(engine[key][statistic]) if key in engine else "")
                rows.append([f"{title}, {statistic}", *cells, _ms(difference)])
    return f"{aligned(rows)}\n\n{server['explanation']}"


def _ms(milliseconds: float) -> str:
    return duration_with(milliseconds / 1e3, "ms")


def table(columns: Mapping[str, Figures], unknown: str = "-") -> str:
    """The figures side by side, numbers aligned to the right. `unknown` replaces a missing one."""

    def cell(figures: Figures, key: str, text: Callable[[Any], str]) -> str:
        whole, _, part = key.partition(".")
        value = figures[whole][part] if part else figures[whole]
        return unknown if value is None else text(value)

    rows = [["", *columns], ["Completed"]]
    for f in columns.values():
        rows[1].append(f"{f['completed']}" + (f", {f['failed']} failed" * bool(f["failed"])))
    for title, key, text in ROWS:
        rows.append([title, *(cell(figures, key, text) for figures in columns.values())])
    rows[6:6] = _latency_rows(columns)
    return aligned(rows)


def aligned(rows: list[list[str]]) -> str:
    """Cells in columns, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)
