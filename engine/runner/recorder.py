"""Listens to what a step computes: calls of compiled code, torch operations that write memory, and
attention, which is called anew unless compiled code is told all that differs between steps. Views
and allocations are not repeated; the memory that they gave is kept.

What a step computes must not depend on numbers that Python reads from tensors. torch tells of most
such reads; experts that are chosen in Python are read unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionBackend, AttentionOptions, active, before_layer
from engine.kernels.cpu.library import listen
from engine.kernels.cpu.workspace import Workspace, use

_SHAPED_BY_NUMBERS = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount")
"""Operations whose result's shape depends on numbers."""

_ALLOCATES = ("empty", "new_empty")

Call = tuple[Callable[..., object], tuple[Any, ...], Mapping[str, Any]]


class UnrecordableError(Exception):
    """What a step does cannot be repeated."""


class Recorder(TorchDispatchMode):
    """Listens, inside its `with`, to what this thread computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.memory: list[Tensor] = []  # compiled code knows addresses alone
        # what the step itself holds of each
        self._held: dict[int, list[ReferenceType[Tensor]]] = {}
        self._is_paused = False

    def __torch_dispatch__(
        self, function: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        return result if self._is_paused else self._noted(function, args, kwargs, result)

    def note_compiled(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """A call of `Library`."""
        if not self._is_paused:
            self.calls.append((function, arguments, {}))

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def keep(self, result: Tensor) -> Tensor:
        """`result`, in memory that nothing reads any more if there is some of its size."""
        kept = result
        if result.is_contiguous():
            free = next((one for one in self.memory if self._is_free(one, result.nbytes)), None)
            if free is None:
                self.memory.append(result.reshape(-1).view(torch.uint8))
            else:
                kept = free.view(result.dtype).view(result.shape).copy_(result)
        else:
            self.memory.append(result)
        self._hold(kept)
        return kept

    def held(self, of: Any) -> Any:
        """Tensors of a recorded call: they count as nothing that the step refers to."""
        # not PyTorch's tree_map, which took half of the time of a recording
        if isinstance(of, Tensor):
            return of.detach() if _memory_of(of) in self._held else of
        if isinstance(of, tuple | list):
            own = map(self.held, of)
            return type(of)(*own) if hasattr(of, "_fields") else type(of)(own)
        return {name: self.held(one) for name, one in of.items()} if isinstance(of, dict) else of

    def _hold(self, tensor: Tensor) -> None:
        self._held.setdefault(_memory_of(tensor), []).append(ref(tensor))

    def _is_free(self, memory: Tensor, size: int) -> bool:
        if memory.nbytes != size or not memory.is_contiguous():
            return False
        place = _memory_of(memory)
        self._held[place] = alive = [one for one in self._held[place] if one() is not None]
        return not alive

    def _noted(self, function: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
        schema = function._schema
        name = schema.name.removeprefix("aten::")
        results = _several(result)
        if (
            name.startswith(_SHAPED_BY_NUMBERS)
            or not all(isinstance(one, Tensor) for one in results)
            or (name.startswith("index") and _is_masked(args))
        ):
            raise UnrecordableError(f"the step reads numbers ({name})")
        if schema.is_mutable:
            self.calls.append((function, self.held(args), self.held(kwargs)))
            return result
        if any(one.alias_info is not None for one in schema.returns):
            given = {_memory_of(one) for one in args if isinstance(one, Tensor)}
            if all(_memory_of(one) in given for one in results):  # a view; a reshape may be a copy
                for one in results:
                    if _memory_of(one) in self._held:
                        self._hold(one)
                return result
        kept = [self.keep(one) for one in results]
        if not name.startswith(_ALLOCATES):
            given, named, out = self.held((args, kwargs, kept))
            if (into := _into(function)) is not None:
                self.calls.append((into, given, {**named, "out": out[0]}))
            else:
                self.calls.append((_again, (function, given, named, out), {}))
        return type(result)(kept) if isinstance(result, tuple | list) else kept[0]


def _is_masked(args: Any) -> bool:
    """Whether an index among the arguments is a mask."""
    places = [one for arg in args if isinstance(arg, tuple | list) for one in arg]
    return any(isinstance(one, Tensor) and one.dtype is torch.bool for one in places)


def _memory_of(tensor: Tensor) -> int:
    """Its address; -1 of a weight that oneDNN lays out, which has none to tell."""
    return -1 if tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


@cache
def _into(function: Any) -> Any:
    """The overload of an operation that writes its result where it is told; None without one."""
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

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self._noted(self._backend.forward, layer, q, k, v, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        return self._noted(self._backend.attend, layer, q, options)

    def _noted(self, compute: Callable[..., Tensor], layer: int, *args: Any) -> Tensor:
        recorder = self._recorder
        if isinstance(self._backend, CPUAttention) and self._backend.is_repeatable(layer):
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


def record(
    compute: Callable[[], Tensor], backend: AttentionBackend, workspace: Workspace
) -> tuple[Tensor, list[Call], list[Tensor]]:
    """The result of `compute`, whose attention is that of `backend`; calls that compute it again in
    the same place once `workspace` is prepared for the step, and the memory that they use. Raises
    UnrecordableError."""
    recorder = Recorder()
    attention = active(_Attention(backend, recorder))
    with attention, listen(recorder.note_compiled), use(workspace), recorder:
        result = compute()
    return result, recorder.calls, recorder.memory
