"""Listens to what a step computes: calls of compiled code, torch operations that write memory, and
attention, which is called anew unless compiled code is told all that differs between steps. Views
and allocations are not repeated; the memory that they gave is kept.

What a step computes must not depend on numbers that Python reads from tensors. torch tells of most
such reads; experts that are chosen in Python are read unseen.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionBackend, AttentionOptions, active, before_layer
from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import FORMATS, TYPES, Library, listen
from engine.kernels.cpu.replay import CompiledCall, Counts, as_one
from engine.kernels.cpu.workspace import Workspace, use, workspace

_SHAPED_BY_NUMBERS = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount")
"""Operations whose result's shape depends on numbers."""

_ALLOCATES = ("empty", "new_empty")

_BEAT_S, _BEAT_LAYERS = 0.1, 4
"""Of layers, after which a replay tells whom `report_layers` named: not of each of them, for that
ends a row of compiled calls. And so many layers after which it does, where no time is known."""

Call = tuple[Callable[..., object], tuple[Any, ...], Mapping[str, Any]]


class UnrecordableError(Exception):
    """What a step does cannot be repeated."""


class _Kind(NamedTuple):
    """What is known of an operation from its schema."""

    reads_numbers: bool
    indexes: bool
    writes: bool
    may_view: bool
    allocates: bool
    into: Any
    """The overload that writes its result where it is told; None without one."""


