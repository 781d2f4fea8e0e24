"""The load generator for a server: sends a workload's requests over HTTP and records when output
arrives, as any client sees it. One thread, one loop.

    arrival      when the request goes out, or the connection for it begins
    first token  when the bytes of the first piece with a token are here
    gaps         between pieces; one of n tokens counts as n gaps of 1/n
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench.load import Pace, Run
from app.bench.workload import BenchRequest
from app.clients.calls import Call
from app.clients.chunks import Counting, ReplyReader
from app.clients.errors import TargetError
from app.clients.latencies import add_tokens, with_late_tokens
from app.clients.stream import Streamer
from engine.snapshot import RequestTimes, TokenEvent

LATE_S = 0.005
"""A request sent later than this counts from when it was due: this client cannot keep up, and a
user would wait."""

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of Linux (docs.kernel.org/scheduler/sched-stats): ns on a core, ns in the queue for one."""


@dataclass(slots=True)
class ClientRun(Run):
    """A run on a server. counting: the least exact way in which tokens were counted."""

    num_cached_tokens: int | None = None
    num_short: int = 0  # ended before their length
    at_once: int = 0
    most_at_once: int = 0
    counting: Counting = Counting.IDS


async def run_client(
    streamer: Streamer,
    requests: Sequence[BenchRequest],
    make_call: Callable[[BenchRequest], Call],
    pace: Pace,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    limit_s: float = math.inf,
) -> ClientRun:
    """Send `requests` at `pace`, none after `limit_s`; `progress(ended, of)` is called after
    each."""
    run = ClientRun()
    calls = [(request, make_call(request)) for request in requests]  # before the clock runs
    due = pace.due_times(len(requests), seed)
    began, waited = time.perf_counter(), _core_wait_s()

    async def one(request: BenchRequest, call: Call, due_at: float) -> None:
        if time.perf_counter() - began > limit_s:
            return
        run.at_once += 1
        run.most_at_once = max(run.most_at_once, run.at_once)
        try:
            await _one(streamer, request, call, due_at, run)
        finally:
            run.at_once -= 1
            progress(len(run.requests) + run.num_failed, len(requests))

    if pace.request_rate is not None:
        moments = [began + seconds for seconds in due]
        await asyncio.gather(
            *(_at(at, one(*call, at)) for call, at in zip(calls, moments, strict=True))
        )
    else:
        waiting = iter(calls)
        places = pace.concurrency or len(calls)
        await asyncio.gather(*(_worker(waiting, one) for _ in range(min(places, len(calls)))))
    run.end(began)
    if waited is not None and (now := _core_wait_s()) is not None:
        run.core_wait_s = now - waited
    return run


def _core_wait_s() -> float | None:
    """Of this thread since it began; None where the system does not report it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


async def _worker(
    waiting: Iterator[tuple[BenchRequest, Call]],
    one: Callable[[BenchRequest, Call, float], Awaitable[None]],
) -> None:
    """One of the concurrent workers: sends the next request when its last one has ended."""
    for request, call in waiting:
        await one(request, call, time.perf_counter())


async def _at(moment: float, work: Awaitable[None]) -> None:
    await asyncio.sleep(max(moment - time.perf_counter(), 0.0))
    await work


async def _one(
    streamer: Streamer, request: BenchRequest, call: Call, due_at: float, run: ClientRun
) -> None:
    reader = ReplyReader()
    events: list[TokenEvent] = []
    sent: list[float] = []
    num_late = 0
    try:
        async for at, piece in streamer.stream(call, reader, sent.append):
            num_late += piece.num_late
            if count := len(piece.token_ids) - piece.num_late:
                add_tokens(events, at, count)
    except TargetError as error:
        run.fail(error.info())
        return
    if not events:
        run.fail(None)
        return
    arrival = sent[0] if sent and sent[0] - due_at < LATE_S else due_at
    tokens = tuple(with_late_tokens(events, num_late))
    times = RequestTimes(arrival, None, tokens, tokens[-1].time)
    run.requests.append(times)
    run.num_prompt_tokens += reader.num_prompt_tokens or 0
    if reader.num_cached_tokens is not None:
        run.num_cached_tokens = (run.num_cached_tokens or 0) + reader.num_cached_tokens
    run.num_short += times.num_output_tokens < request.output_len
    run.counting = max(run.counting, reader.counting, key=list(Counting).index)
