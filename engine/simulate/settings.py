"""Settings at which a load can be replayed, and the cache that belongs to them. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.snapshot import MemoryPlan

REPLAYED = (
    "max_num_seqs", "max_num_batched_tokens", "batching", "enable_prefix_caching",
    "enable_chunked_prefill", "watermark", "block_size", "kv_cache_memory_bytes", "kv_allocation",
)  # fmt: skip
"""Settings that change which steps are computed, and not how long a given step takes."""


def check_replayed(changes: Sequence[str]) -> None:
    """Raise ConfigError for a setting whose effect the scheduler alone does not show."""
    unknown = [name for name in changes if name not in REPLAYED]
    if unknown:
        raise ConfigError(
            f"The effect of {', '.join(unknown)} cannot be predicted.",
            f"Settings that can be: {', '.join(REPLAYED)}.",
        )


def plan_of(plan: MemoryPlan, before: EngineConfig, wanted: EngineConfig) -> MemoryPlan:
    """The cache of `wanted`: of the size that it sets, else with as many bytes as that of
    `plan`, which belongs to `before`. Raises ConfigError for less than a block."""
    size = wanted.block_size / before.block_size
    resized = dataclasses.replace(
        plan,
        bytes_per_block=round(plan.bytes_per_block * size),
        host_bytes_per_block=round(plan.host_bytes_per_block * size),
        draft_bytes_per_block=round(plan.draft_bytes_per_block * size),
    )
    in_all = wanted.kv_cache_memory_bytes or plan.cache_bytes_in_all
    num_blocks = in_all // resized.block_bytes_in_all
    if num_blocks < 1:
        raise ConfigError(
            f"A KV cache of {in_all:,} bytes is smaller than a block.",
            "Choose a larger kv_cache_memory_bytes, or a smaller block_size.",
        )
    return resized.with_blocks(num_blocks)
