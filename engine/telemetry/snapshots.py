"""Snapshots: the state of scheduler, block pool and memory as immutable records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.hardware.devices import CPU, gpu_of
from engine.hardware.machine import free_ram, gpu_memory_by_torch, process_memory
from engine.hardware.nvml import GpuWatch, figures_of
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockDetails,
    BlockSnapshot,
    EngineSnapshot,
    GpuFigures,
    MemorySnapshot,
    SpeculationSnapshot,
    ThreadFigures,
)
from engine.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from engine.host.assembly import Assembly

MEMORY_INTERVAL_S = 0.5
_SHARE = 0.01  # of the time, at most, for reading memory: a cache of 3 GiB takes 0.8 ms


class MemoryReading(NamedTuple):
    """Bytes of this process on the device, free bytes, and bytes in all. cache: of the KV cache in
    RAM; None where that is not known, or it is not there."""

    process: int = 0
    free: int = 0
    total: int = 0
    cache: int | None = None


class MemoryMeter:
    """Memory of the process and the machine, read at most twice a second: reading the system and
    its cgroups takes as long as the rest of a snapshot. For a GPU it returns the latest figures of
    a polling thread, which `close` ends."""

    def __init__(self) -> None:
        self._next_at = -math.inf
        self._figures = MemoryReading()
        self._watch: GpuWatch | None = None

    def read(self, now: float, assembly: Assembly) -> MemoryReading:
        if now >= self._next_at:
            began, device = time.perf_counter(), assembly.config.device
            if device == CPU:
                cache = assembly.resident_cache
                self._figures = MemoryReading(process_memory(), *free_ram(), cache)
            else:
                self._figures = MemoryReading(*self._on_gpu(device))
            took = time.perf_counter() - began
            self._next_at = now + max(MEMORY_INTERVAL_S, took / _SHARE)
        return self._figures

    @property
    def gpus(self) -> tuple[GpuFigures, ...]:
        """Of every GPU of the machine; () while the engine computes on the CPU."""
        return () if self._watch is None else self._watch.latest

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _on_gpu(self, device: str) -> tuple[int, int, int]:
        if self._watch is None:
            self._watch = GpuWatch()
            self._watch.start()
        gpu, known = gpu_of(device), self._watch.latest
        told = figures_of(gpu.uuid, gpu.total_memory, known)
        if told is None:
            return gpu_memory_by_torch(device)
        own = told.own or gpu_memory_by_torch(device)[0]  # in a container it is not reported, or 0
        return own, told.total - told.used, told.total


def take_snapshot(
    assembly: Assembly,
    scheduler: Scheduler,
    recorder: Recorder,
    meter: MemoryMeter,
    speculation: SpeculationSnapshot | None,
    threads: ThreadFigures | None,
    now: float,
    settings_since: float,
) -> EngineSnapshot:
    """The engine now, with the steps and samples that `recorder` gathered since the last call."""
    blocks = block_snapshot(scheduler.pool, scheduler.running)
    return EngineSnapshot(
        time=now,
        step_index=recorder.num_steps,
        config=assembly.config,
        model=assembly.info,
        requests=tuple(request.snapshot() for request in scheduler.requests),
        blocks=blocks,
        memory=memory_snapshot(assembly, blocks, meter.read(now, assembly)),
        counters=recorder.counters(scheduler, scheduler.pool.num_evictions),
        **recorder.drain()._asdict(),
        speculation=speculation,
        gpus=meter.gpus,
        threads=threads,
        settings_since=settings_since,
    )


def block_snapshot(pool: BlockPool, running: list[Request]) -> BlockSnapshot:
    ref_count = np.array(pool.ref_count, dtype=np.int32)  # from buffers: a plain copy
    hashed = np.array(pool.is_published, dtype=np.bool_)
    owner = np.where(hashed, BLOCK_CACHED, BLOCK_FREE).astype(np.int32)
    fill = np.where(hashed, pool.block_size, 0).astype(np.int32)
    for index, request in enumerate(running):
        table = np.array(request.block_table, dtype=np.int64)
        starts = np.arange(len(table)) * pool.block_size
        owner[table] = index
        fill[table] = np.clip(request.num_computed_tokens - starts, 0, pool.block_size)
    return BlockSnapshot(
        block_size=pool.block_size,
        owners=tuple(request.request_id for request in running),
        owner=owner,
        ref_count=ref_count,
        fill=fill,
        hashed=hashed,
        tables=tuple(tuple(request.block_table) for request in running),
    )


def inspect_block(
    scheduler: Scheduler, decode: Callable[[Sequence[int]], str], block: int
) -> BlockDetails | None:
    """Content and owners of a block; None if the cache has no such block."""
    pool = scheduler.pool
    if not 0 <= block < pool.num_blocks:
        return None
    holders = [r for r in scheduler.running if block in r.block_table]
    prefix = pool.prefix(block)
    token_ids: Sequence[int] = ()
    if prefix is not None:
        token_ids = prefix.token_ids
    elif holders:
        request = holders[0]
        start = request.block_table.index(block) * pool.block_size
        end = min(start + pool.block_size, request.num_computed_tokens)
        token_ids = request.token_ids[start:end]
    name = pool.block_hash[block]
    has_parent = prefix is not None and prefix.parent != scheduler.tables.root
    return BlockDetails(
        block=block,
        owners=tuple(request.request_id for request in holders),
        token_ids=tuple(token_ids),
        text=decode(token_ids),
        block_hash="" if name is None else name.hex(),
        parent_hash=prefix.parent.hex() if prefix is not None and has_parent else "",
        published=None if prefix is None else prefix.time,
    )


def memory_snapshot(
    assembly: Assembly, blocks: BlockSnapshot, figures: MemoryReading
) -> MemorySnapshot:
    plan = assembly.plan
    used, cached = blocks.num_used * plan.bytes_per_block, blocks.num_cached * plan.bytes_per_block
    held = assembly.held
    bytes_per_token = plan.bytes_per_block // blocks.block_size
    resident = held.cache  # a GPU gives the whole cache at once
    if assembly.config.device == CPU:
        written = used - blocks.num_reserved * plan.bytes_per_block
        resident = min(resident, written + cached if figures.cache is None else figures.cache)
    return MemorySnapshot(
        plan=plan,
        weights=held.weights,
        kv_cache=held.cache,
        kv_used=used,
        kv_cached=cached,
        other=max(0, figures.process - held.weights - resident),
        process=figures.process,
        free=figures.free,
        total=figures.total,
        wasted=blocks.num_wasted_tokens * bytes_per_token,
        host_weights=held.host_weights,
        host_kv_cache=held.host_cache,
    )
