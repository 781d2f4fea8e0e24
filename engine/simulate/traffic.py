"""`Traffic`: an engine's requests and measured steps, from its snapshots; `Load`: the requests of
its last minute, to be replayed. No torch.

    start                                           end
      |-- a ------------------- end                  |    closed loop: an arrival follows each end,
    -- b ---- end                                    |    so that as many are in flight all the time
      |         c --------------------------- end    |
      |                              d ---------------    unfinished: its length is expected from
                                                          those of the others
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.errors import ConfigError
from engine.simulate.settings import REPLAYED
from engine.simulate.step_time import LEAST_STEPS, Measured, StepTimes, measured
from engine.snapshot import Arrival, EngineSnapshot, RequestSnapshot, StepRecord
from engine.units import duration_text

SPAN_S = 60.0
LEAST_S, LEAST_REQUESTS = 5.0, 4
"""A shorter load, or one of fewer requests, is not predicted."""
STEADY = 0.25
"""Variance of the number in flight over its mean, below which the load is a closed loop: 1 for
Poisson arrivals, far less where each arrival waits for an end."""
_KEPT_S = 2 * SPAN_S
_KEPT_STEPS = 2048  # of each kind: a minute of most engines
_AT_LIMIT = 0.9  # share of replies that end with max_tokens, above which all are expected to


class Sent(NamedTuple):
    """A request of a load. num_output: tokens of its reply, of which `num_done` came before the
    load's start, the last at `last_token`. num_cached: tokens of its prompt that were cached."""

    arrival: Arrival
    num_output: int
    num_cached: int
    num_done: int = 0
    last_token: float = 0.0


class Load(NamedTuple):
    """Requests in order of arrival, those in flight at `start` included. concurrency: that many are
    in flight all the time, and the next follows an end after `gap_s`; None: they arrive whenever
    they did."""

    start: float
    end: float
    requests: tuple[Sent, ...]
    concurrency: int | None = None
    gap_s: float = 0.0


@dataclass(slots=True)
class _Seen:
    arrival: Arrival
    tokens: list[float] = field(default_factory=list)  # times
    num_cached: int = 0
    is_admitted: bool = False
    ended: float | None = None


class Traffic:
    """Takes every snapshot of an engine, in order."""

    def __init__(self) -> None:
        self._requests: dict[str, _Seen] = {}
        self._steps: dict[tuple[int, int], deque[Measured]] = {}
        self._last: EngineSnapshot | None = None
        self._last_step: StepRecord | None = None
        self._evicted = 0.0  # of the next step's StepWork

    def update(self, snapshot: EngineSnapshot) -> None:
        before, self._last = self._last, snapshot
        if before is None or _has_other_steps(before, snapshot):
            self._steps.clear()
        if before is not None and before.model.path != snapshot.model.path:
            self._requests.clear()
        for arrival in snapshot.arrivals:
            self._requests[arrival.request_id] = _Seen(arrival)
        for step in snapshot.steps:
            self._count(step)
        for request in snapshot.requests:
            if request.request_id not in self._requests:
                self._requests[request.request_id] = _from_before(request, snapshot)
        present = {request.request_id for request in snapshot.requests}
        for request_id, seen in list(self._requests.items()):
            if seen.ended is None and request_id not in present:
                seen.ended = seen.tokens[-1] if seen.tokens else snapshot.time
            if seen.ended is not None and seen.ended < snapshot.time - _KEPT_S:
                del self._requests[request_id]
        self._measure(snapshot)

    def _count(self, step: StepRecord) -> None:
        for request_id, _, _, cached, _, accepted, _, logits, _ in step.entries:
            seen = self._requests.get(request_id)
            if seen is None:
                continue
            if not seen.is_admitted:
                seen.is_admitted, seen.num_cached = True, cached
            if logits:
                seen.tokens += [step.end] * (1 + accepted)

    def _measure(self, s: EngineSnapshot) -> None:
        """The newest steps of each size, so that rare ones are not forgotten."""
        found = measured(
            s.steps, s.config.block_size, s.blocks.num_blocks, self._last_step, self._evicted
        )
        self._evicted = found[-1].work.evicted_next if found else self._evicted
        if s.steps:
            self._last_step = s.steps[-1]
        for one in found:
            kind = one.work.tokens.bit_length(), one.work.requests.bit_length()
            self._steps.setdefault(kind, deque(maxlen=_KEPT_STEPS)).append(one)

    # What is replayed -------------------------------------------------------------------------

    @property
    def snapshot(self) -> EngineSnapshot | None:
        """The newest."""
        return self._last

    def samples(self) -> list[Measured]:
        """Measured steps of the settings that decide how long a step takes."""
        return [one for kind in self._steps.values() for one in kind]

    def times(self) -> StepTimes:
        """Raises ConfigError before enough steps are measured."""
        return fitted(self.samples())

    def load(self, since: float = 0.0, seconds: float = SPAN_S) -> Load:
        """Of the last `seconds` before the newest snapshot, from `since` at the earliest. Raises
        ConfigError if that is too little to be replayed."""
        end = 0.0 if self._last is None else self._last.time
        start = max(end - seconds, since)
        seen = [
            one for one in self._requests.values()
            if one.arrival.time < end and (one.ended is None or one.ended > start)
        ]  # fmt: skip
        seen.sort(key=lambda one: one.arrival.time)
        if seen:
            start = max(start, seen[0].arrival.time)
        if len(seen) < LEAST_REQUESTS or end - start < LEAST_S:
            raise ConfigError(
                f"A prediction needs {LEAST_REQUESTS} requests in {duration_text(LEAST_S)}; the "
                f"last {duration_text(max(end - start, 0.0), 2)} have {len(seen)}.",
                "Start a background load.",
            )
        lengths = [len(one.tokens) for one in seen if one.ended is not None and one.tokens]
        limits = [
            one.arrival.max_output_tokens
            for one in seen if one.ended is not None and one.tokens
        ]  # fmt: skip
        reach = sum(n >= limit for n, limit in zip(lengths, limits, strict=True))
        to_limit = not lengths or reach >= _AT_LIMIT * len(lengths)
        sent = [_sent(one, start, lengths, to_limit) for one in seen]
        concurrency, gap_s = _closed_loop(seen, start, end)
        requests = tuple(one for one in sent if one.num_output > one.num_done)
        return Load(start, end, requests, concurrency, gap_s)


