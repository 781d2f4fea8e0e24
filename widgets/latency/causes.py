"""Why a gap between tokens was long: found in the engine's steps, and small enough to be stored
with the reply, which outlives them. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from engine.snapshot import RequestTimes, StepEntry, StepRecord, entry_of

CHANGE_DELAY_S = 0.3
"""The window hears of a change of settings at most this long after it was made."""
BATCH_AT_MOST = 2.0
"""A larger batch explains gaps up to this multiple of its share of the median."""
MOST_NAMES = 3
"""Names that are stored of other requests; more are a number."""


class Cause(StrEnum):
    """Cause of a slow gap (see `explained`), as stored and as written in the table of values."""

    NONE = ""
    CONTINUED = "continued"  # the reply had ended before
    RELOAD = "reload"
    REBUILD = "cache rebuild"
    PREEMPTED = "preempted"  # the request itself
    BETWEEN = "no step ran"
    PREFILL = "concurrent prefill"  # of other requests, in the same steps
    DRAFT = "drafting"
    MODEL = "slow forward pass"  # as much work as usual took longer
    HOST = "slow engine thread"  # scheduling, sampling and commit
    BATCH = "larger batch"  # more requests decoded with it than usual
    UNKNOWN = "slow, cause unknown"


class Changed(NamedTuple):
    """A change of settings: when the window heard that it was made, how long the engine took, and
    what changed. `cause`: REBUILD, RELOAD, or NONE for a live one."""

    end: float
    seconds: float
    cause: Cause
    text: str


class Reason(NamedTuple):
    """Why gap number `place` (from 0) was long. `seconds`: what the cause alone took. `num_tokens`:
    its own recomputed ones, or those prefilled for others. `batch`: requests in the largest step,
    `usual_batch`: in the median one. `others`: ids of other requests; names once it is stored, the
    last perhaps "+4". `text`: what was changed. Steps are -1 if there is none."""

    place: int
    cause: Cause
    seconds: float = 0.0
    num_tokens: int = 0
    batch: int = 0
    usual_batch: int = 0
    first_step: int = -1
    last_step: int = -1
    others: tuple[str, ...] = ()
    text: str = ""

    def named(self, name: Callable[[str], str]) -> Reason:
        """With names in place of ids, to be stored."""
        if not self.others:
            return self
        names = list(dict.fromkeys(map(name, self.others)))
        if len(names) > MOST_NAMES:
            names = [*names[: MOST_NAMES - 1], f"+{len(names) - MOST_NAMES + 1}"]
        return self._replace(others=tuple(names))


@dataclass(frozen=True, slots=True)
class ReplyTimes(RequestTimes):
    """The times of a reply with the reasons of its long gaps."""

    reasons: tuple[Reason, ...] = ()

    @property
    def itl_s(self) -> list[float]:
        """Without the wait for the first token of a continuation."""
        waits = {reason.place for reason in self.reasons if reason.cause is Cause.CONTINUED}
        gaps: list[float] = []
        for place, (before, event) in enumerate(pairwise(self.tokens)):
            if place not in waits:
                gaps += [(event.time - before.time) / event.num_tokens] * event.num_tokens
        return gaps


class Gap(NamedTuple):
    """The time before one output event of `num_tokens` tokens, and the steps that ran in it.
    `reason`: of a long one, if known; `is_stored`: it was stored with the reply."""

    start: float
    end: float
    num_tokens: int
    steps: tuple[StepRecord, ...]
    reason: Reason | None = None
    is_stored: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def between_s(self) -> float:
        """Seconds without a running step."""
        return max(0.0, self.seconds - sum(step.duration for step in self.steps))


class Usual(NamedTuple):
    """Medians of a reply: seconds of a gap, requests in a step, and seconds of a step's parts."""

    seconds: float
    batch: float
    draft_s: float
    model_s: float
    host_s: float

    @classmethod
    def of(cls, gaps: Sequence[Gap]) -> Usual:
        steps = [step for gap in gaps for step in gap.steps]
        return cls(
            _median(gap.seconds for gap in gaps),
            _median(len(step.entries) for step in steps),
            _median(step.draft_s for step in steps),
            _median(step.model_s for step in steps),
            _median(map(_host_s, steps)),
        )


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else 0.0


