"""Records steps and latency samples until the next snapshot. Pure Python: no torch."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from engine.scheduling.block_tables import BlockTables
from engine.scheduling.request import Grant, Outcome, Request, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import (
    BACKGROUND,
    Arrival,
    Counters,
    Sample,
    StepEntry,
    StepRecord,
    TokenEvent,
)
from engine.speculation.statistics import num_accepted

# Limit for callers that take no snapshots (the library, the command line).
MAX_PENDING = 100_000


@dataclass(slots=True)
class StepTimer:
    """Times of one step: its start, and its parts in seconds.

    On the CPU each part is measured directly. On a GPU the host only launches the model and the
    sampling, and waits for both at the end: `sample_s` is the launch of the sampling plus its GPU
    time, and `model_s` the rest of the wait. `model_s` also contains what the host did meanwhile:
    launching the next step, or, if this step was launched early itself, everything since the
    previous commit.
    """

    start: float
    num_threads: int = 0
    schedule_s: float = 0.0
    draft_s: float = 0.0
    model_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0

    def add_wait(self, before_s: float, reading_s: float, sampled_s: float | None) -> None:
        """From the end of the launch until the tokens were read. reading_s: the last part of it, in
        which nothing else was done; sampled_s: what the device sampled by its own clock, None where
        there is no such clock."""
        if sampled_s is None:
            sampled_s = reading_s
        sampled_s = min(sampled_s, before_s + reading_s)
        self.model_s += before_s + reading_s - sampled_s
        self.sample_s += sampled_s


class News(NamedTuple):
    """Of a snapshot: everything since the one before."""

    steps: tuple[StepRecord, ...]
    ttft: tuple[Sample, ...]
    itl: tuple[Sample, ...]
    arrivals: tuple[Arrival, ...]


class Recorder:
    """Running totals, and the steps and latency samples since the last `drain`."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.steps: deque[StepRecord] = deque(maxlen=MAX_PENDING)
        self.ttft: deque[Sample] = deque(maxlen=MAX_PENDING)
        self.itl: deque[Sample] = deque(maxlen=MAX_PENDING)
        self.arrivals: deque[Arrival] = deque(maxlen=MAX_PENDING)
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._finished: Counter[str] = Counter()

    def arrived(self, request: Request, tables: BlockTables) -> None:
        """A request was queued, and none of it is computed."""
        if not request.request_id.startswith(BACKGROUND):
            self.arrivals.append(Arrival(
                request.request_id, request.arrival_time, request.num_prompt_tokens,
                request.max_num_tokens - request.num_prompt_tokens, tables.pool.block_size,
                tables.prefix_numbers(request),
            ))  # fmt: skip

    def tokens(self, request: Request, count: int, now: float) -> None:
        """`count` tokens of the request became visible at `now`."""
        events = request.token_events
        if not request.request_id.startswith(BACKGROUND):
            if events:
                self.itl += (Sample(now, (now - events[-1].time) / count),) * count
            else:
                self.ttft.append(Sample(now, now - request.arrival_time))
        events.append(TokenEvent(now, count))
        self._generation_tokens += count

    def token_each(self, requests: Sequence[Request], now: float) -> None:
        """One token of each request became visible at `now`: most of these follow a token of one
        step, and share their records."""
        event, itl = TokenEvent(now, 1), Sample(now, 0.0)
        for request in requests:
            events = request.token_events
            if not events or request.request_id.startswith(BACKGROUND):
                self.tokens(request, 1, now)
                continue
            gap = now - events[-1].time
            if gap != itl.value:
                itl = Sample(now, gap)
            self.itl.append(itl)
            events.append(event)
            self._generation_tokens += 1

    def decoded(
        self, requests: Sequence[Request], steps: Sequence[StepRecord], ended: Iterable[Request]
    ) -> None:
        """One token of each request in each of these successive steps; some ended with the last."""
        self.token_each(requests, steps[0].end)
        for before, step in pairwise(steps):
            self.itl += (Sample(step.end, step.end - before.end),) * len(requests)
        events = [TokenEvent(step.end, 1) for step in steps[1:]]
        for request in requests:
            request.token_events += events
        self._generation_tokens += len(requests) * len(events)
        self.finished(ended)
        self.steps += steps
        self.num_steps += len(steps)

    def finished(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.finish_reason is not None:
                self._finished[request.finish_reason.value] += 1

    def step(
        self,
        plan: StepPlan,
        entries: Sequence[StepEntry],
        finished: Sequence[Request],
        scheduler: Scheduler,
        timer: StepTimer,
        end: float,
        kv_usage: float,
    ) -> None:
        self._prompt_tokens += sum(e.num_tokens for e in entries if e.kind == "prefill")
        self._cached_tokens += sum(e.num_cached_tokens for e in entries)
        self.finished(finished)
        self.steps.append(
            StepRecord(
                index=self.num_steps,
                start=timer.start,
                duration=end - timer.start,
                entries=tuple(entries),
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
                preempted=tuple(r.request_id for r in plan.preempted),
                finished=tuple(r.request_id for r in finished),
                schedule_s=timer.schedule_s,
                draft_s=timer.draft_s,
                model_s=timer.model_s,
                sample_s=timer.sample_s,
                commit_s=timer.commit_s,
                held_back=tuple(r.request_id for r in plan.held_back),
                kv_usage=kv_usage,
                num_threads=timer.num_threads,
            )
        )
        self.num_steps += 1

    def counters(self, scheduler: Scheduler, evictions: int) -> Counters:
        return Counters(
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.num_preemptions,
            evictions=evictions,
            finished=dict(self._finished),
        )

    def drain(self) -> News:
        """What is new since the last call."""
        news = News(
            tuple(self.steps), tuple(self.ttft), tuple(self.itl), tuple(self.arrivals)
        )  # fmt: skip
        for queue in (self.steps, self.ttft, self.itl, self.arrivals):
            queue.clear()
        return news


def entries_of(plan: StepPlan, outcomes: Mapping[str, Outcome]) -> list[StepEntry]:
    """What each request does in the step, taken before it is committed."""
    return [_entry(grant, outcomes) for grant in plan.grants]


def _entry(grant: Grant, outcomes: Mapping[str, Outcome]) -> StepEntry:
    request, start, num_tokens, num_cached, _, drafts, is_resumed = grant
    accepted = 0
    if drafts and (outcome := outcomes.get(request.request_id)) is not None:
        accepted = num_accepted(drafts, outcome.token_ids)
    return StepEntry(
        request.request_id,
        # as `is_decode` and `samples`, without a call each: of every request in every step
        "decode" if num_tokens == 1 and start >= len(request.prompt_token_ids) else "prefill",
        num_tokens,
        num_cached,
        len(drafts),
        accepted,
        start + num_tokens + len(drafts),  # num_context
        1 + len(drafts) if start + num_tokens == len(request.token_ids) else 0,  # num_logits
        is_resumed,
    )
