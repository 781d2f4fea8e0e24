"""Allocates the KV cache of a loaded model, as planned or smaller, and captures its CUDA graphs."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch

from engine.attention.backends import divided, make_backend
from engine.attention.gpu import GPUAttention
from engine.attention.interface import LayerSpec, PagedBackend
from engine.config import EngineConfig
from engine.errors import OutOfMemoryError, let_go
from engine.hardware.device_map import DeviceMap, stage_starts
from engine.hardware.malloc import give_back
from engine.memory.plan import blocks_of, ranks_beside, shrunk
from engine.models.loader import Progress
from engine.numerics.kv_dtype import KVWidths
from engine.parallel.pipeline import PipelineAttention
from engine.parallel.ranks import Ranks
from engine.parallel.runner import ParallelCache
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
    ranks: Ranks | None,
    draft: Draft | None,
    plan: MemoryPlan,
) -> tuple[PagedBackend, Proposer | None]:
    """The KV cache of `plan`, and the proposer with that of its draft model; OutOfMemoryError with
    the numbers where they do not fit."""
    try:
        cache = make_cache(config, layers, ranks, plan.num_blocks, plan.host_layers)
        return cache, make_proposer(config, draft, plan.num_blocks)
    except (MemoryError, RuntimeError) as error:
        raise OutOfMemoryError(
            f"Out of memory for a KV cache of {bytes_text(plan.cache_bytes_in_all)}: {error}",
            "Lower kv_cache_memory_bytes or max_model_len, or close other programs.",
        ) from error


def make_cache(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    ranks: Ranks | None,
    num_blocks: int,
    host_layers: int,
) -> PagedBackend:
    """layers: of the whole model."""
    dtype = DTYPES[config.dtype]

    def on_device(device: str, own: dict[int, LayerSpec]) -> PagedBackend:
        return make_backend(config.replace(device=device), own, num_blocks, dtype)

    if ranks is not None:
        return ParallelCache(ranks.make_caches(on_device), ranks.team.devices)
    if config.pipeline_parallel_size == 1:
        return make_backend(config, layers, num_blocks, dtype, host_layers=host_layers)
    parts = {name: on_device(name, own) for name, own in _by_device(layers, config).items()}
    return PipelineAttention(cast(dict[str, GPUAttention], parts))


def _by_device(
    layers: dict[int, LayerSpec], config: EngineConfig
) -> dict[str, dict[int, LayerSpec]]:
    """The layers of each GPU, in pipeline order."""
    where = DeviceMap(config.device, starts=stage_starts(config.devices, len(layers)))
    found: dict[str, dict[int, LayerSpec]] = {name: {} for name in where.devices}
    for layer, spec in layers.items():
        found[where.of_layer(layer)][layer] = spec
    return found


def caches_that_fit(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    ranks: Ranks | None,
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
            return *build_caches(config, layers, ranks, draft, plan), plan
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
    if draft is not None:
        draft.capture(sizes_for(DRAFT_ROWS * config.max_num_seqs), config.block_size, longest)


def with_layers(plan: MemoryPlan, layers: dict[int, LayerSpec], config: EngineConfig) -> MemoryPlan:
    """The plan with the measured block size of the loaded model: the one predicted from its config
    may differ for an unknown architecture."""

    def per_block(part: dict[int, LayerSpec]) -> int:
        widths = KVWidths.sum(layer.widths for layer in part.values())
        widths = widths.share(ranks_beside(config))
        return config.block_size * widths.bytes_per_token(config.kv_dtype, itemsize)

    itemsize = DTYPES[config.dtype].itemsize
    if config.pipeline_parallel_size > 1:
        layers = _by_device(layers, config)[config.device]
    first, rest = divided(layers, plan.host_layers)
    host, own = per_block(first) if first else 0, per_block(rest) + plan.draft_bytes_per_block
    if (own, host) == (plan.bytes_per_block, plan.host_bytes_per_block):
        return plan
    blocks = max(1, plan.cache_bytes_in_all // (own + host))
    plan = dataclasses.replace(plan, bytes_per_block=own, host_bytes_per_block=host)
    return plan.with_blocks(blocks)
