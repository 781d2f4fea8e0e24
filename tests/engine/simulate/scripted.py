"""Engines of known step times under load, and their traffic."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from engine.sampling_params import SamplingParams
from engine.simulate.engine import SimulatedEngine
from engine.simulate.step_time import StepTimes
from engine.simulate.traffic import Traffic
from engine.snapshot import EngineSnapshot
from tests.widgets import synthetic

KNOWN = StepTimes.exact(
    step=4e-3, token=2e-4, requests=3e-4, logits=1e-4, context=1e-6, pairs=1e-7, chunks=5e-4,
    distinct=5e-7,
)  # fmt: skip


def like(**changes: Any) -> EngineSnapshot:
    snapshot = synthetic.snapshot(0.0)
    config = snapshot.config.replace(max_num_batched_tokens=512, max_num_seqs=8, **changes)
    memory = dataclasses.replace(snapshot.memory, plan=synthetic.PLAN.with_blocks(600))
    return dataclasses.replace(snapshot, config=config, memory=memory)


def prompts(seed: int) -> Iterator[tuple[list[int], int]]:
    """Prompts that share their first 64 tokens, and the lengths of their replies."""
    rng = random.Random(seed)
    shared = [rng.randrange(10_000) for _ in range(64)]
    while True:
        own = [rng.randrange(10_000) for _ in range(rng.randint(5, 200))]
        yield shared + own, rng.randint(5, 60)


def serve(
    engine: SimulatedEngine, seconds: float, concurrency: int | None, rate: float = 0.0
) -> Iterator[EngineSnapshot]:
    """In a closed loop, or with Poisson arrivals."""
    rng, coming, in_flight, due = random.Random(3), prompts(1), 0, 0.0
    look = 0.0
    while engine.now() < seconds:
        while in_flight < concurrency if concurrency else due <= engine.now():
            prompt, length = next(coming)
            params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
            engine.add_request(prompt, params, None if concurrency else due)
            in_flight += 1
            due += rng.expovariate(rate) if rate else 0.0
        if engine.has_unfinished:
            in_flight -= sum(event.finish_reason is not None for event in engine.step())
        else:
            engine.sleep(due - engine.now())
        if engine.now() >= look:
            yield engine.snapshot()
            look = engine.now() + 0.1
    yield engine.snapshot()


def watched(snapshots: Iterator[EngineSnapshot]) -> Traffic:
    traffic = Traffic()
    for snapshot in snapshots:
        traffic.update(snapshot)
    return traffic
