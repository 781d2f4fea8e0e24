"""Steps that only decode, computed together.

    arrival    step    step  step  step  step  step  step    step
    prefill   | a P  | a p | a p | a p | a p | a p | a p  | a p end |
                      '----------------- a run ------------------'

Until a request ends, arrives or can be admitted, or blocks run out, every step computes one token
of each running request. The scheduler would plan each of them alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.simulate.step_time import StepWork
from engine.snapshot import FinishReason
from engine.snapshot.steps import PackedEntries

MOST_STEPS = 256
"""Of one run, so that its arrays stay small."""

Ints = NDArray[np.int64]


class DecodeRun(NamedTuple):
    """The next steps of `requests`. context: tokens that each attends over in the first of them,
    [requests]; blocks, used_blocks: KV blocks that a step reads, and that are in use, [num_steps].
    """

    requests: tuple[Request, ...]
    num_steps: int
    block_size: int
    context: Ints
    blocks: Ints
    used_blocks: Ints

    @classmethod
    def of(cls, scheduler: Scheduler) -> DecodeRun | None:
        """The longest one from now on; None if the next step does something else."""
        count = _num_steps(scheduler)
        if not count:
            return None
        pool, requests = scheduler.pool, tuple(scheduler.running)
        size, used = pool.block_size, pool.num_blocks - pool.num_free_blocks
        context = np.array([request.num_tokens for request in requests])
        own = np.array([len(request.block_table) for request in requests])
        blocks = -(-(context + np.arange(count)[:, None]) // size)
        grown = np.maximum(blocks - own, 0).sum(axis=1)
        return cls(requests, count, size, context, blocks.sum(axis=1), used + grown)

    def works(self, evicted: float) -> list[StepWork]:
        """Of each step. evicted: in the first."""
        num = len(self.requests)
        context = int(self.context.sum()) + num * np.arange(self.num_steps)
        distinct = self.used_blocks * self.block_size
        columns = zip(context.tolist(), self.blocks.tolist(), distinct.tolist(), strict=True)
        found = []
        for c, blocks, d in columns:
            found.append(work := StepWork(num, num, num, c, 0, 0, 0, blocks, d, evicted))
            evicted = work.evicted_next
        return found

    def entries(self) -> list[PackedEntries]:
        """Of each step."""
        names = tuple(request.request_id for request in self.requests)
        return [PackedEntries.of_decodes(names, self.context + n) for n in range(self.num_steps)]

    def advance(self, scheduler: Scheduler, count: int, now: float) -> list[Request]:
        """Give every request `count` tokens: as many cycles of plan and commit. Returns the
        requests that end with the last one, at time `now`."""
        tables, publishes = scheduler.tables, scheduler.config.enable_prefix_caching
        for request in self.requests:
            tables.extend(request, request.num_tokens + count - 1)
            request.token_ids += [simulated_token(request)] * count
            request.num_computed_tokens += count
            if publishes:
                tables.publish(request, now)
        ended = [r for r in self.requests if r.num_tokens >= r.max_num_tokens]
        for request in ended:
            scheduler.finish(request, FinishReason.LENGTH, now)
        return ended


def simulated_token(request: Request) -> int:
    """All of its output: unlike all tokens of prompts, and unlike those of other requests."""
    return -1 - request.arrival_index


def _num_steps(scheduler: Scheduler) -> int:
    """Steps up to the first in which a request ends."""
    running, config = scheduler.running, scheduler.config
    budget = config.step_token_limit - len(running)
    if not running or budget < 0 or len(running) > config.max_num_seqs:
        return 0
    count = MOST_STEPS
    for request in running:
        num_tokens, computed = len(request.token_ids), request.num_computed_tokens
        if computed != num_tokens - 1 or computed < len(request.prompt_token_ids):
            return 0  # a prompt, or a part of one
        if count > (left := request.max_num_tokens - num_tokens):
            count = left
    if scheduler.could_admit(budget):
        return 0
    size, free = scheduler.pool.block_size, scheduler.pool.num_free_blocks
    lengths = [(len(r.token_ids) - 1, len(r.block_table)) for r in running]
    while count and sum(max(0, -(-(n + count) // size) - own) for n, own in lengths) > free:
        count //= 2
    return count
