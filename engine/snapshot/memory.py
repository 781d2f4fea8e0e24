"""Memory in bytes: planned, in use, and as reported by the GPU driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan from before loading. `limit`: bytes that the engine may use in all.
    `key_dtype`, `value_dtype`: storage dtypes of the model's keys and values.

    With CPU offload of the first `host_layers`, all of this is GPU memory, and `host_` fields are
    RAM: each block has a part in both. `undivided_model_len`: a context length at which all layers
    would fit on the GPU; 0 if none was found or looked for.
    """

    total: int
    free: int
    reserve: int
    limit: int
    weights: int
    activations: int
    kv_cache: int
    bytes_per_block: int
    num_blocks: int
    draft_weights: int = 0  # part of weights
    draft_bytes_per_block: int = 0  # part of bytes_per_block
    key_dtype: str = ""
    value_dtype: str = ""
    host_layers: int = 0
    undivided_model_len: int = 0
    host_free: int = 0
    host_limit: int = 0
    host_weights: int = 0
    host_activations: int = 0
    host_kv_cache: int = 0
    host_bytes_per_block: int = 0

    def with_blocks(self, num_blocks: int) -> MemoryPlan:
        """With a cache of another size."""
        return replace(
            self,
            num_blocks=num_blocks,
            kv_cache=num_blocks * self.bytes_per_block,
            host_kv_cache=num_blocks * self.host_bytes_per_block,
        )

    @property
    def block_bytes_in_all(self) -> int:
        """Of a block's parts on both devices."""
        return self.bytes_per_block + self.host_bytes_per_block

    @property
    def cache_bytes_in_all(self) -> int:
        return self.kv_cache + self.host_kv_cache

    @property
    def host_predicted(self) -> int:
        return self.host_weights + self.host_activations + self.host_kv_cache

    @property
    def predicted(self) -> int:
        return self.weights + self.activations + self.kv_cache


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Measured memory. kv_used and kv_cached are parts of kv_cache; `other` is the rest of the
    process (less weights and `kv_resident`), including the window. With CPU offload all of this is
    GPU memory, and `host_` fields are RAM."""

    plan: MemoryPlan
    weights: int
    kv_cache: int
    kv_used: int
    kv_cached: int
    other: int
    process: int
    free: int
    total: int
    wasted: int = 0
    host_weights: int = 0
    host_kv_cache: int = 0

    @property
    def kv_resident(self) -> int:
        """The part of kv_cache that takes memory: on the CPU pages that were used. All of it where
        the system does not report the process."""
        if not self.process:
            return self.kv_cache
        return max(0, min(self.kv_cache, self.process - self.weights - self.other))


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that uses GPU memory, in bytes."""

    name: str
    pid: int
    used: int


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU's figures from the driver. Memory in bytes: `own` is this process's, `processes` are
    the others, the largest first. Utilizations: fraction of the time in which any kernel ran, or
    memory was read or written. None: not reported. part_of: UUID of the GPU that contains this MIG
    instance; "" for a whole GPU."""

    name: str
    total: int
    used: int
    own: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    uuid: str = ""
    utilization: float | None = None
    memory_utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    part_of: str = ""

    @property
    def others(self) -> int:
        """What other programs hold, and the driver itself."""
        return max(0, self.used - (self.own or 0))


def undivided(gpus: Sequence[GpuFigures]) -> tuple[GpuFigures, ...]:
    """The memory of a GPU that is divided is that of its parts."""
    divided = {gpu.part_of for gpu in gpus if gpu.part_of}
    return tuple(gpu for gpu in gpus if gpu.uuid not in divided)


BLOCK_FREE = -1
BLOCK_CACHED = -2


@dataclass(frozen=True)
class BlockSnapshot:
    """State of every physical KV block, indexed by block id.

    owner[b]: index into `owners` (one of them, if shared), BLOCK_FREE, or BLOCK_CACHED (a published
    prefix without references: evictable). ref_count[b]: requests that use it. fill[b]: tokens in
    it, 0 to block_size. hashed[b]: published in the prefix cache. tables: the blocks of each of
    `owners`, in token order. Counts are made once: several views show them.
    """

    block_size: int
    owners: tuple[str, ...]
    owner: NDArray[np.int32]
    ref_count: NDArray[np.int32]
    fill: NDArray[np.int32]
    hashed: NDArray[np.bool_]
    tables: tuple[tuple[int, ...], ...] = ()

    @property
    def num_blocks(self) -> int:
        return len(self.owner)

    @cached_property
    def num_free(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_FREE))

    @cached_property
    def num_cached(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_CACHED))

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @cached_property
    def num_reserved(self) -> int:
        """Of the used blocks those without a token yet: of contiguous allocation nearly all. In RAM
        most of them take no memory before they are written."""
        return int(np.count_nonzero((self.owner >= 0) & (self.fill == 0)))

    @cached_property
    def num_wasted_tokens(self) -> int:
        """Unused token slots in referenced blocks."""
        return int((self.block_size - self.fill[self.owner >= 0]).sum())


@dataclass(frozen=True, slots=True)
class BlockDetails:
    """The content of one block. owners: the requests that use it. token_ids and text: the tokens of
    its keys and values. block_hash and parent_hash: hexadecimal, "" if it is not published, or the
    first of its chain. published: when."""

    block: int
    owners: tuple[str, ...]
    token_ids: tuple[int, ...]
    text: str
    block_hash: str = ""
    parent_hash: str = ""
    published: float | None = None
