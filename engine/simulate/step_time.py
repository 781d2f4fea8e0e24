"""`StepTimes`: how long a step takes on this machine, fitted to measured steps. No torch.

    seconds(step) = f(tokens) + requests, logits, context of decodes, prompt chunks, their context,
                    pairs of a prompt token and one that it attends to, KV blocks, distinct KV:
                    each times a rate
                  + a constant, if there are prompt chunks
                  + a rate times what earlier prompts have evicted, if there are none

f is linear between powers of two, so that it follows a kernel from memory-bound to compute-bound.
Steps that only decode are replayed (`engine.runner`), those with prompt chunks launched one
operation after the other, which takes longer. Prompts evict weights from the CPU's caches: the
first five decode steps after one took 51, 38, 24, 13 and 7 % longer than later ones (starter model
in float32, 8 requests, prompts of 150 tokens).
Rates and slopes are at least 0. The fit minimizes the sum of absolute relative errors (iteratively
reweighted least squares): steps during which other programs had the core count no more than others.
A step's time begins at the end of the step before it, if requests waited for it: what the engine's
caller does between steps delays them as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.simulate.least_squares import non_negative
from engine.snapshot import StepEntry, StepRecord
from engine.telemetry.step_cost import pause_between

KNOTS = tuple(1 << power for power in range(13))
"""Tokens of a step between which f is linear."""
LEAST_STEPS = 16
"""Fewer do not make a model."""
LONGEST = 3.0
"""Times the fitted seconds: a longer step was interrupted, and is no example of noise."""
EVICTING = 256
"""Prompt tokens of a step that evict all weights from the CPU's caches."""
KEPT = 0.7
"""Share of the evicted weights that a decode step leaves evicted."""
_ROUNDS = 12
_CLOSE = 0.01  # relative errors below this count as squares
_SMOOTH = 3e-3  # weight of a slope's difference from its neighbour, where steps leave it open
_FEWEST_RATIOS = 8  # of a kind of step

Floats = NDArray[np.float64]


