"""Tensors of the simulated GPUs: each holds one of the host's that nobody else sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor

from tests.gpu.simulated import devices, rules, streams
from tests.gpu.simulated.copies import copies
from tests.gpu.simulated.machine import Memory, SimulatedError, each, machine, mapped
from tests.gpu.simulated.pinned import is_pinned, pin

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class DeviceTensor(Tensor):
    """Says that it is on a GPU. memory: what it lies in, views with what they show."""

    inner: Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, real: Tensor, index: int) -> Self:
        memory = machine.memory_of(real, index)
        # also inside of it: a view of what was made outside is made inside, too
        with torch.inference_mode(False):
            made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, real.size(), strides=real.stride(), storage_offset=real.storage_offset(),
                dtype=real.dtype, device=memory.device,
            )  # fmt: skip
        made.memory = memory  # goes first: until then nothing else lies where the numbers do
        made.inner = real
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def record_stream(self, stream: Any) -> None:
        self.memory.recorded.add(stream.number)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # in inference mode these come in one piece
            return func._op_dk(_COMPOSITE, *args, **kwargs)
        with machine.lock:
            if func is _aten.copy_.default:
                return copy(*args, **kwargs)
            if func is _aten._to_copy.default and _names_the_host(kwargs):
                return _to_host(*args, **kwargs)
            if func is _aten._to_copy.default and _gpu_named(kwargs) not in (None, args[0].device):
                return _to_other(*args, **kwargs)
            return _run(func, args, kwargs)


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)  # type: ignore[no-any-return]


def real_of(value: Any) -> Any:
    return value.inner if isinstance(value, DeviceTensor) else value


def launch(
    what: str,
    run: Any,
    read: Sequence[DeviceTensor],
    written: Sequence[DeviceTensor],
    stream: streams.Stream | None = None,
) -> Any:
    """Compute on the tensors' GPU now, or when the graph is replayed that is being captured.
    stream: not the thread's current one there."""
    reads, writes = [t.memory for t in read], [t.memory for t in written]
    if stream is None:
        stream = streams.current_stream(next((m.device for m in [*writes, *reads]), None))
    if machine.recording is not None:
        machine.recording.add(what, run, reads, writes, stream)
        return None
    stream.launch(reads, writes)
    with torch.inference_mode():
        return run()


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    rules.check(func, args, kwargs)
    there = each((args, kwargs), DeviceTensor)
    if rules.waits(func, args):
        machine.wait(str(func), partial(streams.synchronize, there[0].device))
    real_args, real_kwargs = mapped(real_of, (args, kwargs))
    if real_kwargs.get("device") is not None:
        real_kwargs["device"] = torch.device("cpu")
    real_kwargs.pop("pin_memory", None)

    def run() -> Any:
        return rules.instead(func)(*real_args, **real_kwargs)

    written = _written(func, args, kwargs)
    if written:
        launch(str(func), run, there, written)
        if any(t.inner.shape != t.shape for t in written):
            raise NotImplementedError(f"{func} gives a tensor another shape")
        return written[0] if len(written) == 1 else tuple(written)
    if _names_the_host(kwargs):
        return run()
    device = _gpu_named(kwargs)
    if device not in (None, there[0].device):  # something new of the same shape
        return made(run, str(func), device=device)
    return made(run, str(func), there)


def _written(func: Any, args: Any, kwargs: Any) -> list[DeviceTensor]:
    """What an operation changes in place or is given for its result."""
    written = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            written += each(given, DeviceTensor)
    return written


def made(
    run: Any, what: str = "a new tensor", read: Sequence[DeviceTensor] = (), device: Any = None
) -> Any:
    """The results of an operation that changes nothing: views, or memory of their own, on the GPU
    of what is read, or another."""
    with machine.lock:
        return _made(run, what, read, devices.index_of(read[0].device if read else device))


