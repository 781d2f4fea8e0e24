"""Engine figures during a run: cache usage, waste, concurrency, bytes read by decoding."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.snapshot import Counters, EngineSnapshot, StepRecord

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of the engine during one run.

    peak_kv_usage: of all blocks, those in use at the fullest moment. waste: per look at the cache,
    token places that hold no token, of those in the blocks in use. decode_*: of the steps in which
    every request decoded: how many, their seconds, tokens, and the tokens of context whose KV they
    read. draft_rounds: how often drafts of a request were verified; drafted, accepted: tokens.
    """

    steps: tuple[StepRecord, ...]
    peak_kv_usage: float
    waste: tuple[float, ...]
    max_concurrent_requests: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    num_decode_steps: int
    decode_s: float
    decode_context_tokens: int
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class EngineMonitor:
    """Call `after_step` after each step, `ended` for each request and `finish` at the end.

    A snapshot copies the state of every block, which takes a while with a large cache: so many
    are taken that at most `cost` of the time goes into them.
    """

    def __init__(self, engine: LLMEngine, cost: float) -> None:
        self._engine = engine
        self._cost = cost
        self._before = engine.snapshot().counters
        self._steps: list[StepRecord] = []
        self._ended: dict[str, int] = {}
        self._waste: list[float] = []
        self._next_look = 0.0

    def after_step(self) -> None:
        began = time.perf_counter()
        if began >= self._next_look:
            self._look(self._engine.snapshot())
            now = time.perf_counter()
            self._next_look = now + (now - began) / self._cost

    def ended(self, request_id: str, step_index: int) -> None:
        """The request gave its blocks back after this step."""
        self._ended.setdefault(request_id, step_index)

    def finish(self) -> Observed:
        snapshot = self._engine.snapshot()
        self._look(snapshot)
        after, before = snapshot.counters, self._before
        totals = _replay(self._steps, self._ended)
        return Observed(
            steps=tuple(self._steps),
            peak_kv_usage=max((step.kv_usage or 0.0 for step in self._steps), default=0.0),
            waste=tuple(self._waste),
            max_concurrent_requests=totals.max_concurrent_requests,
            prefix_queries=_grown("prefix_queries", before, after),
            prefix_hits=_grown("prefix_hits", before, after),
            preemptions=_grown("preemptions", before, after),
            num_decode_steps=totals.num_decode_steps,
            decode_s=totals.decode_s,
            decode_context_tokens=totals.decode_context_tokens,
            draft_rounds=sum(e.num_draft > 0 for step in self._steps for e in step.entries),
            drafted=sum(e.num_draft for step in self._steps for e in step.entries),
            accepted=sum(e.num_accepted for step in self._steps for e in step.entries),
        )

    def _look(self, snapshot: EngineSnapshot) -> None:
        self._steps += snapshot.steps
        blocks = snapshot.blocks
        if blocks.num_used:
            self._waste.append(blocks.num_wasted_tokens / (blocks.num_used * blocks.block_size))


def _grown(name: str, before: Counters, after: Counters) -> int:
    return int(getattr(after, name) - getattr(before, name))


@dataclass(slots=True)
class _Totals:
    max_concurrent_requests: int = 0
    num_decode_steps: int = 0
    decode_s: float = 0.0
    decode_context_tokens: int = 0


def _replay(steps: list[StepRecord], ended: dict[str, int]) -> _Totals:
    """Walk through the steps again with each request's length; `ended` has the step after which
    a request was gone."""
    totals = _Totals()
    context: dict[str, int] = {}
    for step in steps:
        for request_id in step.preempted:
            context.pop(request_id, None)
        for entry in step.entries:
            computed = entry.num_cached_tokens + entry.num_tokens + entry.num_accepted
            context[entry.request_id] = context.get(entry.request_id, 0) + computed
        totals.max_concurrent_requests = max(totals.max_concurrent_requests, len(context))
        if step.entries and all(entry.kind == "decode" for entry in step.entries):
            totals.num_decode_steps += 1
            totals.decode_s += step.duration
            totals.decode_context_tokens += sum(context[e.request_id] for e in step.entries)
        for request_id in [r for r in context if ended.get(r, step.index + 1) <= step.index]:
            del context[request_id]
    return totals
