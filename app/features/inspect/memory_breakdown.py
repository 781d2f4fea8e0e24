"""Planned and measured memory by category. No Qt.

    this process                                                 the rest of the machine
    |<----------------------------------------------------->|<--------------------->|<---->|
    | weights | KV resident | activations | program, texts     | other programs        | free |

On the CPU a page of the KV cache becomes resident when it is first used: others are planned and
allocated, but not resident. On a GPU the whole cache is resident at once. With CPU offload all
figures are those of the GPU; the part in RAM is separate.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.snapshot import EngineSnapshot, MemorySnapshot, ModelInfo


@dataclass(frozen=True, slots=True)
class Compared:
    """Bytes of one category; `measured` is None until it is known."""

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
    """Planned and measured memory, in bytes. `resident`: of the KV cache; `reuses`: as of
    `MemoryTracker`."""

    memory: MemorySnapshot
    model: ModelInfo
    resident: int
    measured_activations: int | None
    reuses: bool = False

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
    def unused(self) -> int:
        """The part of the KV cache that takes no memory yet."""
        return self.memory.kv_cache - self.resident

    @property
    def engine(self) -> int:
        """Resident memory of the model: weights, KV cache, activations."""
        return self.memory.weights + self.resident + (self.measured_activations or 0)

    @property
    def program(self) -> int:
        """The rest of this process."""
        return max(0, self.memory.process - self.engine)

    @property
    def others(self) -> int:
        """Memory of other programs."""
        return max(0, self.memory.total - self.memory.free - self.memory.process)


class MemoryTracker:
    """Accumulates `MemoryFigures` from all snapshots.

    Activations are the largest growth of the process during steps, less that of the resident
    cache. Growth between steps belongs to the program: pasting, counting or refusing a prompt of a
    megabyte takes some 200 MiB. (What the program uses in addition during a step cannot be
    separated.)

    Steps after a rebuild or a second load reuse what the process has kept of earlier ones: growth
    is then less than the activations, by an unknown amount, and no measurement below the plan."""

    def __init__(self) -> None:
        self._has_stepped = False  # the process, with any model
        self.clear()

    def clear(self) -> None:
        self._memory: MemorySnapshot | None = None
        self._model: ModelInfo | None = None
        self._resident = 0  # at most so far: where it is not measured, only used blocks count
        self._rest = self._grown = 0
        self._activations: int | None = None
        self._reuses = False

    def update(self, snapshot: EngineSnapshot) -> None:
        memory, before = snapshot.memory, self._memory
        is_new = before is None or memory.plan != before.plan
        if is_new:  # another model, or a cache that was rebuilt
            self._resident = 0
            self._activations = None
            self._reuses = self._has_stepped or snapshot.step_index > len(snapshot.steps)
        self._has_stepped |= bool(snapshot.steps)
        self._memory, self._model = memory, snapshot.model
        self._resident = max(self._resident, memory.kv_resident)
        rest = memory.process - memory.weights - self._resident
        if is_new:
            self._grown = 0
        elif snapshot.steps:
            self._grown = max(0, self._grown + rest - self._rest)
            self._activations = max(self._activations or 0, self._grown)
        else:  # given back between steps: it may be taken again
            self._grown = max(0, self._grown + min(0, rest - self._rest))
        self._rest = rest

    def figures(self) -> MemoryFigures | None:
        """The current figures; None before the first snapshot."""
        memory, model = self._memory, self._model
        if memory is None or model is None:
            return None
        measured = self._activations
        if self._reuses and (measured or 0) < memory.plan.activations:
            measured = None
        return MemoryFigures(memory, model, self._resident, measured, self._reuses)


def is_on_gpu(model: ModelInfo) -> bool:
    return model.device.startswith("cuda")