def _host_s(step: StepRecord) -> float:
    return step.schedule_s + step.sample_s + step.commit_s


def others_prefill(gap: Gap, request_id: str) -> list[StepEntry]:
    return [
        entry
        for step in gap.steps
        for entry in step.entries
        if entry.kind == "prefill" and entry.request_id != request_id
    ]


def num_recomputed(gap: Gap, request_id: str) -> int:
    """Tokens of the request that were computed again after a preemption."""
    own = (entry_of(step, request_id) for step in gap.steps)
    return sum(e.num_tokens for e in own if e is not None and e.kind == "prefill")


def explained(
    place: int, gap: Gap, request_id: str, usual: Usual, changes: Sequence[Changed] = ()
) -> Reason:
    """The first that holds: the cache was rebuilt or the model reloaded; the request was preempted;
    half of the excess over the median passed between steps; others were prefilled; half of the
    excess is drafting's, or the batch was larger than the median and explains the gap; else the
    part of the steps that has half of the excess. UNKNOWN: none. `changes`: on the clock of the
    gap."""
    if not gap.steps:
        change = _change_in(gap, changes)
        if change is not None and change.cause is not Cause.NONE:
            return Reason(place, change.cause, change.seconds, text=change.text)
        return Reason(place, Cause.BETWEEN, gap.seconds)
    steps, excess = gap.steps, gap.seconds - usual.seconds
    found = Reason(
        place, Cause.UNKNOWN, batch=max(len(step.entries) for step in steps),
        usual_batch=round(usual.batch), first_step=steps[0].index, last_step=steps[-1].index,
    )  # fmt: skip
    recomputed, change = num_recomputed(gap, request_id), _change_in(gap, changes)
    if change is not None and change.cause is not Cause.NONE:
        return found._replace(
            cause=change.cause, seconds=change.seconds, num_tokens=recomputed, text=change.text
        )
    if recomputed or any(request_id in step.preempted for step in steps):
        text = change.text if change is not None else ""
        return found._replace(cause=Cause.PREEMPTED, num_tokens=recomputed, text=text)
    if gap.between_s > excess / 2:
        return found._replace(cause=Cause.BETWEEN, seconds=gap.between_s)
    if entries := others_prefill(gap, request_id):
        others = tuple(dict.fromkeys(entry.request_id for entry in entries))
        num_tokens = sum(entry.num_tokens for entry in entries)
        return found._replace(cause=Cause.PREFILL, num_tokens=num_tokens, others=others)
    parts = {
        Cause.DRAFT: sum(step.draft_s - usual.draft_s for step in steps),
        Cause.MODEL: sum(step.model_s - usual.model_s for step in steps),
        Cause.HOST: sum(_host_s(step) - usual.host_s for step in steps),
    }
    most = BATCH_AT_MOST * usual.seconds * found.batch / max(usual.batch, 1)
    if parts[Cause.DRAFT] <= excess / 2 and found.batch > usual.batch and gap.seconds <= most:
        return found._replace(cause=Cause.BATCH)
    cause = max(parts, key=lambda one: parts[one])
    if parts[cause] > excess / 2:
        return found._replace(cause=cause, seconds=parts[cause])
    return found


def _change_in(gap: Gap, changes: Sequence[Changed]) -> Changed | None:
    """The change that was made in the gap, the longest of several."""
    within = [
        change
        for change in changes
        if gap.start <= change.end - change.seconds and change.end <= gap.end + CHANGE_DELAY_S
    ]
    return max(within, key=lambda change: change.seconds, default=None)
