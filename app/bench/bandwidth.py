"""How fast this machine reads memory: the yardstick for decoding, which reads all weights once per
step."""

from __future__ import annotations

import time

from app.bench.report import EngineFacts
from engine.snapshot import EngineSnapshot

SUM_BYTES = 2**30
REPEATS = 5


def read_bandwidth(num_threads: int, num_bytes: int = SUM_BYTES) -> float:
    """Bytes per second of a read-only sum over `num_bytes` of memory with `num_threads` threads:
    the best of five, because whatever else runs on the machine can only slow it down."""
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        data = torch.ones(num_bytes // 4, dtype=torch.float32)
        best = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - began)
        return num_bytes / best
    finally:
        torch.set_num_threads(threads_before)


def engine_facts(snapshot: EngineSnapshot, bandwidth: float | None) -> EngineFacts:
    """What a run's figures need to know; `bandwidth` is that of `read_bandwidth`."""
    memory = snapshot.memory
    return EngineFacts(
        weights_bytes=memory.weights + memory.host_weights,
        kv_cache_bytes=memory.kv_cache + memory.host_kv_cache,
        weights_per_step=weights_read_per_step(snapshot),
        kv_bytes_per_token=kv_bytes_per_token(snapshot),
        read_bandwidth=None if memory.plan.host_layers else bandwidth,  # two memories are read
    )


def weights_read_per_step(snapshot: EngineSnapshot) -> int | None:
    """Bytes of weights that one decode step reads; None for a mixture of experts, where it depends
    on which experts the tokens choose.

    Every weight is read once, but for an input embedding that is not also the output layer: of it
    only the rows of the step's tokens.
    """
    model = snapshot.model
    return None if model.num_experts else model.weights_bytes - model.lookup_bytes


def kv_bytes_per_token(snapshot: EngineSnapshot) -> float:
    """Bytes of K and V of one token in all layers. (A layer with a sliding window reads less of a
    long context than this says.)"""
    return snapshot.memory.plan.block_bytes_in_all / snapshot.blocks.block_size
