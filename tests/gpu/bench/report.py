"""All results in one report: figures beside their floors, and the goals. Imports no torch.

Floors and fractions are made here, from what the cells measured and the ceilings that were seen on
the same device, so that a report of several runs is of one piece.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.gpu.bench.cell import Result
from tests.gpu.bench.floors import (
    Ceilings,
    Load,
    WaveFloor,
    decode_work,
    divided_floor,
    draft_floor,
    prefill_work,
    seconds,
    wave_floor,
)
from tests.gpu.bench.goals import MISSED, goals
from tests.gpu.bench.published import published
from tests.gpu.bench.shapes import Shape

Row = dict[str, Any]


def build(results: Sequence[Result], *, commit: str, quick: bool, num_left: int) -> dict[str, Any]:
    """The report of all results. num_left: cells that were asked for and have no result yet."""
    good = {result.name: result for result in results if result.is_ok}
    ceilings = ceilings_of(good)
    rows = {
        kind: {r.name: make(r, ceilings) for r in good.values() if r.kind == kind}
        for kind, make in _ROWS.items()
    }
    judged = goals(rows["wave"], rows["peer"])
    machine = good["machine"].figures if "machine" in good else {}
    return {
        "report": "tests.gpu.run_all",
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit,
        "quick": quick,
        "machine": machine,
        "ceilings": {
            **(ceilings._asdict() if ceilings else {}),
            **{r.name: r.figures for r in good.values() if r.part == "ceilings"},
        },
        "goals": [goal.as_dict() for goal in judged],
        "misses": [goal.text for goal in judged if goal.verdict == MISSED],
        "failed": [{"name": r.name, "error": r.error} for r in results if not r.is_ok],
        "num_left": num_left,
        "tests": next((r.figures for r in results if r.kind == "tests"), {}),
        "rows": rows,
        "published": published(),
        "cells": [asdict(result) for result in results],
    }


def ceilings_of(good: Mapping[str, Result]) -> Ceilings | None:
    """As measured; None before they are."""
    copied, products = good.get("ceilings/copy"), {}
    for precision in ("bf16", "fp8", "int8"):
        result = good.get(f"ceilings/product/{precision}")
        if result is not None:
            products[precision] = float(result.figures["flops_per_s"])
    if copied is None or "bf16" not in products:
        return None
    return Ceilings(float(copied.figures["bytes_per_s"]), products)


def wave_row(result: Result, ceilings: Ceilings | None) -> Row:
    """A wave: p99 (or the longest, where p99 would mean nothing) and rates, each with its share of
    the floor: 1 is as fast as the device can be."""
    s, f = result.settings, result.figures
    row: Row = {
        **{key: s[key] for key in ("precision", "kv", "concurrency")},
        "prompts": "shared" if s["num_shared"] else "unique",
        "ttft_ms": tail(f["ttft_ms"]), "itl_ms": tail(f["itl_ms"]),
        "ttft_p50_ms": f["ttft_ms"]["p50"], "itl_p50_ms": f["itl_ms"]["p50"],
        "tokens_per_s": f["tokens_per_s"], "requests_per_s": f["requests_per_s"],
        "preemptions": f["preemptions"],
    }  # fmt: skip
    decode = f.get("decode")
    if decode:
        row["step_ms"], row["decode_tokens_per_s"] = decode["step_ms"], decode["tokens_per_s"]
    if ceilings is None:
        return row
    load = Load(s["concurrency"], s["num_input"], s["num_output"], s["num_shared"])
    shape = Shape.named(s["shape"])
    floor = wave_floor(shape, s["precision"], s["kv"], load, ceilings)
    row["floor"] = _milliseconds(floor)
    row["ttft_fraction"] = _over(floor.ttft_s * 1000, row["ttft_ms"])
    row["ttft_p50_fraction"] = _over(floor.ttft_s * 1000, row["ttft_p50_ms"])
    row["itl_fraction"] = _over(floor.step_s * 1000, row["itl_ms"])
    row["tokens_fraction"] = _over(f["tokens_per_s"], floor.tokens_per_s)
    row["requests_fraction"] = _over(f["requests_per_s"], floor.requests_per_s)
    if decode:
        work = decode_work(
            shape, s["precision"], s["kv"], s["concurrency"], decode["context"], s["num_shared"]
        )
        row["step_floor_ms"] = seconds(work, ceilings, s["precision"]) * 1000
        row["step_fraction"] = _over(row["step_floor_ms"], row["step_ms"])
    return row


def _milliseconds(floor: WaveFloor) -> Row:
    return {
        "ttft_ms": floor.ttft_s * 1000, "step_ms": floor.step_s * 1000,
        "tokens_per_s": floor.tokens_per_s, "requests_per_s": floor.requests_per_s,
    }  # fmt: skip


def tail(summary: Mapping[str, Any]) -> float | None:
    """The p99 of a summary, or its longest where there are too few samples for one."""
    return summary["p99"] if summary["p99"] is not None else summary["max"]


def peer_row(result: Result, ceilings: Ceilings | None) -> Row:
    s, f = result.settings, result.figures
    row: Row = {
        "engine": s["engine"], "concurrency": s["concurrency"],
        "ttft_ms": tail(f["ttft_ms"]), "itl_ms": tail(f["itl_ms"]),
        "tokens_per_s": f["tokens_per_s"], "requests_per_s": f["requests_per_s"],
    }  # fmt: skip
    decode = f.get("decode")
    if decode:
        row["step_ms"], row["decode_tokens_per_s"] = decode["step_ms"], decode["tokens_per_s"]
        if ceilings is not None:
            work = decode_work(
                Shape.named(s["shape"]), "bf16", "auto", s["concurrency"], decode["context"]
            )
            row["step_fraction"] = _over(seconds(work, ceilings) * 1000, decode["step_ms"])
    return row


def arrival_row(result: Result, ceilings: Ceilings | None) -> Row:
    f = result.figures
    return {
        "rate": f["rate"], "offered_per_s": f["offered_per_s"],
        "requests_per_s": f["requests_per_s"], "tokens_per_s": f["tokens_per_s"],
        "ttft_ms": tail(f["ttft_ms"]), "itl_ms": tail(f["itl_ms"]),
        "num_requests": f["num_requests"],
    }  # fmt: skip


def budget_row(result: Result, ceilings: Ceilings | None) -> Row:
    s, f = result.settings, result.figures
    row: Row = {key: s[key] for key in ("budget_gb", "precision", "kv")}
    row |= {"fits": f["fits"], "users": f.get("users", 0), "why": f.get("why", "")}
    if "tokens_per_s" in f:
        row |= {
            "tokens_per_s": f["tokens_per_s"], "ttft_ms": tail(f["ttft_ms"]),
            "itl_ms": tail(f["itl_ms"]), "step_ms": (f.get("decode") or {}).get("step_ms"),
            "peak_bytes": f.get("peak_bytes"),
        }  # fmt: skip
    return row


def divided_row(result: Result, ceilings: Ceilings | None) -> Row:
    """One request through layers on the CPU and on the GPU. step_ms: the median, for the engine
    tries other numbers of threads now and then. The floor of the CPU's part is by what it was seen
    to read and to compute in that cell."""
    s, f = result.settings, result.figures
    row: Row = {key: s[key] for key in ("budget_gb", "precision", "kv")}
    row |= {"fits": f["fits"], "is_divided": f["is_divided"], "why": f.get("why", "")}
    if not f["is_divided"]:
        return row
    layers, host_layers = f["num_layers"], f["host_layers"]
    row |= {
        "num_layers": layers, "gpu_layers": layers - host_layers, "num_input": f["num_input"],
        "num_output": f["num_output"], "ttft_ms": f["ttft_ms"]["p50"],
        "step_ms": f["itl_ms"]["p50"], "host_bytes_per_s": f["host_bytes_per_s"],
    }  # fmt: skip
    if ceilings is None:
        return row
    precision, kv, length = s["precision"], s["kv"], f["num_input"]
    shape, context = Shape.named(s["shape"]), length + f["num_output"] / 2
    host = Ceilings(f["host_bytes_per_s"], {"bf16": f["host_flops_per_s"]})
    step = divided_floor(
        shape, host_layers, lambda part: decode_work(part, precision, kv, 1, context), host,
        ceilings, precision,
    )  # fmt: skip
    prompt = divided_floor(
        shape, host_layers, lambda part: prefill_work(part, precision, kv, 1, length), host,
        ceilings, precision,
    )  # fmt: skip
    row["step_floor_ms"], row["ttft_floor_ms"] = step.total_s * 1000, prompt.total_s * 1000
    row["step_fraction"] = _over(row["step_floor_ms"], row["step_ms"])
    row["ttft_fraction"] = _over(row["ttft_floor_ms"], row["ttft_ms"])
    row["host_share"] = step.host_s / step.total_s
    return row


def kernel_row(result: Result, ceilings: Ceilings | None) -> Row:
    """Microseconds, bytes and operations a second of each case, and the share of the floor."""
    precision = str(result.settings.get("precision", "bf16"))
    cases = result.figures.get("rows", {"": result.figures})
    return {name: timed_row(case, precision, ceilings) for name, case in cases.items()}


def timed_row(case: Mapping[str, Any], precision: str, ceilings: Ceilings | None) -> Row:
    us = float(case["time"]["us"])
    row: Row = {"us": us, "spread_us": case["time"]["spread_us"], "method": case["time"]["method"]}
    if "bytes" not in case:
        return row
    row["bytes_per_s"] = case["bytes"] / us * 1e6
    row["flops_per_s"] = case.get("flops", 0) / us * 1e6
    if ceilings is not None:
        row["of_bandwidth"] = row["bytes_per_s"] / ceilings.bytes_per_s
        row["of_rate"] = row["flops_per_s"] / ceilings.rate(precision)
        row["fraction"] = max(row["of_bandwidth"], row["of_rate"])
    if "torch_time" in case:
        row["times_torch"] = case["torch_time"]["us"] / us
    return row


def profile_row(result: Result, ceilings: Ceilings | None) -> Row:
    names = ("num_steps", "wall_ms_per_step", "device_ms_per_step", "busy_share",
             "kernels_per_step", "gap_us")  # fmt: skip
    f = result.figures
    row: Row = {name: f[name] for name in names if name in f}
    row["top"] = [
        f"{k['share_of_busy']:.0%} {k['per_step']:.0f} x {k['us_each']:.1f} us {k['name'][:48]}"
        for k in f.get("top", ())[:6]
    ]
    return row


def draft_row(result: Result, ceilings: Ceilings | None) -> Row:
    """Of a step: both models' weights are read, the draft's once for each draft."""
    s, f = result.settings, result.figures
    row: Row = {key: s[key] for key in ("precision", "concurrency", "num_drafts")}
    for name in ("replayed", "launched"):
        row[f"{name}_ms"], row[f"{name}_draft_ms"] = f[name]["step_ms"], f[name]["draft_ms"]
    if ceilings is not None:
        row["floor_ms"] = 1000 * draft_floor(
            Shape.named(s["shape"]), Shape.named(s["draft"]), s["precision"], s["concurrency"],
            s["num_drafts"], f["replayed"]["context"], ceilings,
        )  # fmt: skip
        row["fraction"] = _over(row["floor_ms"], row["replayed_ms"])
    return row


_ROWS = {
    "wave": wave_row, "peer": peer_row, "arrivals": arrival_row, "budget": budget_row,
    "divided": divided_row,
    "attention": kernel_row, "linear": kernel_row, "fused": kernel_row, "sampler": kernel_row,
    "profile": profile_row, "drafts": draft_row,
}  # fmt: skip


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
