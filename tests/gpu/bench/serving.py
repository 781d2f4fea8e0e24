"""Serves prompts with our engine and notes when every token came."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

from engine import LLMEngine, SamplingParams
from engine.snapshot import RequestTimes, StepRecord
from engine.telemetry.metrics import Summary

Prompt = Sequence[int]


class Served(NamedTuple):
    """What became of all prompts. `steps` are the last ones that the engine remembers."""

    requests: tuple[RequestTimes, ...]
    steps: tuple[StepRecord, ...] = ()
    preemptions: int = 0

    @property
    def duration_s(self) -> float:
        first = min(request.arrival for request in self.requests)
        return max(request.tokens[-1].time for request in self.requests) - first

    @property
    def num_output(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)


def serve(
    engine: LLMEngine, prompts: Sequence[Prompt], num_output: Sequence[int] | int,
    due: Sequence[float] | None = None,
) -> Served:  # fmt: skip
    """Serve all prompts at once, or each from `due` seconds on; greedy, and past every end of
    text. Raises RuntimeError where one of them fails."""
    lengths = [num_output] * len(prompts) if isinstance(num_output, int) else list(num_output)
    before = engine.snapshot().counters.preemptions
    due = due or [0.0] * len(prompts)
    done: list[RequestTimes] = []
    sent, started = 0, time.perf_counter()
    while len(done) < len(prompts):
        now = time.perf_counter() - started
        while sent < len(prompts) and due[sent] <= now:
            params = SamplingParams(temperature=0.0, max_tokens=lengths[sent], ignore_eos=True)
            engine.add_request(prompts[sent], params, arrival=started + due[sent])
            sent += 1
        if not engine.has_unfinished:
            time.sleep(max(0.0, due[sent] - now))
            continue
        for event in engine.step():
            if event.finish_reason is None and event.error is None:
                continue  # times come with a first token, too
            if event.error is not None or event.times is None:
                raise RuntimeError(f"A request failed: {event.error or event.finish_reason}")
            done.append(event.times)
    after = engine.snapshot()
    return Served(tuple(done), after.steps, after.counters.preemptions - before)


def random_prompts(
    count: int, length: int, vocab_size: int, salt: object, shared: Prompt = ()
) -> list[list[int]]:
    """Seeded token ids, away from the ends of the vocabulary; each begins with `shared`."""
    rng = random.Random(f"{salt}")
    low, high = vocab_size // 100, vocab_size - vocab_size // 100
    own = length - len(shared)
    return [[*shared, *rng.choices(range(low, high), k=own)] for _ in range(count)]


class Decoding(NamedTuple):
    """The stretch in which every request of a wave decodes: from the last first token to the first
    last one. `context`: tokens that a request has on average, its prompt included."""

    num_steps: int
    step_s: float
    context: float

    @classmethod
    def of(cls, requests: Sequence[RequestTimes], num_input: int) -> Decoding | None:
        """None where there is no such stretch of at least two tokens."""
        begin = max(request.tokens[0].time for request in requests)
        end = min(request.tokens[-1].time for request in requests)
        times = [[t.time for t in r.tokens if begin <= t.time <= end] for r in requests]
        gaps = [later - sooner for own in times for sooner, later in pairwise(own)]
        if not gaps:
            return None
        numbers = [
            index + 1
            for r in requests
            for index, token in enumerate(r.tokens)
            if begin < token.time <= end
        ]
        context = num_input + sum(numbers) / max(1, len(numbers)) - 1
        return cls(max(len(own) for own in times) - 1, sum(gaps) / len(gaps), context)


def latencies(waves: Sequence[Served]) -> dict[str, Any]:
    """Figures of one or more waves of the same kind, their samples pooled."""
    requests = [request for wave in waves for request in wave.requests]
    duration = sum(wave.duration_s for wave in waves)
    return {
        "num_requests": len(requests),
        "duration_s": duration,
        "ttft_ms": _summary([r.ttft_s for r in requests]),
        "itl_ms": _summary([gap for r in requests for gap in r.itl_s]),
        "tokens_per_s": sum(wave.num_output for wave in waves) / duration,
        "requests_per_s": len(requests) / duration,
        "preemptions": sum(wave.preemptions for wave in waves),
    }


def _summary(seconds: Sequence[float | None]) -> dict[str, Any]:
    return asdict(Summary.of(s * 1000 for s in seconds if s is not None))


def step_shares(steps: Sequence[StepRecord], batch: int) -> dict[str, float]:
    """Mean milliseconds of the parts of a step that decodes for `batch` requests."""
    chosen = [s for s in steps if s.num_decode_tokens == batch and not s.num_prefill_tokens]
    names = ("duration", "schedule_s", "model_s", "sample_s", "commit_s")
    return {
        name.removesuffix("_s") + "_ms": sum(getattr(s, name) for s in chosen) / len(chosen) * 1000
        for name in names
        if chosen
    }
