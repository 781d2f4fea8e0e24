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
from engine.scheduling.prompt_limit import prompt_limit
from engine.snapshot import TokenBudget

LIMIT_S = 0.4
"""Of a step: the ITL of running requests while a prompt is prefilled."""
CHOICES = (64, 128, 256, 512, 1024, LARGEST_BUDGET)
"""Smaller steps read the weights more often than they are worth; larger ones are no faster per
token."""
BUDGET_ON_GPU = 512
"""Tokens; not measured there."""

_MOST_DOUBLED = 0.6
"""Of the limit: after such a step, one of twice the tokens is not tried."""
_TURNS = 3
_ALIKE = 1.2
"""Two turns that differ by more were interrupted by another program."""


def measured_budget(
    config: EngineConfig,
    make_runner: Callable[[int], ModelRunner],
    clock: Callable[[], float] = time.perf_counter,
) -> TokenBudget:
    """The largest of CHOICES whose step of new prompt tokens takes at most LIMIT_S; at least the
    first. make_runner: with a cache of so many blocks."""
    runner = make_runner(blocks_of(_prompts(config, CHOICES[-1])))

    def seconds(tokens: int, expected: float = 0.0) -> float:
        """The shortest of up to _TURNS steps: until one takes at most `expected`, or two agree."""
        batch = pack(_prompts(config, tokens), config.block_size)
        turns: list[float] = []
        while len(turns) < _TURNS and sum(turns) < 4 * LIMIT_S:
            start = clock()
            runner.execute(batch)
            turns.append(clock() - start)
            is_sure = len(turns) > 1 and max(turns) < _ALIKE * min(turns)
            if is_sure or turns[-1] <= expected:
                break
        return min(turns)

    try:
        seconds(CHOICES[0])  # kernels are chosen, memory is taken
        chosen, taken = CHOICES[0], seconds(CHOICES[0])
        for tokens in CHOICES[1:]:
            if taken > _MOST_DOUBLED * LIMIT_S:  # unless this one was interrupted too
                taken = min(taken, seconds(chosen, math.inf))
            if taken > _MOST_DOUBLED * LIMIT_S:
                break
            longer = seconds(tokens, min(LIMIT_S, 2 * _ALIKE * taken))
            if longer > LIMIT_S:
                break
            chosen, taken = tokens, longer
    finally:
        runner.drop_cache()
    return TokenBudget(chosen, taken, LIMIT_S)


def with_largest_step(config: EngineConfig, budget: TokenBudget | None) -> EngineConfig:
    """`config` with the tokens of its largest step as the budget, for the memory plan."""
    limit = prompt_limit(config, budget)
    return config.replace(max_num_batched_tokens=limit) if limit else config


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
