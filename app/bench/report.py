"""The table that people read: one column for each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.units import format_bytes

Figures = Mapping[str, Any]
LATENCIES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("End to end", "e2e_ms"))
STATISTICS = ("mean", "p50", "p90", "p99", "max")


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("Completed", lambda f: f"{f['completed']}" + (f", {f['failed']} failed" * bool(f["failed"]))),
    ("Duration", lambda f: _number(f["duration_s"], " s")),
    ("Output tokens per second", lambda f: _number(f["output_tokens_per_s"])),
    ("Total tokens per second", lambda f: _number(f["total_tokens_per_s"])),
    ("Requests per second", lambda f: _number(f["requests_per_s"])),
    ("Requests at once, at most", lambda f: str(f["max_concurrent_requests"])),
    ("KV cache in use, peak", lambda f: _share(f["peak_kv_usage"])),
    ("KV places wasted, mean", lambda f: _share(f["kv_waste"]["mean"])),
    ("KV places wasted, most", lambda f: _share(f["kv_waste"]["max"])),
    ("Prefix cache hits", lambda f: _share(f["prefix_cache_hit_rate"])),
    ("Preemptions", lambda f: str(f["preemptions"])),
    ("Acceptance length", lambda f: _number(f["acceptance_length"])),
    ("Drafts accepted", lambda f: _share(f["acceptance_rate"])),
    ("Weights", lambda f: format_bytes(f["weights_bytes"])),
    ("KV cache", lambda f: format_bytes(f["kv_cache_bytes"])),
    ("Read while decoding", lambda f: _number(_giga(f["decode_bytes_per_s"]), " GB/s")),
    ("Of memory bandwidth", lambda f: _share(f["memory_bandwidth_utilization"])),
)


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _latency_rows(columns: Mapping[str, Figures]) -> list[list[str]]:
    rows = []
    for title, key in LATENCIES:
        for statistic in STATISTICS:
            values = [figures[key][statistic] for figures in columns.values()]
            if any(value is not None for value in values):
                rows.append([f"{title}, {statistic}", *(_number(v, " ms") for v in values)])
    return rows


def table(columns: Mapping[str, Figures]) -> str:
    """The figures side by side, numbers aligned to the right."""
    rows = [[title, *(cell(figures) for figures in columns.values())] for title, cell in ROWS]
    rows[5:5] = _latency_rows(columns)
    rows.insert(0, ["", *columns])
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) + 1)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)
