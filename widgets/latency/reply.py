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
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import RequestTimes, StepRecord, TokenEvent, entry_of
from widgets.latency.causes import Cause, Changed, Gap, Reason, ReplyTimes, Usual, explained

SLOW = 1.5
"""A gap is slow if it is longer than the median by this factor ..."""
SLOW_S = 0.002
"""... and by this many seconds: small differences do not count."""
NOTABLE = 0.5
"""Reasons are looked for from this share of both on: the median may still fall."""


class Stage(StrEnum):
    """Kind of a stretch before the first token."""

    QUEUE = "queue"
    PREFILL = "prefill"
    BOTH = "queue and prefill"  # not reported apart
    WAIT = "wait"  # between chunks, or after a preemption


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


@dataclass(frozen=True)
class ReplyLatency:
    """`stretches` add up to the TTFT; `gaps` follow it."""

    request_id: str
    stretches: tuple[Stretch, ...]
    gaps: tuple[Gap, ...]

    @property
    def ttft_s(self) -> float:
        return self.stretches[-1].end if self.stretches else 0.0

    def seconds_of(self, stage: Stage) -> float:
        return sum(s.seconds for s in self.stretches if s.stage is stage)

    # (Arrays, made once: a reply of 20,000 tokens is shown anew while it is written.)

    @cached_property
    def gap_seconds(self) -> NDArray[np.float64]:
        return np.array([gap.end - gap.start for gap in self.gaps])

    @cached_property
    def usual_s(self) -> float:
        """The median gap."""
        return float(np.median(self.gap_seconds)) if self.gaps else 0.0

    @cached_property
    def slow_places(self) -> list[int]:
        limit = max(SLOW * self.usual_s, self.usual_s + SLOW_S)
        found: list[int] = np.flatnonzero(self.gap_seconds > limit).tolist()
        return found

    @property
    def slow_gaps(self) -> list[Gap]:
        """Slow gaps, the slowest first."""
        return sorted((self.gaps[place] for place in self.slow_places), key=lambda g: -g.seconds)

    @cached_property
    def causes(self) -> list[Cause]:
        """Of every gap; NONE unless it is slow."""
        found = [Cause.NONE] * len(self.gaps)
        for place in self.slow_places:
            reason = self.gaps[place].reason
            found[place] = Cause.UNKNOWN if reason is None else reason.cause
        return found

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Of all notable gaps, in order."""
        return tuple(gap.reason for gap in self.gaps if gap.reason is not None)


def reply_latency(
    request_id: str,
    times: RequestTimes,
    steps: Sequence[StepRecord],
    changes: Sequence[Changed] = (),
    earlier: Usual | None = None,
) -> ReplyLatency:
    """The breakdown of a request. `steps` are in order; those outside the request are ignored.
    `changes`: of settings; `earlier`: medians of a faster part of the reply. Reasons that are
    stored with the times (`ReplyTimes`) come first."""
    own = own_steps(times, steps)
    is_complete = has_first(own, request_id)
    known = own[-1].end - times.arrival if own else 0.0  # the next steps arrive with a snapshot
    gaps = gaps_between(times.arrival, times.tokens, own)
    usual = Usual.of(gaps)
    best = usual if earlier is None else min(usual, earlier, key=lambda one: one.seconds)
    since = [change._replace(end=change.end - times.arrival) for change in changes]
    stored = {one.place: one for one in times.reasons} if isinstance(times, ReplyTimes) else {}
    for index, gap in enumerate(gaps):
        if index in stored:
            gaps[index] = gap._replace(reason=stored[index], is_stored=True)
        elif _is_notable(gap.seconds, best.seconds) and (
            gap.steps or (is_complete and gap.end <= known)
        ):
            reason = explained(index, gap, request_id, best, since)
            gaps[index] = gap._replace(reason=reason)
        elif stored:  # it was near the median of its part
            gaps[index] = gap._replace(reason=Reason(index, Cause.UNKNOWN), is_stored=True)
    return ReplyLatency(request_id, tuple(stretches_of(request_id, times, own)), tuple(gaps))


def own_steps(times: RequestTimes, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Those from a request's first one to its last output event."""
    begin, end = _begin(times), times.tokens[-1].time if times.tokens else times.arrival
    first = bisect_left(steps, begin, key=lambda step: step.start)
    # a step is entered a moment before its request counts as scheduled
    while first > 0 and steps[first - 1].end > begin:
        first -= 1
    return steps[first : bisect_left(steps, end, key=lambda step: step.start)]


def has_first(own: Sequence[StepRecord], request_id: str) -> bool:
    """Whether the history holds all of the request's own steps."""
    return bool(own) and entry_of(own[0], request_id) is not None


def _is_notable(seconds: float, usual_s: float) -> bool:
    return seconds - usual_s > NOTABLE * max((SLOW - 1) * usual_s, SLOW_S)


def _begin(times: RequestTimes) -> float:
    return times.arrival if times.first_scheduled is None else times.first_scheduled


def stretches_of(
    request_id: str, times: RequestTimes, steps: Sequence[StepRecord]
) -> list[Stretch]:
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
    if not found and times.first_scheduled is None:
        found = [Stretch(Stage.BOTH, 0.0, first_token)]
    elif not found:  # step history expired: only the times of the request
        queue = min(_begin(times) - zero, first_token)
        found = [Stretch(Stage.QUEUE, 0.0, queue)] if queue > 0 else []
        found.append(Stretch(Stage.PREFILL, queue, first_token))
    elif at < first_token:
        found.append(Stretch(Stage.WAIT, at, first_token))
    return found


def gaps_between(
    zero: float, ordered: Sequence[TokenEvent], steps: Sequence[StepRecord]
) -> list[Gap]:
    """Since `zero`. The steps of a gap are those that began after the step of the previous output
    event."""
    found, place = [], 0
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
