"""The load generator: sends a workload's requests to an engine and records their times.

It runs in the engine's thread, between steps, so that nothing competes with the engine. A simulated
engine takes the same load, on its own clock.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.bench.workload import BenchRequest
from engine.errors import ErrorInfo
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, FinishReason, RequestTimes, StepRecord
from engine.telemetry.step_cost import ModelCost, model_cost

if TYPE_CHECKING:
    from engine.messages import Prompt
    from engine.simulate.engine import SimulatedEngine


class Engine(Protocol):
    """What a load needs of an engine: `LLMEngine`, or the one of a window."""

    @property
    def has_unfinished(self) -> bool: ...
    def add_request(self, prompt: Prompt, params: SamplingParams) -> str: ...
    def step(self) -> Sequence[OutputEvent]: ...
    def abort(self, request_id: str) -> object: ...
    def snapshot(self) -> EngineSnapshot: ...


LEAST_LOOK_S = 0.05
"""Between two snapshots."""
SIMULATED_LOOK_S = 1.0


def _ignore(until: float) -> None:
    """Real time passes by itself."""


class Clock(NamedTuple):
    """The time that an engine's steps take, and how to let it pass: real, or simulated. `expect`:
    until when the load has nothing to do, unless a request ends. `look_s`: least time between two
    snapshots."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    expect: Callable[[float], None] = _ignore
    look_s: float = LEAST_LOOK_S

    @classmethod
    def of(cls, engine: SimulatedEngine) -> Clock:
        return cls(engine.now, engine.sleep, engine.expect, SIMULATED_LOOK_S)


class Pace(NamedTuple):
    """When requests are sent: `request_rate` a second on average, or `concurrency` in flight all
    the time; without either, all at once. burstiness: shape of the gamma distribution of the
    intervals, as vLLM's `--burstiness`: 1 is Poisson, less has bursts, more is steadier."""

    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0

    def due_times(self, count: int, seed: int) -> list[float]:
        """Earliest time to send each request, in seconds from the start."""
        if self.request_rate is None:
            return [0.0] * count
        return list(islice(self.arrivals(seed), count))

    def arrivals(self, seed: int) -> Iterator[float]:
        """Infinite arrival times at `request_rate`, in seconds from the start."""
        assert self.request_rate is not None
        rng = random.Random(f"arrivals-{seed}")
        now = 0.0
        while True:
            yield now
            if self.burstiness == 1.0:
                now += rng.expovariate(self.request_rate)
            else:  # of the same mean; the coefficient of variation is 1 / sqrt(burstiness)
                scale = 1 / (self.request_rate * self.burstiness)
                now += rng.gammavariate(self.burstiness, scale)

    def __str__(self) -> str:
        if self.request_rate is not None:
            kind = "Poisson" if self.burstiness == 1.0 else f"burstiness {self.burstiness:g}"
            return f"{self.request_rate:g} requests/s ({kind})"
        return f"{self.concurrency} concurrent" if self.concurrency else "all at once"


@dataclass(slots=True)
class Run:
    """The result of one run. `requests`: completed ones; `duration_s`: to the last token; `error`:
    of the first failed request; `core_wait_s`: how long a client waited for a CPU core, which its
    latencies include."""

    requests: list[RequestTimes] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_failed: int = 0
    error: ErrorInfo | None = None
    duration_s: float = 0.0
    core_wait_s: float | None = None

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)

    def fail(self, error: ErrorInfo | None) -> None:
        self.num_failed += 1
        self.error = self.error or error or ErrorInfo("A request returned no tokens.")

    def end(self, began: float) -> None:
        last = max((request.finished or began for request in self.requests), default=began)
        self.duration_s = last - began


@dataclass(slots=True)
class Observed:
    """Engine measurements of one run.

    peak_kv_usage: maximum fraction of blocks in use. waste: per sample, fraction of unused token
    slots in used blocks. others: per sample, cores that other programs took from the engine's
    threads. decode_*: steps in which every request decoded: their number, seconds, and
    context tokens whose KV they read. draft_rounds: number of verified drafts; drafted, accepted:
    tokens.
    """

    steps: list[StepRecord] = field(default_factory=list)
    peak_kv_usage: float = 0.0
    waste: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    max_concurrent_requests: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    num_decode_steps: int = 0
    decode_s: float = 0.0
    decode_context_tokens: int = 0
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def replay(self, ended: dict[str, int]) -> None:
        """Replay the steps with each request's length. `ended`: the last step of each request."""
        context: dict[str, int] = {}
        ends = sorted(ended.items(), key=lambda one: -one[1])  # the first at the end
        for step in self.steps:
            self.peak_kv_usage = max(self.peak_kv_usage, step.kv_usage or 0.0)
            for request_id in step.preempted:
                context.pop(request_id, None)
            read, only_decodes = 0, bool(step.entries)
            for request_id, kind, own, cached, drafted, accepted, *_ in step.entries:
                length = context.get(request_id, 0) + cached + own + accepted
                context[request_id] = length
                read += length
                if kind != "decode":
                    only_decodes = False
                if drafted:
                    self.draft_rounds += 1
                    self.drafted += drafted
                    self.accepted += accepted
            self.max_concurrent_requests = max(self.max_concurrent_requests, len(context))
            if only_decodes:
                self.num_decode_steps += 1
                self.decode_s += step.duration
                self.decode_context_tokens += read
            while ends and ends[-1][1] <= step.index:
                context.pop(ends.pop()[0], None)


