"""Memory as it was planned and as it was measured, by category. No Qt.

    this process                                                 the rest of the machine
    |<----------------------------------------------------->|<--------------------->|<---->|
    | weights | KV touched | activations | program, texts      | other programs        | free |

A page of the KV cache is the process' own only once something was written to it; so what was never
touched is planned and allocated, but not resident. A GPU gives the whole cache at once. Of a model
that is divided all of this is of the GPU; its part in RAM is separate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.numerics.kv_dtype import kv_words
from engine.snapshot import BLOCK_FREE, EngineSnapshot, MemoryPlan, MemorySnapshot


@dataclass(frozen=True, slots=True)
class Compared:
    """A category of the plan, in bytes; `measured` is None where nothing was seen of it yet."""

    predicted: int
    measured: int | None

    @property
    def error(self) -> float | None:
        """(measured - predicted) / predicted."""
        if self.measured is None or not self.predicted:
            return None
        return (self.measured - self.predicted) / self.predicted


@dataclass(frozen=True, slots=True)
class InRam:
    """In bytes, of the first `layers` of `num_layers`, which the CPU computes beside a GPU.
    `activations` are planned; nobody measures them."""

    layers: int
    num_layers: int
    weights: Compared
    kv_cache: Compared
    activations: int
    kv_used: int
    kv_cached: int
    free_at_load: int
    limit: int

    @property
    def measured(self) -> int:
        return (self.weights.measured or 0) + (self.kv_cache.measured or 0)


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Everything in bytes. `untouched`: of the KV cache, never written to so far. `program`: this
    process less what the plan knows of. `others`: what other programs hold. `kv_words`: what the
    cache stores keys and values in. `place`: whose memory it is. `device`: the GPU, where it is
    one. num_gpus: on which ranks or stages are; all of this is then of the first. `in_ram`: the
    rest of a model that is divided."""

    weights: Compared
    kv_cache: Compared
    activations: Compared
    kv_used: int
    kv_cached: int
    untouched: int
    wasted: int
    program: int
    others: int
    free: int
    total: int
    free_at_load: int
    limit: int
    kv_words: str = ""
    place: str = "Machine"
    device: str = ""
    in_ram: InRam | None = None
    num_gpus: int = 0

    @property
    def sum(self) -> Compared:
        parts = (self.weights, self.kv_cache, self.activations)
        measured = [part.measured for part in parts]
        known = [size for size in measured if size is not None]
        whole = sum(known) if len(known) == len(measured) else None
        return Compared(sum(part.predicted for part in parts), whole)

    @property
    def engine(self) -> int:
        """Resident for the model: weights, touched KV cache, activations."""
        kv = (self.kv_cache.measured or 0) - self.untouched
        return (self.weights.measured or 0) + kv + (self.activations.measured or 0)


class MemoryAccount:
    """Feed it with every snapshot.

    Activations are the growth of the process while steps were computed, less the growth of the
    touched cache; the largest counts. What the process grows by between them is the program's: a
    text of a megabyte that is pasted, counted, or refused as a prompt takes some 200 MiB. (Its
    extra use during a step is not separable.)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._plan: MemoryPlan | None = None
        self._memory: MemorySnapshot | None = None
        self._touched: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._rest = self._grown = 0
        self._device = ""
        self._num_layers = 0
        self._num_gpus = 0
        self._activations: int | None = None

    def update(self, snapshot: EngineSnapshot) -> None:
        memory, blocks = snapshot.memory, snapshot.blocks
        is_new = memory.plan != self._plan or len(self._touched) != blocks.num_blocks
        if is_new:  # another model, or a cache that was rebuilt
            self._touched = np.zeros(blocks.num_blocks, np.bool_)
            self._activations = None
        self._device = snapshot.model.device
        self._num_layers = snapshot.model.num_layers
        self._num_gpus = snapshot.model.num_gpus
        self._touched |= (blocks.owner != BLOCK_FREE) | self._is_on_gpu
        self._memory, self._plan = memory, memory.plan
        rest = memory.process - memory.weights - self._touched_bytes(memory)
        if is_new:
            self._grown = 0
        elif snapshot.steps:
            self._grown = max(0, self._grown + rest - self._rest)
            self._activations = max(self._activations or 0, self._grown)
        else:  # given back between steps: it may be taken again
            self._grown = max(0, self._grown + min(0, rest - self._rest))
        self._rest = rest

    @property
    def _is_on_gpu(self) -> bool:
        return self._device.startswith("cuda")

    def _touched_bytes(self, memory: MemorySnapshot) -> int:
        size = int(np.count_nonzero(self._touched)) * memory.plan.bytes_per_block
        return min(size, memory.kv_cache)

    def figures(self) -> MemoryFigures | None:
        """None before the first snapshot."""
        memory = self._memory
        if memory is None:
            return None
        plan, touched = memory.plan, self._touched_bytes(memory)
        program = memory.process - memory.weights - touched - (self._activations or 0)
        return MemoryFigures(
            weights=Compared(plan.weights, memory.weights),
            kv_cache=Compared(plan.kv_cache, memory.kv_cache),
            activations=Compared(plan.activations, self._activations),
            kv_used=memory.kv_used,
            kv_cached=memory.kv_cached,
            untouched=max(0, memory.kv_cache - touched),
            wasted=memory.wasted,
            program=max(0, program),
            others=max(0, memory.total - memory.free - memory.process),
            free=memory.free,
            total=memory.total,
            free_at_load=plan.free,
            limit=plan.limit,
            kv_words=kv_words(plan.key_dtype, plan.value_dtype),
            place=f"GPU ({self._device})" if self._is_on_gpu else "Machine",
            device=self._device if self._is_on_gpu else "",
            in_ram=self._in_ram(memory),
            num_gpus=self._num_gpus,
        )

    def _in_ram(self, memory: MemorySnapshot) -> InRam | None:
        plan = memory.plan
        if not plan.host_layers:
            return None
        used, cached = (
            size // max(1, plan.bytes_per_block) * plan.host_bytes_per_block
            for size in (memory.kv_used, memory.kv_cached)
        )  # each block has a part in both
        return InRam(
            layers=plan.host_layers,
            num_layers=self._num_layers,
            weights=Compared(plan.host_weights, memory.host_weights),
            kv_cache=Compared(plan.host_kv_cache, memory.host_kv_cache),
            activations=plan.host_activations,
            kv_used=used,
            kv_cached=cached,
            free_at_load=plan.host_free,
            limit=plan.host_limit,
        )
