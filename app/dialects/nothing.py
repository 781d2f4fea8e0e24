"""The parts of a snapshot that no server of another make tells: empty, and marked as missing."""

from __future__ import annotations

import numpy as np

from engine.snapshot import BlockSnapshot, MemoryPlan, MemorySnapshot, ModelInfo

NO_PLAN = MemoryPlan(
    total=0, free=0, reserve=0, limit=0, weights=0, activations=0, kv_cache=0, bytes_per_block=0,
    num_blocks=0,
)  # fmt: skip

NO_MEMORY = MemorySnapshot(
    NO_PLAN, weights=0, kv_cache=0, kv_used=0, kv_cached=0, other=0, process=0, free=0, total=0
)

NO_BLOCKS = BlockSnapshot(
    16, (), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32),
    np.empty(0, np.bool_),
)  # fmt: skip


def model_named(name: str, server: str, max_model_len: int | None) -> ModelInfo:
    """What is known of a model elsewhere: its name, what serves it, and at best its context
    (else 0)."""
    return ModelInfo(
        name=name, path=name, architecture="", dtype="", device=server, num_parameters=0,
        weights_bytes=0, num_layers=0, hidden_size=0, num_heads=0, num_kv_heads=0, head_dim=0,
        vocab_size=0, max_model_len=max_model_len or 0, is_dummy=False, has_chat_template=True,
    )  # fmt: skip