@dataclass(slots=True)
class EngineRun(Run):
    """A run on an engine in this process. Sizes in bytes, of GPU and CPU together."""

    observed: Observed = field(default_factory=Observed)
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    cost: ModelCost | None = None

    def keep_sizes(self, last: EngineSnapshot) -> None:
        memory = last.memory
        self.weights_bytes = memory.weights + memory.host_weights
        self.kv_cache_bytes = memory.kv_cache + memory.host_kv_cache
        self.cost = model_cost(last)


@dataclass(slots=True)
class _InFlight:
    request: BenchRequest
    sent: float  # when it was due; the engine sees it after the step that ran then
    num_output: int = 0


class _Load:
    """One running load.

    A snapshot copies the state of every block, which is slow for a large cache: snapshots take at
    most `snapshot_cost` of the time.
    """

    def __init__(self, engine: Engine, clock: Clock, snapshot_cost: float) -> None:
        self.run = EngineRun()
        self.in_flight: dict[str, _InFlight] = {}
        self._engine = engine
        self._clock = clock
        self._cost = snapshot_cost
        self._before = engine.snapshot().counters
        self._ended: dict[str, int] = {}
        self._next_look = 0.0

    def send(self, request: BenchRequest, arrival: float) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True)
        request_id = self._engine.add_request(request.prompt or request.prompt_token_ids, params)
        self.in_flight[request_id] = _InFlight(request, arrival)

    def until(self, due: float) -> float:
        """When it has to act at the latest: now, while a request is to be aborted after a
        token."""
        ends = (f.request.output_len >= f.request.max_tokens for f in self.in_flight.values())
        return due if all(ends) else -math.inf

    def step(self) -> None:
        for event in self._engine.step():
            if event.request_id in self.in_flight:
                self._book(event)
        began = self._clock.now()
        if began >= self._next_look:
            self._look()
            now = self._clock.now()
            self._next_look = now + max((now - began) / self._cost, self._clock.look_s)

    def finish(self, began: float) -> EngineRun:
        last, seen = self._look(), self.run.observed
        after = last.counters
        self.run.keep_sizes(last)
        seen.prefix_queries = after.prefix_queries - self._before.prefix_queries
        seen.prefix_hits = after.prefix_hits - self._before.prefix_hits
        seen.preemptions = after.preemptions - self._before.preemptions
        seen.replay(self._ended)
        self.run.end(began)
        return self.run

    def _book(self, event: OutputEvent) -> None:
        flight = self.in_flight[event.request_id]
        flight.num_output += len(event.token_ids)
        if event.finish_reason is None:
            if flight.num_output >= flight.request.output_len:
                self._engine.abort(event.request_id)  # its last event comes with the next step
                self._ended.setdefault(event.request_id, event.step_index)
            return
        self._ended.setdefault(event.request_id, event.step_index)
        del self.in_flight[event.request_id]
        times = event.times
        if times is None or event.finish_reason is FinishReason.ERROR or not times.tokens:
            self.run.fail(event.error)
            return
        self.run.num_prompt_tokens += event.num_prompt_tokens
        self.run.requests.append(
            dataclasses.replace(times, arrival=flight.sent, finished=times.tokens[-1].time)
        )

    def _look(self) -> EngineSnapshot:
        snapshot = self._engine.snapshot()
        self.run.observed.steps += snapshot.steps
        if threads := snapshot.threads:
            others = (threads.others or 0.0) if threads.free < threads.most else 0.0
            self.run.observed.others.append(others)
        blocks = snapshot.blocks
        if blocks.num_used:
            share = blocks.num_wasted_tokens / (blocks.num_used * blocks.block_size)
            self.run.observed.waste.append(share)
        return snapshot


def run_load(
    engine: Engine,
    requests: Sequence[BenchRequest],
    pace: Pace,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    snapshot_cost: float = 0.02,
    clock: Clock = Clock(),  # noqa: B008 - immutable
    limit_s: float = math.inf,
) -> EngineRun:
    """Serve `requests` at `pace`, greedily, ignoring EOS; after `limit_s` no more are sent.

    `progress(completed, of)` is called after each finished request. Snapshots take at most
    `snapshot_cost` of the time. Raises InvalidRequestError for a request that can never be served.
    """
    due = pace.due_times(len(requests), seed)
    places = pace.concurrency or len(requests)
    load = _Load(engine, clock, snapshot_cost)
    completed = load.run.requests
    began = clock.now()
    sent = 0
    try:
        while sent < len(requests) or load.in_flight:
            now = clock.now() - began
            if now > limit_s and sent < len(requests):
                requests = requests[:sent]
                continue
            while sent < len(requests) and len(load.in_flight) < places and due[sent] <= now:
                at = began + due[sent] if pace.request_rate else clock.now()
                load.send(requests[sent], at)
                sent += 1
            if not engine.has_unfinished:
                clock.sleep(max(0.0, due[sent] - now))
                continue
            before = len(completed)
            is_next = sent < len(requests) and len(load.in_flight) < places
            clock.expect(load.until(began + min(due[sent] if is_next else math.inf, limit_s)))
            load.step()
            if len(completed) > before:
                progress(len(completed), len(requests))
    except BaseException:
        for request_id in load.in_flight:
            engine.abort(request_id)
        raise
    return load.finish(began)
