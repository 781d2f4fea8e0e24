"""Measures activation memory on a GPU by running the largest possible step.

On a GPU the cache takes all remaining memory: an estimate that is too small causes an error in
mid-generation, and one that is too large wastes memory that requests could use. (On the CPU the
estimate of `engine.memory.plan` is enough: RAM is allocated page by page, an idle page costs
nothing.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.batch.batch import Span, pack
from engine.config import EngineConfig
from engine.hardware.malloc import give_back
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams

MakeRunner = Callable[[int], ModelRunner]
"""With a cache of so many blocks."""

MARGIN = 1.1
"""For what a step with other lengths splits differently, and for fragments of freed memory."""

_COSTLY = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, presence_penalty=0.1, logprobs=1)


def largest_step(config: EngineConfig) -> list[Span]:
    """As many tokens as a step may have, of as many requests as may share it, each sampled, and so
    are as many more of its tokens as it may have drafts; the requests as long as their share. Their
    blocks are the first ones, in order."""
    assert config.max_model_len is not None
    tokens = config.step_token_limit
    count = min(config.max_num_seqs, tokens)
    spans: list[Span] = []
    used = 0
    for index in range(count):
        length = tokens // count + (index < tokens % count)
        length = min(length, config.max_model_len)
        blocks = -(-length // config.block_size)
        num_rows = min(length, 1 + config.most_drafts)
        spans.append(Span([0] * length, 0, range(used, used + blocks), num_rows))
        used += blocks
    return spans


def blocks_of(spans: list[Span]) -> int:
    return sum(len(span.block_table) for span in spans)


def measure_activations(config: EngineConfig, vocab_size: int, make_runner: MakeRunner) -> int:
    """Bytes at the peak of the largest step on the GPU of `config`, sampling included, with a
    margin, and of the backend's scratch memory. What it is run with is made by `make_runner` and
    freed."""
    device = config.device
    spans = largest_step(config)
    runner = make_runner(blocks_of(spans))
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest(runner, config, spans, Sampler(vocab_size, device))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    scratch = getattr(runner.backend, "workspace_bytes", 0)
    runner.drop()
    give_back()
    return int(MARGIN * max(0, peak)) + scratch


def run_largest(
    runner: ModelRunner, config: EngineConfig, spans: list[Span], sampler: Sampler
) -> None:
    logits = runner.execute(pack(spans, config.block_size))
    rows = []
    for index, span in enumerate(spans):
        first = span.end - span.num_rows + 1
        for row in range(span.num_rows):  # what follows the first sampled token, and those behind
            prompt, drafts = span.token_ids[:first], span.token_ids[first : first + row]
            name = f"profile-{index}"
            rows.append(SamplingRow(name, _COSTLY, index, first + row, prompt, drafts))
    sampler.sample(logits, rows)
    for row_name in {row.request_id for row in rows}:
        sampler.forget(row_name)
