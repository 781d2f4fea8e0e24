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

from engine.snapshot import BLOCK_FREE, EngineSnapshot, MemorySnapshot, ModelInfo


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
class MemoryFigures:
    """What is measured beside the plan, in bytes. `touched`: of the KV cache, written to so far.
    Of several GPUs all of this is of the first."""

    memory: MemorySnapshot
    model: ModelInfo
    touched: int
    measured_activations: int | None

    @property
    def weights(self) -> Compared:
        return Compared(self.memory.plan.weights, self.memory.weights)

    @property
    def kv_cache(self) -> Compared:
        return Compared(self.memory.plan.kv_cache, self.memory.kv_cache)

    @property
    def activations(self) -> Compared:
        return Compared(self.memory.plan.activations, self.measured_activations)

    @property
    def sum(self) -> Compared:
        measured = self.measured_activations
        if measured is not None:
            measured += self.memory.weights + self.memory.kv_cache
        return Compared(self.memory.plan.predicted, measured)

    @property
    def untouched(self) -> int:
        """Of the KV cache, never written to so far."""
        return max(0, self.memory.kv_cache - self.touched)

    @property
    def engine(self) -> int:
        """Resident for the model: weights, touched KV cache, activations."""
        return self.memory.weights + self.touched + (self.measured_activations or 0)

    @property
    def program(self) -> int:
        """The rest of this process."""
        return max(0, self.memory.process - self.engine)

    @property
    def others(self) -> int:
        """What other programs hold."""
        return max(0, self.memory.total - self.memory.free - self.memory.process)


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
        self._memory: MemorySnapshot | None = None
        self._model: ModelInfo | None = None
        self._touched: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._rest = self._grown = 0
        self._activations: int | None = None

    def update(self, snapshot: EngineSnapshot) -> None:
        memory, blocks, before = snapshot.memory, snapshot.blocks, self._memory
        has_plan = before is not None and memory.plan == before.plan
        is_new = not has_plan or len(self._touched) != blocks.num_blocks
        if is_new:  # another model, or a cache that was rebuilt
            self._touched = np.zeros(blocks.num_blocks, np.bool_)
            self._activations = None
        self._memory, self._model = memory, snapshot.model
        self._touched |= (blocks.owner != BLOCK_FREE) | is_on_gpu(snapshot.model)
        rest = memory.process - memory.weights - self._touched_bytes(memory)
        if is_new:
            self._grown = 0
        elif snapshot.steps:
            self._grown = max(0, self._grown + rest - self._rest)
            self._activations = max(self._activations or 0, self._grown)
        else:  # given back between steps: it may be taken again
            self._grown = max(0, self._grown + min(0, rest - self._rest))
        self._rest = rest

    def _touched_bytes(self, memory: MemorySnapshot) -> int:
        size = int(np.count_nonzero(self._touched)) * memory.plan.bytes_per_block
        return min(size, memory.kv_cache)

    def figures(self) -> MemoryFigures | None:
        """None before the first snapshot."""
        memory, model = self._memory, self._model
        if memory is None or model is None:
            return None
        return MemoryFigures(memory, model, self._touched_bytes(memory), self._activations)


def is_on_gpu(model: ModelInfo) -> bool:
    return model.device.startswith("cuda")
