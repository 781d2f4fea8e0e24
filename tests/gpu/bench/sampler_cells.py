"""The sampler by number of rows, greedy and with the usual parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from engine import SamplingParams
from engine.sampling.sampler import Sampler, SamplingRow
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.shapes import Shape
from tests.gpu.bench.timing import synchronize

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "top-p": SamplingParams(temperature=0.7, top_p=0.9, top_k=50),
}
_TURNS = 15


def measure(bench: Bench, *, shape: str, rows: list[int]) -> dict[str, Any]:
    """Microseconds from the logits to token ids on the host, by the host's clock: what follows
    every step."""
    vocab = Shape.named(shape).vocab
    sampler = Sampler(vocab, bench.device)
    found = {}
    for count in rows:
        logits = torch.randn(count, vocab, device=bench.device, dtype=torch.bfloat16)
        for name, params in KINDS.items():
            wanted = [SamplingRow(f"{i}", params, i, 20, (1, 2, 3), (4,)) for i in range(count)]
            times = _times(lambda wanted=wanted, x=logits: sampler.sample(x, wanted), bench)
            found[f"{name} {count}"] = {
                "bytes": logits.nbytes,
                "time": {
                    "us": median(times), "spread_us": max(times) - min(times), "method": "clock",
                },
            }  # fmt: skip
    return {"rows": found}


def _times(work: Callable[[], object], bench: Bench) -> list[float]:
    """Microseconds of each turn, after two to warm up."""
    times = []
    for _ in range(_TURNS + 2):
        synchronize(bench.device)
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return times[2:]
