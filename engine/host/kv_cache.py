"""Allocates the KV cache of a loaded model, as planned or smaller, and captures its CUDA graphs."""

from __future__ import annotations

import dataclasses

import torch

from engine.attention.backends import divided, make_backend
from engine.attention.interface import LayerSpec, PagedBackend
from engine.config import EngineConfig
from engine.errors import OutOfMemoryError, let_go
from engine.hardware.malloc import give_back
from engine.memory.plan import blocks_of, shrunk
from engine.models.loader import Progress
from engine.numerics.kv_dtype import KVWidths
from engine.runner.cuda_graphs import DRAFT_ROWS, capture_for, most_rows, sizes_for
from engine.runner.model_runner import ModelRunner
from engine.snapshot import MemoryPlan
from engine.speculation.draft_loading import Draft, make_proposer
from engine.speculation.proposer import Proposer
from engine.units import bytes_text

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_caches(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    draft: Draft | None,
    plan: MemoryPlan,
) -> tuple[PagedBackend, Proposer | None]:
    """The KV cache of `plan`, and the proposer with that of its draft model; OutOfMemoryError with
    the numbers where they do not fit."""
    try:
        cache = make_cache(config, layers, plan.num_blocks, plan.host_layers)
        return cache, make_proposer(config, draft, plan.num_blocks)
    except (MemoryError, RuntimeError) as error:
        raise OutOfMemoryError(
            f"Out of memory for a KV cache of {bytes_text(plan.cache_bytes_in_all)}: {error}",
            "Lower kv_cache_memory_bytes or max_model_len, or close other programs.",
        ) from error


def make_cache(
    config: EngineConfig, layers: dict[int, LayerSpec], num_blocks: int, host_layers: int
) -> PagedBackend:
    dtype = DTYPES[config.dtype]
    return make_backend(config, layers, num_blocks, dtype, host_layers=host_layers)


def caches_that_fit(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    draft: Draft | None,
    plan: MemoryPlan,
) -> tuple[PagedBackend, Proposer | None, MemoryPlan]:
    """`build_caches`, and the plan that was followed. If other programs have taken memory since it
    was planned, and the user did not set a size, the cache shrinks, down to one request of the
    whole context, before this fails."""
    assert config.max_model_len is not None, "resolved before"
    least = blocks_of(config.max_model_len, config)
    while True:
        try:
            return *build_caches(config, layers, draft, plan), plan
        except OutOfMemoryError as error:
            smaller = shrunk(plan, least)
            if smaller is None or config.kv_cache_memory_bytes is not None:
                raise
            let_go(error)
        plan = smaller
        give_back()


def capture_steps(
    runner: ModelRunner,
    proposer: Proposer | None,
    config: EngineConfig,
    plan: MemoryPlan,
    progress: Progress,
) -> None:
    """Capture decode-only steps, and those of the draft model, if the settings allow it: see
    `ModelRunner.capture`."""
    if config.enforce_eager:
        return
    assert config.max_model_len is not None, "resolved before"
    if capture_for(torch.device(config.device)) is not None:
        progress("Capturing CUDA graphs", 0, 0)
    draft = None if proposer is None else proposer.runner
    if draft is not None:
        draft.release_graphs()  # both models' old ones go before there are new ones
    longest = min(plan.num_blocks, -(-config.max_model_len // config.block_size))
    taps = None if proposer is None else proposer.taps
    of_drafts = 0 if proposer is None else longest
    runner.capture(sizes_for(most_rows(config)), config.block_size, of_drafts, taps)
    if runner.recordings is not None and taps is None:
        progress("Recording prompts", 0, 0)
        runner.recordings.prepare(config.block_size, config.max_model_len)
    if draft is not None:
        draft.capture(sizes_for(DRAFT_ROWS * config.max_num_seqs), config.block_size, longest)


def with_layers(plan: MemoryPlan, layers: dict[int, LayerSpec], config: EngineConfig) -> MemoryPlan:
    """The plan with the measured block size of the loaded model: the one predicted from its config
    may differ for an unknown architecture."""

    def per_block(part: dict[int, LayerSpec]) -> int:
        widths = KVWidths.sum(layer.widths for layer in part.values())
        return config.block_size * widths.bytes_per_token(config.kv_dtype, itemsize)

    itemsize = DTYPES[config.dtype].itemsize
    first, rest = divided(layers, plan.host_layers)
    host, own = per_block(first) if first else 0, per_block(rest) + plan.draft_bytes_per_block
    if (own, host) == (plan.bytes_per_block, plan.host_bytes_per_block):
        return plan
    blocks = max(1, plan.cache_bytes_in_all // (own + host))
    plan = dataclasses.replace(plan, bytes_per_block=own, host_bytes_per_block=host)
    return plan.with_blocks(blocks)
