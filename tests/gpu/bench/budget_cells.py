"""The engine within the memory of a smaller GPU: what fits, for how many users, how fast."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.bench import wave_cells
from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.wave_cells import BLOCK, engine_facts, settings_of

GB = 10**9
_MOST_USERS = 256


def measure(
    bench: Bench, *, shape: str, precision: str, kv: str, budget_gb: float, num_input: int,
    num_output: int, budget: int,
) -> dict[str, Any]:  # fmt: skip
    """A wave of as many requests as the cache holds at their full length. `budget_gb`: 10^9 bytes
    that this process may take of the device; its share is capped, so that more fails."""
    memory = cap(bench, budget_gb)
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    settings = {**settings_of(precision, _MOST_USERS, context, budget), **memory}
    try:
        engine = bench.engine(shape, kv, **settings)
    except UnableError as error:
        return {"fits": False, "why": str(error)}
    tokens = engine.plan.num_blocks * BLOCK
    users = min(_MOST_USERS, tokens // (-(-(num_input + num_output) // BLOCK) * BLOCK))
    figures = {"fits": users > 0, "users": users, **engine_facts(bench)}
    if not users:
        return {**figures, "why": f"The cache holds {tokens:,} tokens: not one request."}
    found = wave_cells.measure(
        bench, shape=shape, precision=precision, kv=kv, concurrency=users, num_input=num_input,
        num_output=num_output, num_shared=0, rounds=1, most=_MOST_USERS, budget=budget, **memory,
    )  # fmt: skip
    if bench.device.type == "cuda":
        figures["peak_bytes"] = torch.cuda.max_memory_reserved(bench.device)
    return {**figures, **found}


def cap(bench: Bench, budget_gb: float) -> dict[str, Any]:
    """Hold this process to the budget; the settings with which the engine plans for it. On the CPU
    only the cache is held to it."""
    if bench.device.type != "cuda":
        return {"kv_cache_memory_bytes": int(budget_gb * GB)}
    _, total = torch.cuda.mem_get_info(bench.device)
    share = budget_gb * GB / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), bench.device)
    return {"gpu_memory_utilization": max(0.05, min(1.0, share))}
