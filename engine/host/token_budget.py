"""Chooses max_num_batched_tokens on a CPU, where the length of a step differs a thousandfold: a
step of 512 prompt tokens takes 5 ms with a model of 10 million parameters, 4 s with one of 8
billion on two cores. All running requests wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from engine.batch.batch import Span, pack
from engine.config import LARGEST_BUDGET, EngineConfig
from engine.memory.profiling import blocks_of
from engine.runner.model_runner import ModelRunner
from engine.snapshot import TokenBudget

LIMIT_S = 0.25
"""Of a step: the ITL of running requests while a prompt is prefilled."""
CHOICES = (64, 128, 256, 512, 1024, LARGEST_BUDGET)
"""Smaller steps read the weights more often than they are worth; larger ones are no faster per
token."""

BUDGET_ON_GPU = 512
"""Tokens; not measured there."""


def measured_budget(
    config: EngineConfig,
    make_runner: Callable[[int], ModelRunner],
    clock: Callable[[], float] = time.perf_counter,
) -> TokenBudget:
    """The largest of CHOICES whose step of new prompt tokens takes at most LIMIT_S; at least the
    first. make_runner: with a cache of so many blocks."""
    runner = make_runner(blocks_of(_prompts(config, CHOICES[-1])))

    def seconds(tokens: int) -> float:
        """Of a second step where the first is too long: another program may have had the cores."""
        batch = pack(_prompts(config, tokens), config.block_size)
        shortest = math.inf
        for _ in range(2):
            start = clock()
            runner.execute(batch)
            shortest = min(shortest, clock() - start)
            if shortest <= LIMIT_S:
                break
        return shortest

    try:
        seconds(CHOICES[0])  # kernels are chosen, memory is taken
        taken = [seconds(CHOICES[0])]
        while taken[-1] <= LIMIT_S and len(taken) < len(CHOICES):
            taken.append(seconds(CHOICES[len(taken)]))
    finally:
        runner.drop_cache()
    fitting = max(1, sum(each <= LIMIT_S for each in taken))
    larger = taken[fitting] if fitting < len(taken) else None
    return TokenBudget(CHOICES[fitting - 1], taken[fitting - 1], LIMIT_S, larger)


def _prompts(config: EngineConfig, tokens: int) -> list[Span]:
    """One new prompt; several where the context is shorter. Their blocks are the first ones."""
    assert config.max_model_len is not None, "resolved"
    spans: list[Span] = []
    used = 0
    while tokens > 0:
        length = min(tokens, config.max_model_len)
        blocks = -(-length // config.block_size)
        spans.append(Span([0] * length, 0, range(used, used + blocks), 1))
        used, tokens = used + blocks, tokens - length
    return spans
