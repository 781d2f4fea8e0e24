"""The state of the simulated GPUs: memory taken, work under way, what is being captured."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.gpu.simulated.graphs import Recording

DEVICE = torch.device("cuda:0")
TOTAL_BYTES = 2**30
POISON = -77_777_777
"""What integers are where they mean nothing; numbers with a point are NaN."""


class SimulatedError(RuntimeError):
    """What a GPU would refuse, or get wrong without a word."""


class Memory:
    """A piece of a GPU's memory; it is free when nothing refers to it any more. written, used: the
    last (stream, place in it) that did, the stream first that it was allocated for. recorded: the
    streams that torch was told of (Tensor.record_stream)."""

    __slots__ = ("__weakref__", "device", "nbytes", "recorded", "used", "written")

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes = nbytes
        self.device = device
        self.written: tuple[int, int] = (0, 0)
        self.used: dict[int, int] = {}
        self.recorded: set[int] = set()


@dataclass
class Gpu:
    """others: bytes that other programs have; limit: what this process may take. asked: how often
    memory was asked for, and denied: which times it is refused. reusable: of what was given back,
    the stream that may have it again at once, and what others used of it last."""

    index: int
    total: int = TOTAL_BYTES
    others: int = 2**26
    limit: int = TOTAL_BYTES
    allocated: int = 0
    peak: int = 0
    denied: frozenset[int] = frozenset()
    asked: int = 0
    reusable: list[tuple[int, dict[int, int]]] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)

    @property
    def free(self) -> int:
        return self.total - self.others - self.allocated

    def take(self, size: int) -> Memory:
        self.asked += 1
        is_denied = self.asked in self.denied
        if is_denied or size > min(self.limit - self.allocated, self.free):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {self.index} "
                f"has a total capacity of {self.total / 2**20:.2f} MiB of which "
                f"{self.free / 2**20:.2f} MiB is free."
            )
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Memory(size, self.device)


def _of_first(name: str) -> Any:
    def get(machine: Machine) -> Any:
        return getattr(machine.gpus[0], name)

    def put(machine: Machine, value: Any) -> None:
        setattr(machine.gpus[0], name, value)

    return property(get, put)


class _OfThread(threading.local):
    """recording: what this thread captures; others compute meanwhile."""

    recording: Recording | None = None


@dataclass
class Machine:
    """All GPUs. What they have in common stands here, and by name what the first one has, for tests
    that know of one."""

    gpus: list[Gpu] = field(default_factory=lambda: [Gpu(0)])
    sync_mode: str = "default"
    waits: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    pieces: weakref.WeakValueDictionary[int, Memory] = field(
        default_factory=weakref.WeakValueDictionary
    )
    _of_thread: _OfThread = field(default_factory=_OfThread)

    total = _of_first("total")
    others = _of_first("others")
    limit = _of_first("limit")
    allocated = _of_first("allocated")
    peak = _of_first("peak")
    denied = _of_first("denied")
    asked = _of_first("asked")
    free = _of_first("free")

    @property
    def recording(self) -> Recording | None:
        return self._of_thread.recording

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._of_thread.recording = recording

    def memory_of(self, real: Tensor, index: int) -> Memory:
        """What `real` lies in: a piece that is known, or a new one of that GPU's."""
        storage = real.untyped_storage()
        size = storage.nbytes()
        with self.lock:
            known = self.pieces.get(storage.data_ptr()) if size else None
            if known is not None:
                return known
            gpu = self.gpus[index]
            piece = gpu.take(size)
            orders = (piece.used, piece.recorded)
            weakref.finalize(piece, self._give_back, gpu, size, *orders).atexit = False
            if size:
                self.pieces[storage.data_ptr()] = piece
            return piece

    def _give_back(self, gpu: Gpu, size: int, used: dict[int, int], recorded: set[int]) -> None:
        with self.lock:
            gpu.allocated -= size
            home = next(iter(used), None)
            others = {n: place for n, place in used.items() if n != home and n not in recorded}
            if home is not None and others:
                gpu.reusable.append((home, others))

    def wait(self, why: str, finish: Callable[[], object]) -> None:
        """The host waits inside an operation: what torch can be told to raise at."""
        if self.recording is not None:
            raise SimulatedError(f"operation not permitted when stream is capturing: {why}")
        if self.sync_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation: {why}")
        if self.sync_mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        self.waits += 1
        finish()


machine = Machine()


def poison(real: Tensor) -> None:
    """Make every number of a tensor one that nobody can take for a result."""
    if real.is_floating_point():
        bytewise = real.element_size() == 1  # 8 bits: fill_ knows no NaN there
        real.view(torch.uint8).fill_(0x7F) if bytewise else real.fill_(float("nan"))
    elif real.dtype == torch.bool:
        real.logical_not_()
    else:
        info = torch.iinfo(real.dtype)
        real.fill_(POISON if info.min <= POISON else info.max)


def each(value: Any, kind: type) -> list[Any]:
    """Everything of a kind in nested arguments."""
    found: list[Any] = []

    def keep(one: Any) -> Any:
        if isinstance(one, kind):
            found.append(one)
        return one

    mapped(keep, value)
    return found


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Nested arguments or results with `change` applied to what is no list, tuple or dict."""
    if isinstance(value, list | tuple):
        items = [mapped(change, item) for item in value]
        return type(value)(items) if type(value) in (list, tuple) else type(value)(*items)
    if isinstance(value, dict):
        return {name: mapped(change, item) for name, item in value.items()}
    return change(value)
