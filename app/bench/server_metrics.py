"""A server's own metrics of a run, beside what the client measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.bench.client import ClientRun
from app.bench.report import ratio, request_figures
from app.clients.chunks import Counting
from app.clients.metric_names import Figure, Latency
from app.clients.metrics import Change
from app.clients.metrics_page import added, mean, quantile
from engine.telemetry.metrics import MIN_SAMPLES_FOR_P99, HistogramSnapshot
from engine.units import duration_text

COMPARED = ("ttft_ms", "itl_ms")
_ENGINE_ONLY = (
    "peak_kv_usage", "preemptions", "acceptance_length", "acceptance_rate", "mean_step_threads",
    "other_cores", "weights_bytes", "kv_cache_bytes", "decode_bytes_per_s",
    "memory_read_bytes_per_s", "memory_bandwidth_utilization",
)  # fmt: skip


def client_figures(runs: Sequence[ClientRun]) -> dict[str, Any]:
    """The figures of `app.bench.report.figures`, as far as a client can measure them; others are
    None until `add_reported` adds them from the server's metrics."""
    num_prompt = sum(run.num_prompt_tokens for run in runs)
    cached = [run.num_cached_tokens for run in runs if run.num_cached_tokens is not None]
    return (
        request_figures(runs)
        | dict.fromkeys(_ENGINE_ONLY)
        | {
            "ended_early": sum(run.num_short for run in runs),
            "kv_waste": {"mean": None, "max": None, "num_samples": 0},
            "max_concurrent_requests": max(run.most_at_once for run in runs),
            "prefix_cache_hit_rate": ratio(sum(cached), num_prompt) if cached else None,
            "tokens_counted_by": str(max((r.counting for r in runs), key=list(Counting).index)),
        }
    )


def add_reported(
    figures: dict[str, Any],
    changes: Sequence[Change],
    peak_kv_usage: float | None,
    round_trip_s: float,
) -> None:
    """Add what the server's metrics report of the runs, in place and under "server", with the
    differences. round_trip_s: of a bare request."""
    figures["peak_kv_usage"] = peak_kv_usage
    if not changes:
        return
    grown = {figure: _sum(change.grown(figure) for change in changes) for figure in Figure}
    hits = ratio(grown[Figure.PREFIX_HITS], grown[Figure.PREFIX_QUERIES])
    if hits is not None:
        figures["prefix_cache_hit_rate"] = hits
    preemptions = grown[Figure.PREEMPTIONS]
    figures["preemptions"] = None if preemptions is None else round(preemptions)
    figures["acceptance_rate"] = ratio(grown[Figure.ACCEPTED], grown[Figure.DRAFTED])
    accepted = ratio(grown[Figure.ACCEPTED], grown[Figure.DRAFT_ROUNDS])
    figures["acceptance_length"] = None if accepted is None else 1 + accepted
    server: dict[str, Any] = {
        "prompt_tokens": grown[Figure.PROMPT_TOKENS],
        "generation_tokens": grown[Figure.GENERATION_TOKENS],
        "ttft_ms": _summary(changes, Latency.TTFT),
        "itl_ms": _summary(changes, Latency.ITL),
        "engine_ttft_ms": _summary(changes, Latency.ENGINE_TTFT),
        "itl_is_mean_per_request": changes[-1].now.itl_is_mean,
    }
    differences = server["client_less_server_ms"] = _differences(figures, server)
    parts = _ttft_parts(figures, server)
    if parts is not None:
        server["ttft_parts_ms"] = parts
    elif "ttft_ms" in differences:  # without the round trip that any request has
        left = differences["ttft_ms"]["mean"] - round_trip_s * 1e3
        differences["ttft_ms"]["mean_less_round_trip"] = left
    server["explanation"] = explained(figures, server, round_trip_s)
    figures["server"] = server


def explained(figures: Mapping[str, Any], server: Mapping[str, Any], round_trip_s: float) -> str:
    """Why client and server differ, in one to three sentences."""
    if not server["client_less_server_ms"]:
        return "The server reports no latencies; all values are measured client-side."
    parts = [_explained_ttft(figures, server, round_trip_s)]
    told, own = server["itl_ms"], figures["itl_ms"]
    if server["itl_is_mean_per_request"]:
        parts.append("The server reports one mean ITL per request; the client measures each ITL.")
    elif told is not None and told["num_samples"] != own["num_samples"]:
        parts.append(
            f"ITL samples: {told['num_samples']:,} (server), {own['num_samples']:,} (client). "
            "Some chunks contain multiple tokens, or other clients are active."
        )
    parts.append("Server p50 and p99 are estimated from histogram buckets.")
    return " ".join(parts)


def _explained_ttft(
    figures: Mapping[str, Any], server: Mapping[str, Any], round_trip_s: float
) -> str:
    parts = server.get("ttft_parts_ms")
    if parts is None:
        return (
            "Server-side TTFT is measured from queueing to the first token. Client-side TTFT also "
            "includes connection setup and the round trip "
            f"(empty request: {duration_text(round_trip_s)})."
        )
    return (
        f"Mean client-side TTFT: {duration_text(figures['ttft_ms']['mean'] / 1e3)}. "
        f"Engine (parsing, queue, prefill): {duration_text(parts['engine'] / 1e3)}; "
        f"server overhead: {duration_text(parts['way_out'] / 1e3)}; "
        f"network and client: {duration_text(parts['line'] / 1e3)}."
    )


def _ttft_parts(figures: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, float] | None:
    """Mean milliseconds, of a server that reports its engine's TTFT."""
    own, told, engine = figures["ttft_ms"], server["ttft_ms"], server["engine_ttft_ms"]
    if own["mean"] is None or told is None or engine is None:
        return None
    return {
        "engine": engine["mean"],
        "way_out": told["mean"] - engine["mean"],
        "line": own["mean"] - told["mean"],
    }


def _summary(changes: Sequence[Change], which: Latency) -> dict[str, Any] | None:
    """Milliseconds, of all runs together."""
    whole: HistogramSnapshot | None = None
    for change in changes:
        found = change.latency(which)
        if found is not None:
            whole = found if whole is None else added(whole, found)
    if whole is None or not whole.count:
        return None
    parts = {"mean": mean(whole)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        is_known = name != "p99" or whole.count >= MIN_SAMPLES_FOR_P99
        parts[name] = quantile(whole, share) if is_known else None
    milliseconds = {name: None if s is None else s * 1e3 for name, s in parts.items()}
    return {**milliseconds, "num_samples": whole.count}


def _differences(figures: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key in COMPARED:
        told, own = server[key], figures[key]
        if told is not None and own["mean"] is not None:
            found[key] = {name: own[name] - told[name] for name in ("mean", "p50")}
    return found


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