def _made(run: Any, what: str, read: Sequence[DeviceTensor], index: int) -> Any:
    shown = {t.memory for t in read}
    with torch.inference_mode():
        out = run()
    results = mapped(lambda o: DeviceTensor(o, index) if isinstance(o, Tensor) else o, out)
    new = [t for t in each(results, DeviceTensor) if t.memory not in shown]
    if not new:
        return results
    if machine.recording is None:
        streams.current_stream(index).launch([t.memory for t in read], [t.memory for t in new])
        return results
    reals = [t.inner for t in new]
    for tensor in new:
        machine.recording.add_made(tensor.inner, tensor.memory)
        with torch.inference_mode():
            tensor.inner.zero_()  # valid to index with; it is spoiled before it is computed

    def again() -> None:
        for real, result in zip(reals, each(run(), Tensor), strict=True):
            real.copy_(result)

    launch(what, again, read, new)
    return results


def _names_the_host(kwargs: Any) -> bool:
    return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"


def _gpu_named(kwargs: Any) -> torch.device | None:
    device = kwargs.get("device")
    named = None if device is None else torch.device(device)
    if named is None or named.type != "cuda":
        return None
    return torch.device("cuda", devices.index_of(named))


def copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    with machine.lock:
        return _copy(to, source, non_blocking)


def _copy(to: Any, source: Any, non_blocking: bool) -> Tensor:
    real, numbers = real_of(to), real_of(source)
    if to.is_cuda and source.is_cuda and to.device != source.device:
        _between(to, source)
    elif to.is_cuda and source.is_cuda:
        launch("copy_", lambda: real.copy_(numbers), [source], [to])
    elif to.is_cuda:
        _to_device(to, source, non_blocking)
    else:
        stream = streams.current_stream(source.device)
        place = stream.launch([source.memory], [])
        if machine.recording is not None:  # to pinned memory it would be allowed: nothing does
            raise SimulatedError("operation not permitted when stream is capturing: to the host")
        copies.to_host(stream.number, place, to, numbers)
        if not non_blocking:
            machine.wait("a copy to the host", partial(streams.synchronize, source.device))
    return to


def _between(to: DeviceTensor, source: DeviceTensor) -> None:
    """From one GPU to another: the source's copies, when what the other has launched is done, which
    then waits for it. The host waits for nothing (aten/src/ATen/native/cuda/Copy.cu)."""
    if machine.recording is not None:  # the other's stream is none of the capture
        raise SimulatedError("operation not permitted when stream is capturing: between devices")
    here, there = streams.current_stream(source.device), streams.current_stream(to.device)
    here.wait_stream(there)
    launch("copy_", lambda: to.inner.copy_(source.inner), [source], [to], here)
    there.wait_stream(here)


def _to_device(to: Any, host: Tensor, non_blocking: bool) -> None:
    real = to.inner
    if host.dim() == 0 and not non_blocking and not is_pinned(host):
        number = host.clone()  # as an argument of the kernel
        launch("fill", lambda: real.copy_(number), [], [to])
        return
    if not non_blocking:
        waited = partial(streams.synchronize, to.device)
        machine.wait("a copy of pageable memory to the device", waited)
    elif machine.recording is not None and not is_pinned(host):
        raise SimulatedError("operation not permitted when stream is capturing: from pageable")
    launch("copy_", lambda: real.copy_(host), [], [to])
    if non_blocking and is_pinned(host) and machine.recording is None:
        stream = streams.current_stream(to.device)
        copies.to_device(stream.number, stream.place, host)


def _to_host(source: DeviceTensor, **kwargs: Any) -> Tensor:
    non_blocking = kwargs.pop("non_blocking", False)
    dtype = kwargs.get("dtype") or source.dtype
    host = torch.empty(source.shape, dtype=dtype)
    if non_blocking:  # torch takes pinned memory then
        pin(host)
    return copy(host, source, non_blocking)


def _to_other(source: DeviceTensor, **kwargs: Any) -> Tensor:
    kwargs.pop("non_blocking", None)
    device = _gpu_named(kwargs)
    like = {name: kwargs[name] for name in ("dtype", "memory_format") if name in kwargs}
    to = made(lambda: torch.empty_like(source.inner, **like), device=device)
    return copy(to, source)
