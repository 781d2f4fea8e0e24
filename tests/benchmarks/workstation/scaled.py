"""Snapshots of a real engine run, scaled to the sizes that hurt: blocks and steps are made up,
everything else (requests, settings, memory, counters) is what the engine said."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from app.main.application import Application
from engine.sampling_params import SamplingParams
from engine.snapshot import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockSnapshot,
    EngineSnapshot,
    RequestSnapshot,
    Sample,
    SpeculationSnapshot,
    StepEntry,
    StepRecord,
    TokenEvent,
)
from tests.benchmarks.workstation.meter import wait_for

NUM_BLOCKS, NUM_REQUESTS, NUM_STEPS = 100_000, 256, 10_000
STEPS_PER_SNAPSHOT = 25
RUN_S = 60.0


def real_snapshot(application: Application) -> EngineSnapshot:
    """What the engine says while it serves NUM_REQUESTS requests at once."""
    seen: list[EngineSnapshot] = []
    application.bridge.snapshot.connect(seen.append)
    params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    ids = [f"load-{number}" for number in range(NUM_REQUESTS)]
    for request_id in ids:
        application.bridge.add_request(request_id, f"Request {request_id}: say a word.", params)

    def all_write() -> bool:
        return bool(seen) and min(
            (r.num_output_tokens for r in seen[-1].requests), default=0
        ) > 8 and len(seen[-1].requests) == NUM_REQUESTS  # fmt: skip

    wait_for(all_write, RUN_S)
    found = seen[-1]
    for request_id in ids:
        application.bridge.abort(request_id)
    wait_for(lambda: not seen[-1].requests, RUN_S)
    application.bridge.snapshot.disconnect(seen.append)
    return found


class Scaled:
    """The next snapshot whenever it is asked for, each with other blocks and new steps."""

    def __init__(self, real: EngineSnapshot) -> None:
        self._real = real
        self._ids = tuple(request.request_id for request in real.requests)
        self._generator = np.random.default_rng(0)
        self._time = time.perf_counter()
        self._index = real.step_index

    def next(self, seconds: float) -> EngineSnapshot:
        """A snapshot so many seconds after the one before."""
        start, self._time = self._time, self._time + seconds
        steps = self._steps(start, seconds / STEPS_PER_SNAPSHOT)
        gaps = [
            Sample(step.start + step.duration, 0.01 + 0.001 * (number % 7))
            for step in steps
            for number in range(NUM_REQUESTS)
        ]
        counters = dataclasses.replace(
            self._real.counters, generation_tokens=self._index * NUM_REQUESTS
        )
        return dataclasses.replace(
            self._real, time=self._time, step_index=self._index, blocks=self._blocks(),
            requests=self._requests(), counters=counters, steps=steps,
            ttft=(Sample(self._time, 0.08),), itl=tuple(gaps),
            speculation=SpeculationSnapshot(
                "ngram", rounds=self._index, drafted_per_position=(self._index,) * 4,
                accepted_per_position=(self._index // 2,) * 4, draft_steps=self._index,
            ),
        )  # fmt: skip

    def _requests(self) -> tuple[RequestSnapshot, ...]:
        """Each has written a token in every step since."""
        more = self._index - self._real.step_index
        return tuple(
            dataclasses.replace(
                r, num_output_tokens=r.num_output_tokens + more,
                num_computed_tokens=r.num_computed_tokens + more,
                times=dataclasses.replace(
                    r.times, tokens=(*r.times.tokens, TokenEvent(self._time, more))
                ),
            )
            for r in self._real.requests
        )  # fmt: skip

    def _steps(self, start: float, pitch: float) -> tuple[StepRecord, ...]:
        made = []
        for number in range(STEPS_PER_SNAPSHOT):
            self._index += 1
            entries = tuple(
                StepEntry(request_id, "prefill" if (place + self._index) % 16 == 0 else "decode",
                          1, num_draft=2, num_accepted=1, num_context=200, num_logits=1)
                for place, request_id in enumerate(self._ids)
            )  # fmt: skip
            duration = pitch * (0.5 + 0.06 * (self._index % 7))
            made.append(
                StepRecord(self._index, start + number * pitch, duration, entries, NUM_REQUESTS, 0,
                           model_s=duration * 0.8, sample_s=duration * 0.1)
            )  # fmt: skip
        return tuple(made)

    def _blocks(self) -> BlockSnapshot:
        """Two thirds of the blocks held, in runs of twenty; the rest cached or free."""
        held = NUM_BLOCKS * 2 // 3 // NUM_REQUESTS
        runs = self._generator.permutation(NUM_BLOCKS // 20)
        order = (runs[:, None] * 20 + np.arange(20)).ravel()
        owner = np.full(NUM_BLOCKS, BLOCK_FREE, np.int32)
        mine = order[: held * NUM_REQUESTS].reshape(NUM_REQUESTS, held)
        owner[mine] = np.arange(NUM_REQUESTS, dtype=np.int32)[:, None]
        rest = order[held * NUM_REQUESTS :]
        owner[rest[: len(rest) // 2]] = BLOCK_CACHED
        fill = np.where(owner >= 0, self._generator.integers(1, 17, NUM_BLOCKS), 16)
        refs = np.where(owner >= 0, self._generator.integers(1, 3, NUM_BLOCKS), 0)
        tables = tuple(tuple(row) for row in mine.tolist())
        return BlockSnapshot(
            self._real.blocks.block_size, self._ids, owner, refs.astype(np.int32),
            fill.astype(np.int32), owner == BLOCK_CACHED, tables,
        )  # fmt: skip