class Recorder(TorchDispatchMode):
    """Listens, inside its `with`, to what this thread computes."""

    def __init__(
        self, native: Library | None, is_dry: bool = False, memory: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()
        self._native, self.is_dry = native, is_dry
        self.calls: list[Call | list[CompiledCall]] = []  # compiled ones in a row together
        self.memory = [*memory]  # compiled code knows addresses alone
        self.operands: list[Any] = []  # the same of what torch would have kept
        self._by_size: dict[int, list[Tensor]] = {}  # of the memory, what can be used again
        for one in memory:
            if one.dtype is torch.uint8 and one.dim() == 1:
                self._by_size.setdefault(one.nbytes, []).append(one)
        # what the step itself holds of each, by address
        self._held: dict[int, list[ReferenceType[Tensor]]] = {}
        self._is_paused = False

    def __torch_dispatch__(
        self, function: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        return result if self._is_paused else self._noted(function, args, kwargs, result)

    def note_compiled(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """A call of `Library`, or what a profiler puts between two."""
        if not self._is_paused:
            last = self.calls[-1] if self.calls else None
            compiled = CompiledCall(function, arguments)
            if not hasattr(function, "argtypes"):
                self.calls.append((function, arguments, {}))
            elif isinstance(last, list):
                last.append(compiled)
            else:
                self.calls.append([compiled])

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def keep(self, result: Tensor, has_numbers: bool = True) -> Tensor:
        """`result`, in memory that nothing reads any more if there is some of its size."""
        if not result.is_contiguous():
            self.memory.append(result)
            return self._hold(result)
        alike = self._by_size.setdefault(result.nbytes, [])
        free = next(filter(self._is_free, alike), None)
        if free is not None:
            kept = free.view(result.dtype).view(result.shape)
            return self._hold(kept.copy_(result) if has_numbers else kept)
        memory = result.reshape(-1).view(torch.uint8)
        self.memory.append(memory)
        alike.append(memory)
        return self._hold(result)

    def held(self, of: Any) -> Any:
        """Tensors of a recorded call: they count as nothing that the step refers to."""
        # not PyTorch's tree_map, which took half of the time of a recording
        if isinstance(of, Tensor):
            return of.detach() if _memory_of(of) in self._held else of
        if isinstance(of, tuple | list):
            own = map(self.held, of)
            return type(of)(*own) if hasattr(of, "_fields") else type(of)(own)
        return {name: self.held(one) for name, one in of.items()} if isinstance(of, dict) else of

    def _hold(self, tensor: Tensor) -> Tensor:
        self._held.setdefault(_memory_of(tensor), []).append(ref(tensor))
        return tensor

    def _is_free(self, memory: Tensor) -> bool:
        place = _memory_of(memory)
        held = self._held.get(place, [])
        self._held[place] = alive = [one for one in held if one() is not None]
        return not alive

    def _noted(self, function: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
        kind = _kind(function)
        results = _several(result)
        if (
            kind.reads_numbers
            or not all(isinstance(one, Tensor) for one in results)
            or (kind.indexes and _is_masked(args))
        ):
            raise UnrecordableError(f"the step reads numbers ({function})")
        if kind.writes:
            self.calls.append((function, self.held(args), self.held(kwargs)))
            return result
        if kind.may_view and self._are_views(results, args):
            return result
        kept = [self.keep(one, not kind.allocates) for one in results]
        if not kind.allocates and not self._is_added(function, args, kwargs, kept[0]):
            given, named, out = self.held((args, kwargs, kept))
            if kind.into is not None:
                self.calls.append((kind.into, given, {**named, "out": out[0]}))
            else:
                self.calls.append((_again, (function, given, named, out), {}))
        return type(result)(kept) if isinstance(result, tuple | list) else kept[0]

    def _is_added(self, function: Any, args: Any, kwargs: Mapping[str, Any], to: Tensor) -> bool:
        """Whether compiled code, which is heard, has put the sum of two tensors to `to`, as torch
        did."""
        if function is not torch.ops.aten.add.Tensor or kwargs or self._native is None:
            return False
        tensors = *args, to
        if not all(isinstance(one, Tensor) and _are_alike(one, to) for one in tensors):
            return False
        addresses = (one.data_ptr() for one in tensors)
        self._native.add(*addresses, to.numel(), TYPES[to.dtype], workspace().threads)
        self.operands.append(self.held(args))
        return True

    def _are_views(self, results: Sequence[Tensor], args: Any) -> bool:
        """Whether all results are in the memory of arguments, which they then hold; a reshape may
        be a copy."""
        given = {_memory_of(one) for one in args if isinstance(one, Tensor)}
        places = [_memory_of(one) for one in results]
        if not given.issuperset(places):
            return False
        for place, one in zip(places, results, strict=True):
            if place in self._held:
                self._held[place].append(ref(one))
        return True


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return (
        (one.dtype, one.shape, one.device.type) == (other.dtype, other.shape, "cpu")
        and one.is_contiguous()
        and one.dtype in FORMATS
    )


def _is_masked(args: Any) -> bool:
    """Whether an index among the arguments is a mask."""
    places = [one for arg in args if isinstance(arg, tuple | list) for one in arg]
    return any(isinstance(one, Tensor) and one.dtype is torch.bool for one in places)


def _memory_of(tensor: Tensor) -> int:
    """Its address; -1 of a weight that oneDNN lays out, which has none to tell."""
    return -1 if tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


@cache
def _kind(function: Any) -> _Kind:
    schema = function._schema
    name = schema.name.removeprefix("aten::")
    return _Kind(
        reads_numbers=name.startswith(_SHAPED_BY_NUMBERS),
        indexes=name.startswith("index"),
        writes=schema.is_mutable,
        may_view=any(one.alias_info is not None for one in schema.returns),
        allocates=name.startswith(_ALLOCATES),
        into=_into(function),
    )


def _into(function: Any) -> Any:
    packet = function.overloadpacket
    if "out" not in packet.overloads():
        return None
    own, other = (
        [(one.name, str(one.type)) for one in overload._schema.arguments]
        for overload in (function, packet.out)
    )
    return packet.out if other == [*own, ("out", "Tensor")] else None


def _again(function: Any, args: Any, kwargs: Mapping[str, Any], kept: Any) -> None:
    for to, new in zip(kept, _several(function(*args, **kwargs)), strict=True):
        to.copy_(new)


def _several(result: Any) -> Any:
    return result if isinstance(result, tuple | list) else (result,)


class _Attention:
    """The backend: a recorder notes the compiled calls that it makes, or its own where those would
    not serve other steps."""

    def __init__(self, backend: AttentionBackend, recorder: Recorder) -> None:
        self._backend, self._recorder = backend, recorder
        self._told = time.perf_counter()  # somebody of a layer

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self._noted(self._backend.forward, layer, q, k, v, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        return self._noted(self._backend.attend, layer, q, options)

    def _noted(self, compute: Callable[..., Tensor], layer: int, *args: Any) -> Tensor:
        recorder = self._recorder
        if isinstance(self._backend, CPUAttention) and self._backend.is_repeatable(layer):
            now = time.perf_counter()
            is_due = layer % _BEAT_LAYERS == 0 if recorder.is_dry else now - self._told > _BEAT_S
            if is_due:
                self._told = now
                recorder.calls.append((before_layer, (), {}))
            return compute(layer, *args)
        with recorder.paused():
            result = recorder.keep(compute(layer, *args))
            given, to = recorder.held((args, result))

        def again() -> None:
            before_layer()
            to.copy_(compute(layer, *given))

        recorder.calls.append((again, (), {}))
        return result


def is_compiled(call: Call) -> bool:
    """Whether it is a row of compiled calls."""
    return bool(call[1]) and isinstance(call[1][0], ctypes.Array)


def record(
    compute: Callable[[], Tensor], backend: AttentionBackend, workspace: Workspace,
    counts: Counts, is_dry: bool = False, memory: Sequence[Tensor] = (),
) -> tuple[Tensor, list[Call], list[Tensor]]:
    """The result of `compute`, whose attention is that of `backend`; calls that compute it again in
    the same place once `workspace` is prepared for the step, and the memory that they use. counts:
    of the step; compiled calls compute as many rows as it then says. is_dry: compiled code is not
    called, and the result is anything. memory: of another recording, to be used as well. Raises
    UnrecordableError."""
    native = library()  # which is checked, at the first call, by calls that nobody is to hear
    recorder = Recorder(native, is_dry, memory)
    attention = active(_Attention(backend, recorder))
    with attention, listen(recorder.note_compiled, is_dry), use(workspace), recorder:
        result = compute()
    calls: list[Call] = []
    for one in recorder.calls:
        if isinstance(one, list):
            assert native is not None
            calls.append((*as_one(native, one, workspace, counts, recorder.operands), {}))
        else:
            calls.append(one)
    return result, calls, recorder.memory