def _from_before(request: RequestSnapshot, snapshot: EngineSnapshot) -> _Seen:
    """A request whose arrival was not reported: it came before the first snapshot, or is of an
    older recording. What it found cached is taken as one prefix of all."""
    size = snapshot.config.block_size
    cached, prompt = max(request.num_cached_tokens, 0), request.num_prompt_tokens
    arrival = Arrival(
        request.request_id, request.times.arrival, prompt,
        max(snapshot.model.max_model_len - prompt, 1), size, tuple(range(cached // size)),
    )  # fmt: skip
    tokens = [event.time for event in request.times.tokens for _ in range(event.num_tokens)]
    return _Seen(arrival, tokens, cached, is_admitted=True)


def fitted(samples: Sequence[Measured]) -> StepTimes:
    """Raises ConfigError for too few."""
    if len(samples) < LEAST_STEPS:
        raise ConfigError(
            f"A prediction needs {LEAST_STEPS} measured steps; there are {len(samples)}.",
            "Run requests without speculative decoding first.",
        )
    return StepTimes.fit(samples)


def _has_other_steps(before: EngineSnapshot, after: EngineSnapshot) -> bool:
    """Whether a setting has changed that decides how long a given step takes."""
    if before.config is after.config and before.model is after.model:
        return False
    changed: Any = before.config.differences(after.config)
    return before.model.path != after.model.path or any(name not in REPLAYED for name in changed)


def _sent(seen: _Seen, start: float, lengths: Sequence[int], to_limit: bool) -> Sent:
    limit, known = seen.arrival.max_output_tokens, len(seen.tokens)
    if seen.ended is not None:
        expected = known
    elif to_limit:
        expected = limit
    else:
        longer = [length for length in lengths if length > known]
        expected = min(limit, round(statistics.median(longer)) if longer else 2 * known + 1)
    done = [at for at in seen.tokens if at <= start]
    return Sent(seen.arrival, expected, seen.num_cached, len(done), done[-1] if done else 0.0)


def _closed_loop(seen: Sequence[_Seen], start: float, end: float) -> tuple[int | None, float]:
    """The number in flight and the mean pause of a closed loop; None for another load."""
    changes = sorted(
        [(max(one.arrival.time, start), 1) for one in seen]
        + [(one.ended, -1) for one in seen if one.ended is not None and one.ended < end]
    )
    seconds: dict[int, float] = {}
    at, count = start, 0
    for time, change in [*changes, (end, 0)]:
        seconds[count] = seconds.get(count, 0.0) + time - at
        at, count = time, count + change
    total = end - start
    mean = sum(n * s for n, s in seconds.items()) / total
    variance = sum((n - mean) ** 2 * s for n, s in seconds.items()) / total
    if not mean or variance > STEADY * mean:
        return None, 0.0
    usual = max(seconds, key=lambda n: seconds[n])
    ends = sum(change < 0 for _, change in changes)
    return usual, max(0.0, usual - mean) * total / ends if ends else 0.0