class StepWork(NamedTuple):
    """What a step's time depends on. `context`: tokens that single tokens attend over; chunks:
    requests with several tokens, `chunk_context` and `pairs` theirs; `blocks`: KV blocks read;
    `distinct`: tokens of the KV blocks in use. What requests share is read from memory once, and
    from the CPU's cache by the others. `evicted`: of the weights, by prompts of earlier steps, from
    the CPU's caches; 0 to 1."""

    tokens: int
    requests: int
    logits: int
    context: int
    chunks: int
    chunk_context: int
    pairs: int
    blocks: int
    distinct: int
    evicted: float = 0.0

    @classmethod
    def of(
        cls, entries: Iterable[StepEntry], block_size: int, used_blocks: int, evicted: float = 0.0
    ) -> StepWork:
        tokens = requests = logits = context = chunks = chunk_context = pairs = blocks = 0
        for _, _, own, _, drafts, _, reach, rows, _ in entries:
            new = own + drafts
            tokens += new
            requests += 1
            logits += rows
            blocks += -(-reach // block_size)
            if new == 1:
                context += reach
            else:
                chunks += 1
                chunk_context += reach
                pairs += new * reach - new * (new - 1) // 2
        return cls(
            tokens, requests, logits, context, chunks, chunk_context, pairs, blocks,
            used_blocks * block_size, evicted,
        )  # fmt: skip

    @property
    def evicted_next(self) -> float:
        """Of the step after this one."""
        prompts = self.tokens - (self.requests - self.chunks) if self.chunks else 0
        return max(KEPT * self.evicted, min(1.0, prompts / EVICTING))


class Measured(NamedTuple):
    """A step's work and its seconds."""

    work: StepWork
    seconds: float


def measured(
    steps: Iterable[StepRecord], block_size: int, num_blocks: int,
    before: StepRecord | None = None, evicted: float = 0.0,
) -> list[Measured]:  # fmt: skip
    """Of successive steps with a cache of these blocks. before: the one before them. evicted: of
    the first one's work. Steps with drafts are left out: their time depends on the drafting."""
    found = []
    for step in steps:
        is_next = before is not None and before.index + 1 == step.index
        seconds = step.duration + (pause_between(before, step) if is_next else 0.0)
        before = step
        used = round((step.kv_usage or 0.0) * num_blocks)
        work = StepWork.of(step.entries, block_size, used, evicted)
        evicted = work.evicted_next
        if step.entries and seconds > 0 and not any(entry.num_draft for entry in step.entries):
            found.append(Measured(work, seconds))
    return found


@dataclass(frozen=True)
class StepTimes:
    """Fitted rates, in the order of `_columns`; their covariance; measured over fitted seconds of
    steps that only decode, and of others, in the order in which they were measured; the largest
    step that was measured, in tokens."""

    rates: Floats
    covariance: Floats
    decode_ratios: tuple[float, ...]
    chunk_ratios: tuple[float, ...]
    most_tokens: int

    @classmethod
    def fit(cls, samples: Sequence[Measured]) -> StepTimes:
        """Raises ValueError for fewer than LEAST_STEPS."""
        if len(samples) < LEAST_STEPS:
            raise ValueError(f"{len(samples)} steps are too few for a model of their times")
        columns = _columns([sample.work for sample in samples])
        seconds = np.array([sample.seconds for sample in samples])
        penalty = _penalty(columns, seconds)
        fitted = seconds
        for _ in range(_ROUNDS):
            relative, wanted = columns / fitted[:, None], seconds / fitted
            weights = 1.0 / np.maximum(np.abs(wanted - 1.0), _CLOSE)
            normal = relative.T @ (weights[:, None] * relative)
            # on average per step, so that the penalty holds for few steps and for many
            scale = float(np.sum(weights))
            rates = non_negative(normal + scale * penalty, relative.T @ (weights * wanted))
            fitted = np.maximum(columns @ rates, 1e-9)
        covariance = _covariance(normal, scale * penalty, rates)
        ratios = seconds / fitted
        spread = float(np.median(np.abs(ratios - 1.0))) * 1.4826  # a normal distribution's sigma
        covariance = covariance * spread**2 * float(np.mean(weights))
        is_usual = ratios < LONGEST
        is_decode = np.array([sample.work.chunks == 0 for sample in samples])
        # Python's floats: numpy's would reach every time of a replay, and slow all of it down
        whole = tuple(ratios[is_usual].tolist())
        kinds = (tuple(ratios[is_usual & kind].tolist()) for kind in (is_decode, ~is_decode))
        decode, chunk = (kind if len(kind) >= _FEWEST_RATIOS else whole for kind in kinds)
        most = max(sample.work.tokens for sample in samples)
        return cls(rates, covariance, decode, chunk, most)

    @classmethod
    def exact(cls, *, step: float = 0.0, token: float = 0.0, **rates: float) -> StepTimes:
        """Without noise, from known rates: seconds per step, per token, per other field of
        StepWork, and per `launch` of a step with prompt chunks."""
        others = [rates.pop(name, 0.0) for name in (*StepWork._fields[1:], "launch")]
        if rates:
            raise ValueError(f"no part of a step: {', '.join(rates)}")
        slopes = [step, token, *(token for _ in KNOTS)]
        values = np.array([*slopes, *others])
        return cls(values, np.zeros((len(values), len(values))), (1.0,), (1.0,), KNOTS[-1])

    def seconds(self, work: StepWork) -> float:
        """Without noise."""
        tokens = work.tokens
        by_tokens = self._by_tokens
        if tokens < len(by_tokens):
            total = by_tokens[tokens]
        else:
            total = by_tokens[-1] + (tokens - len(by_tokens) + 1) * self._last_slope
        _, requests, logits, context, chunks, chunk_context, pairs, blocks, distinct, evicted = work
        a, b, c, d, e, f, g, h, reload, launch = self._other_rates
        total += launch if chunks else reload * evicted
        return (
            total + a * requests + b * logits + c * context + d * chunks + e * chunk_context
            + f * pairs + g * blocks + h * distinct
        )  # fmt: skip

    def uncertainty(self, works: Sequence[StepWork]) -> float:
        """Relative standard error of the time of all these steps together, from the fit alone."""
        if not works:
            return 0.0
        sums = _columns(works).sum(axis=0)
        total = float(sums @ self.rates)
        return float(np.sqrt(max(0.0, sums @ self.covariance @ sums))) / total if total else 0.0

    @cached_property
    def spread(self) -> float:
        """Median relative distance of a measured step from the fit."""
        ratios = np.array(self.decode_ratios + self.chunk_ratios)
        return float(np.median(np.abs(ratios - 1.0)))

    @cached_property
    def _by_tokens(self) -> list[float]:
        """Seconds of f for each number of tokens."""
        counts = np.arange(KNOTS[-1] + 1, dtype=float)
        seconds: list[float] = (_ramps(counts) @ self.rates[:_NUM_RAMPS]).tolist()
        return seconds

    @cached_property
    def _last_slope(self) -> float:
        return float(self.rates[_NUM_RAMPS - 1])

    @cached_property
    def _other_rates(self) -> list[float]:
        rates: list[float] = self.rates[_NUM_RAMPS:].tolist()
        return rates


class Noise:
    """Noisy seconds of successive steps: the measured deviations from the fit, in the order in
    which they were measured, from the beginning again after the last one."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._num_decodes = self._num_chunks = 0

    def seconds(self, work: StepWork) -> float:
        times = self._times
        if work.chunks:
            ratios, place = times.chunk_ratios, self._num_chunks
            self._num_chunks += 1
        else:
            ratios, place = times.decode_ratios, self._num_decodes
            self._num_decodes += 1
        return times.seconds(work) * ratios[place % len(ratios)]

    def ahead(self, decodes: Sequence[StepWork]) -> list[float]:
        """Seconds of the next steps, which only decode. `skip` then goes on after some of them."""
        ratios = self._times.decode_ratios
        places = range(self._num_decodes, self._num_decodes + len(decodes))
        return [
            self._times.seconds(work) * ratios[place % len(ratios)]
            for work, place in zip(decodes, places, strict=True)
        ]

    def skip(self, num_decodes: int) -> None:
        self._num_decodes += num_decodes


_NUM_RAMPS = len(KNOTS) + 2


def _ramps(tokens: Floats) -> Floats:
    """[n, 1 + ramps]: 1, then the tokens that lie between each two knots."""
    edges = np.array([0.0, *KNOTS, np.inf])
    inside = np.clip(tokens[:, None], edges[:-1], edges[1:]) - edges[:-1]
    return np.concatenate([np.ones((len(tokens), 1)), inside], axis=1)


def _columns(works: Sequence[StepWork]) -> Floats:
    numbers = np.array(works, dtype=float).reshape(-1, len(StepWork._fields))
    has_chunks = numbers[:, StepWork._fields.index("chunks")] > 0
    numbers[has_chunks, StepWork._fields.index("evicted")] = 0.0
    return np.column_stack([_ramps(numbers[:, 0]), numbers[:, 1:], has_chunks])


def _penalty(columns: Floats, seconds: Floats) -> Floats:
    """Of rates that the steps leave open: neighbouring slopes alike, all others small. In relative
    errors per step."""
    slope = float(np.median(seconds / np.maximum(columns[:, 1:_NUM_RAMPS].sum(axis=1), 1.0)))
    size = columns.shape[1]
    found = np.zeros((size, size))
    for place in range(1, _NUM_RAMPS - 1):
        difference = np.zeros(size)
        difference[place : place + 2] = (1.0, -1.0)
        found += np.outer(difference, difference) * (_SMOOTH / slope) ** 2
    share = np.mean(columns / seconds[:, None], axis=0)  # relative time per unit of the rate
    found[np.diag_indices(size)] += (1e-4 * np.maximum(share, 1e-12)) ** 2
    return found


def _covariance(normal: Floats, penalty: Floats, rates: Floats) -> Floats:
    """Inverse of the normal equations of the rates above 0."""
    free = np.flatnonzero(rates > 0)
    found = np.zeros_like(normal)
    if len(free):
        found[np.ix_(free, free)] = np.linalg.pinv((normal + penalty)[np.ix_(free, free)])
    return found
