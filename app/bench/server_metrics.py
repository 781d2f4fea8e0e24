"""What a server says of a run in its own metrics, beside what the client measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.bench.client import ClientRun
from app.bench.report import latency
from app.clients.chunks import Counting
from app.clients.metric_names import Figure, Latency
from app.clients.metrics import Change
from app.clients.metrics_page import added, mean, quantile
from engine.telemetry.metrics import MIN_SAMPLES_FOR_P99, HistogramSnapshot

COMPARED = (("ttft_ms", "TTFT"), ("itl_ms", "ITL"))


def client_figures(runs: Sequence[ClientRun]) -> dict[str, Any]:
    """The figures that `app.bench.report.figures` gives, as far as a client knows them; the others
    are None until `add_told` finds them in the metrics."""
    requests = [request for run in runs for request in run.requests]
    duration = sum(run.duration_s for run in runs)
    num_output = sum(run.num_output_tokens for run in runs)
    num_prompt = sum(run.num_prompt_tokens for run in runs)
    cached = [run.num_cached_tokens for run in runs if run.num_cached_tokens is not None]
    return {
        "completed": len(requests),
        "failed": sum(run.num_failed for run in runs),
        "error": next((str(run.error) for run in runs if run.error), None),
        "ended_early": sum(run.num_short for run in runs),
        "duration_s": duration,
        "output_tokens_per_s": num_output / duration if duration else None,
        "total_tokens_per_s": (num_output + num_prompt) / duration if duration else None,
        "requests_per_s": len(requests) / duration if duration else None,
        "ttft_ms": latency([r.ttft_s for r in requests]),
        "tpot_ms": latency([r.tpot_s for r in requests]),
        "itl_ms": latency([gap for r in requests for gap in r.itl_s]),
        "e2e_ms": latency([r.e2e_s for r in requests]),
        "peak_kv_usage": None,
        "kv_waste": {"mean": None, "max": None, "num_samples": 0},
        "max_concurrent_requests": max(run.most_at_once for run in runs),
        "prefix_cache_hit_rate": sum(cached) / num_prompt if cached and num_prompt else None,
        "preemptions": None,
        "acceptance_length": None,
        "acceptance_rate": None,
        "mean_step_threads": None,
        "weights_bytes": None,
        "kv_cache_bytes": None,
        "decode_bytes_per_s": None,
        "memory_read_bytes_per_s": None,
        "memory_bandwidth_utilization": None,
        "tokens_counted_by": str(max((r.counting for r in runs), key=_worst)),
    }


def add_told(
    figures: dict[str, Any],
    changes: Sequence[Change],
    peak_kv_usage: float | None,
    round_trip_s: float,
) -> None:
    """Put what the server's metrics say of the runs into their figures, and beside them under
    "server", with the differences. round_trip_s: of a bare request."""
    figures["peak_kv_usage"] = peak_kv_usage
    if not changes:
        return
    grown = {figure: _sum(change.grown(figure) for change in changes) for figure in Figure}
    hits = _share(grown[Figure.PREFIX_HITS], grown[Figure.PREFIX_QUERIES])
    if hits is not None:
        figures["prefix_cache_hit_rate"] = hits
    preemptions = grown[Figure.PREEMPTIONS]
    figures["preemptions"] = None if preemptions is None else round(preemptions)
    figures["acceptance_rate"] = _share(grown[Figure.ACCEPTED], grown[Figure.DRAFTED])
    accepted = _share(grown[Figure.ACCEPTED], grown[Figure.DRAFT_ROUNDS])
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
    elif "ttft_ms" in differences:  # what is left without the way that any request has
        left = differences["ttft_ms"]["mean"] - round_trip_s * 1e3
        differences["ttft_ms"]["mean_less_round_trip"] = left
    server["explanation"] = explained(figures, server, round_trip_s)
    figures["server"] = server


def explained(figures: Mapping[str, Any], server: Mapping[str, Any], round_trip_s: float) -> str:
    """Why the two differ, in a sentence or two."""
    if not server["client_less_server_ms"]:
        return "The server tells no latencies: all of them are measured as the client."
    parts = [_explained_ttft(figures, server, round_trip_s)]
    told, own = server["itl_ms"], figures["itl_ms"]
    if server["itl_is_mean_per_request"]:
        parts.append("Its ITL is one mean a request, the client's are all gaps.")
    elif told is not None and told["num_samples"] != own["num_samples"]:
        parts.append(
            f"It counts {told['num_samples']:,} gaps, the client {own['num_samples']:,}: what came "
            "together is one there, or somebody else used it meanwhile."
        )
    parts.append("Its p50 and p99 are read out of a histogram: they are as fine as its buckets.")
    return " ".join(parts)


def _explained_ttft(
    figures: Mapping[str, Any], server: Mapping[str, Any], round_trip_s: float
) -> str:
    parts = server.get("ttft_parts_ms")
    if parts is None:
        return (
            "The server's clock for TTFT starts when the request is in its queue and stops when "
            "the token is made; the client's also counts the way there and back, for which a bare "
            f"request takes {round_trip_s * 1e3:.2f} ms, and the connection where it is a new one."
        )
    return (
        f"Of the client's {figures['ttft_ms']['mean']:.2f} ms to the first token, "
        f"{parts['engine']:.2f} pass from the request's first bytes at the server's socket until "
        "the step that makes the token has ended (reading the request, the queue, prefill), "
        f"{parts['way_out']:.2f} until it is handed to the socket, and {parts['line']:.2f} on the "
        "line and until the client looks."
    )


def _ttft_parts(figures: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, float] | None:
    """Mean milliseconds, of a server that tells its engine's part."""
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
    has_p99 = whole.count >= MIN_SAMPLES_FOR_P99
    return {
        "mean": _ms(mean(whole)),
        "p50": _ms(quantile(whole, 0.5)),
        "p90": _ms(quantile(whole, 0.9)),
        "p99": _ms(quantile(whole, 0.99)) if has_p99 else None,
        "num_samples": whole.count,
    }


def _differences(figures: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, _ in COMPARED:
        told, own = server[key], figures[key]
        if told is not None and own["mean"] is not None:
            found[key] = {name: own[name] - told[name] for name in ("mean", "p50")}
    return found


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _worst(counting: Counting) -> int:
    return list(Counting).index(counting)
