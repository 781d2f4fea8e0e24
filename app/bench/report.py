"""The table that people read: one column for each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.units import format_bytes

Figures = Mapping[str, Any]
LATENCIES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("End to end", "e2e_ms"))
STATISTICS = ("mean", "p50", "p90", "p99", "max")


NOT_TOLD = "not told"
"""What a client cannot know of a server, and its metrics do not say."""


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)


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
    ("Preemptions", lambda f: _whole(f["preemptions"])),
    ("Acceptance length", lambda f: _number(f["acceptance_length"])),
    ("Drafts accepted", lambda f: _share(f["acceptance_rate"])),
    ("Threads of a step, mean", lambda f: _number(f.get("mean_step_threads"))),
    ("Weights", lambda f: _bytes(f["weights_bytes"])),
    ("KV cache", lambda f: _bytes(f["kv_cache_bytes"])),
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


def _or(text: str, unknown: str) -> str:
    return unknown if text == "-" else text


def beside_server(figures: Figures) -> str:
    """The client's latencies, the server's own, its engine's part, and the client's less the
    server's; "" where it tells none."""
    server = figures.get("server")
    if server is None or not server["client_less_server_ms"]:
        return ""
    engine = {"ttft_ms": server["engine_ttft_ms"]} if server["engine_ttft_ms"] else {}
    rows = [["", "client", "server", *(["engine"] if engine else []), "difference"]]
    for title, key in LATENCIES:
        for statistic in ("mean", "p50"):
            difference = server["client_less_server_ms"].get(key, {}).get(statistic)
            if difference is not None:
                cells = [f"{one[key][statistic]:,.2f} ms" for one in (figures, server)]
                if engine:
                    cells.append(f"{engine[key][statistic]:,.2f} ms" if key in engine else "")
                rows.append([f"{title}, {statistic}", *cells, f"{difference:,.2f} ms"])
    return f"{_aligned(rows)}\n\n{server['explanation']}"


def table(columns: Mapping[str, Figures], unknown: str = "-") -> str:
    """The figures side by side, numbers aligned to the right. unknown: what stands for one that is
    not known."""
    rows = [
        [title, *(_or(cell(figures), unknown) for figures in columns.values())]
        for title, cell in ROWS
    ]
    rows[5:5] = _latency_rows(columns)
    rows.insert(0, ["", *columns])
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)
