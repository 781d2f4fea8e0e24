"""Latency breakdown of one reply, from its own times and the engine's steps. No Qt.

    arrival        first step                   first token
       |--- queue ---|- prefill 512 -|- wait -|- prefill 88 -|- gap -|- gap -|- gap -| ...

Times are seconds since the arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from engine.snapshot import RequestTimes, StepEntry, StepRecord, entry_of

SLOW = 1.5
"""A gap is slow if it is longer than the median by this factor ..."""
SLOW_S = 0.002
"""... and by this many seconds: small differences do not count."""


class Stage(StrEnum):
    """Kind of a stretch before the first token."""

    QUEUE = "queue"
    PREFILL = "prefill"
    WAIT = "wait"  # between chunks, or after a preemption


class Cause(StrEnum):
    """Cause of a slow gap (see `ReplyLatency.cause`), as written in the table of values."""

    NONE = ""
    PREFILL = "concurrent prefill"  # of other requests, in the same steps
    PREEMPTED = "preempted"  # the request itself
    BETWEEN = "no step ran"
    BATCH = "larger batch"  # more requests decoded with it than usual
    UNKNOWN = "slow, cause unknown"


class Stretch(NamedTuple):
    """A part of the time to first token. A prefill: `num_tokens` computed, `num_cached` skipped."""

    stage: Stage
    start: float
    end: float
    num_tokens: int = 0
    num_cached: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Gap(NamedTuple):
    """The time before one output event of `num_tokens` tokens, and the steps that ran in it."""

    start: float
    end: float
    num_tokens: int
    steps: tuple[StepRecord, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def between_s(self) -> float:
        """Seconds without a running step."""
        return max(0.0, self.seconds - sum(step.duration for step in self.steps))


@dataclass(frozen=True)
class ReplyLatency:
    """`stretches` add up to the TTFT; `gaps` follow it. `is_complete`: the steps of the whole reply
    are in the history."""

    request_id: str
    stretches: tuple[Stretch, ...]
    gaps: tuple[Gap, ...]
    usual_s: float  # the median gap
    usual_batch: float  # requests in the median step
    is_complete: bool

    @property
    def ttft_s(self) -> float:
        return self.stretches[-1].end if self.stretches else 0.0

    def seconds_of(self, stage: Stage) -> float:
        return sum(s.seconds for s in self.stretches if s.stage is stage)

    def is_slow(self, gap: Gap) -> bool:
        return gap.seconds > max(SLOW * self.usual_s, self.usual_s + SLOW_S)

    @property
    def slow_gaps(self) -> list[Gap]:
        """Slow gaps, the slowest first."""
        return sorted(filter(self.is_slow, self.gaps), key=lambda gap: -gap.seconds)

    def others_prefill(self, gap: Gap) -> list[StepEntry]:
        return [
            entry
            for step in gap.steps
            for entry in step.entries
            if entry.kind == "prefill" and entry.request_id != self.request_id
        ]

    def num_recomputed(self, gap: Gap) -> int:
        """Tokens of this request that were recomputed after a preemption."""
        own = (entry_of(step, self.request_id) for step in gap.steps)
        return sum(e.num_tokens for e in own if e is not None and e.kind == "prefill")

    def cause(self, gap: Gap) -> Cause:
        """The first that holds: the request was preempted; half of the excess over the median
        passed between steps; others were prefilled; the batch was larger than the median. UNKNOWN:
        none."""
        if not self.is_slow(gap):
            return Cause.NONE
        if not gap.steps:
            return Cause.BETWEEN if self.is_complete else Cause.UNKNOWN
        preempted = any(self.request_id in step.preempted for step in gap.steps)
        if preempted or self.num_recomputed(gap):
            return Cause.PREEMPTED
        if gap.between_s > (gap.seconds - self.usual_s) / 2:
            return Cause.BETWEEN
        if self.others_prefill(gap):
            return Cause.PREFILL
        if max(len(step.entries) for step in gap.steps) > self.usual_batch:
            return Cause.BATCH
        return Cause.UNKNOWN


def reply_latency(
    request_id: str, times: RequestTimes, steps: Sequence[StepRecord]
) -> ReplyLatency:
    """The breakdown of a request. `steps` are in order; those outside the request are ignored."""
    starts = [step.start for step in steps]
    end = times.tokens[-1].time if times.tokens else times.arrival
    first = bisect_left(starts, _begin(times))
    # a step is entered a moment before its request counts as scheduled
    while first > 0 and steps[first - 1].end > _begin(times):
        first -= 1
    own = steps[first : bisect_left(starts, end)]
    gaps = tuple(_gaps(times, own))
    lengths = [gap.seconds for gap in gaps]
    batches = [len(step.entries) for gap in gaps for step in gap.steps]
    return ReplyLatency(
        request_id,
        tuple(_stretches(request_id, times, own)),
        gaps,
        usual_s=median(lengths) if lengths else 0.0,
        usual_batch=median(batches) if batches else 0.0,
        is_complete=bool(own) and entry_of(own[0], request_id) is not None,
    )


def _begin(times: RequestTimes) -> float:
    return times.arrival if times.first_scheduled is None else times.first_scheduled


def _stretches(request_id: str, times: RequestTimes, steps: Sequence[StepRecord]) -> list[Stretch]:
    if times.first_token is None:
        return []
    zero, first_token = times.arrival, times.first_token - times.arrival
    found: list[Stretch] = []
    at = 0.0
    for step in steps:
        start, end = step.start - zero, min(step.end - zero, first_token)
        if start >= first_token:
            break
        entry = entry_of(step, request_id)
        if entry is None:
            continue
        if start > at:
            found.append(Stretch(Stage.WAIT if found else Stage.QUEUE, at, start))
        found.append(
            Stretch(Stage.PREFILL, max(at, start), end, entry.num_tokens, entry.num_cached_tokens)
        )
        at = end
    if not found:  # step history expired: only the times of the request
        queue = min(_begin(times) - zero, first_token)
        found = [Stretch(Stage.QUEUE, 0.0, queue)] if queue > 0 else []
        found.append(Stretch(Stage.PREFILL, queue, first_token))
    elif at < first_token:
        found.append(Stretch(Stage.WAIT, at, first_token))
    return found


def _gaps(times: RequestTimes, steps: Sequence[StepRecord]) -> list[Gap]:
    """The steps of a gap are those that began after the step of the previous output event."""
    zero, found, place = times.arrival, [], 0
    ordered = times.tokens
    while place < len(steps) and ordered and steps[place].start < ordered[0].time:
        place += 1
    for before, event in pairwise(ordered):
        begin = place
        while place < len(steps) and steps[place].start < event.time:
            place += 1
        found.append(
            Gap(before.time - zero, event.time - zero, event.num_tokens, tuple(steps[begin:place]))
        )
    return found
