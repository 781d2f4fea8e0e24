"""The load generator: sends a workload's requests to an engine and records what happened.

It runs in the engine's thread, between steps, so that nothing competes with the engine.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from app.bench.monitor import EngineMonitor, Observed
from app.bench.workload import BenchRequest
from engine.errors import ErrorInfo
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, RequestTimes

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


class Pace(NamedTuple):
    """When requests are sent: `request_rate` a second on average (Poisson), or `concurrency` in
    flight all the time; with neither, all at once."""

    concurrency: int | None = None
    request_rate: float | None = None

    def due_times(self, count: int, seed: int) -> list[float]:
        """Seconds from the start at which each request may be sent at the earliest."""
        if self.request_rate is None:
            return [0.0] * count
        return list(islice(self.arrivals(seed), count))

    def arrivals(self, seed: int) -> Iterator[float]:
        """Times of a Poisson process of `request_rate`, in seconds from the start, without end."""
        assert self.request_rate is not None
        rng = random.Random(f"arrivals-{seed}")
        now = 0.0
        while True:
            yield now
            now += rng.expovariate(self.request_rate)

    def __str__(self) -> str:
        if self.request_rate is not None:
            return f"{self.request_rate:g} requests a second (Poisson)"
        return f"{self.concurrency} at a time" if self.concurrency else "all at once"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run. `requests` has the completed ones; `duration_s` ends with the last token; `error`
    says why the first of the failed ones failed."""

    requests: tuple[RequestTimes, ...]
    num_failed: int
    num_prompt_tokens: int
    duration_s: float
    observed: Observed
    error: ErrorInfo | None = None

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)


@dataclass(slots=True)
class _InFlight:
    request: BenchRequest
    sent: float  # when it was due; the engine sees it after the step that ran then
    num_output: int = 0


@dataclass(slots=True)
class _Run:
    """Requests in flight by id, and what became of those before."""

    started: float
    in_flight: dict[str, _InFlight] = field(default_factory=dict)
    completed: list[RequestTimes] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_failed: int = 0
    error: ErrorInfo | None = None


def run_load(
    engine: LLMEngine,
    requests: Sequence[BenchRequest],
    pace: Pace,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    snapshot_cost: float = 0.02,
) -> LoadResult:
    """Serve `requests` at `pace`; greedy, and without the model's own end of text.

    `progress(completed, of)` is called after each finished request. At most `snapshot_cost` of the
    time goes into looking at the cache. Raises InvalidRequestError for a request that can never be
    served.
    """
    due = pace.due_times(len(requests), seed)
    places = pace.concurrency or len(requests)
    monitor = EngineMonitor(engine, snapshot_cost)
    run = _Run(time.perf_counter())
    sent = 0
    while sent < len(requests) or run.in_flight:
        now = time.perf_counter() - run.started
        while sent < len(requests) and len(run.in_flight) < places and due[sent] <= now:
            arrival = run.started + due[sent] if pace.request_rate else time.perf_counter()
            _send(engine, run, requests[sent], arrival)
            sent += 1
        if not engine.has_unfinished:
            time.sleep(max(0.0, due[sent] - now))
            continue
        before = len(run.completed)
        for event in engine.step():
            _book(engine, run, event, monitor)
        monitor.after_step()
        if len(run.completed) > before:
            progress(len(run.completed), len(requests))
    last = max((r.finished or run.started for r in run.completed), default=run.started)
    return LoadResult(
        requests=tuple(run.completed),
        num_failed=run.num_failed,
        num_prompt_tokens=run.num_prompt_tokens,
        duration_s=last - run.started,
        observed=monitor.finish(),
        error=run.error,
    )


def _send(engine: LLMEngine, run: _Run, request: BenchRequest, arrival: float) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True)
    request_id = engine.add_request(request.prompt_token_ids, params)
    run.in_flight[request_id] = _InFlight(request, arrival)


def _book(engine: LLMEngine, run: _Run, event: OutputEvent, monitor: EngineMonitor) -> None:
    flight = run.in_flight.get(event.request_id)
    if flight is None:
        return
    flight.num_output += len(event.token_ids)
    if event.finish_reason is None:
        if flight.num_output >= flight.request.output_len:
            engine.abort(event.request_id)  # its last event comes with the next step
            monitor.ended(event.request_id, event.step_index)
        return
    monitor.ended(event.request_id, event.step_index)
    del run.in_flight[event.request_id]
    if event.times is None or event.finish_reason is FinishReason.ERROR or not event.times.tokens:
        run.num_failed += 1
        run.error = run.error or event.error or ErrorInfo("A request ended without tokens.")
        return
    run.num_prompt_tokens += event.num_prompt_tokens
    times = event.times
    run.completed.append(
        dataclasses.replace(times, arrival=flight.sent, finished=times.tokens[-1].time)
    )
