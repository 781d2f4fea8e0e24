"""Captures the kernels that a function launches on an NVIDIA GPU as a CUDA graph.

The most likely failure, a synchronization with the GPU, is detected in a run before the capture.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from engine.errors import UnsupportedModelError
from engine.hardware.malloc import capturing

_WAITS = "synchronizing CUDA operation"  # in torch's warning of one


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The same for all captures: for each stream on which it is used, cuBLAS keeps a workspace (32
    MiB on Hopper)."""
    return torch.cuda.Stream(device)


class CudaCapture:
    """Captures on a separate stream, since the default stream cannot be captured; replays run on
    the stream of the engine's thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _capture_stream(device)
        self._free_before = self._free()

    def __call__(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Raises UnsupportedModelError where `run` waits for the device. There is one stream, so
        threads capture one after the other."""
        with capturing, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self._stream):
                    run()  # kernels are compiled, and libraries take their workspaces
                    with _refusing_waits():
                        run()
            finally:  # also where it failed: what was launched until then may run still
                torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream()
            try:
                # other threads of the process may use CUDA meanwhile
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    run()
            except BaseException:
                torch.cuda.set_stream(stream)  # where ending the capture fails, torch does not
                raise
        return graph

    @property
    def graph_bytes(self) -> int:
        """Measured by what is free on the device: the driver takes memory too."""
        return max(0, self._free_before - self._free())

    def seconds(self, run: Callable[[], object]) -> float:
        """The shortest of three, after a warm-up."""
        times = []
        for _ in range(4):
            torch.cuda.synchronize(self._device)
            began = time.perf_counter()
            run()
            torch.cuda.synchronize(self._device)
            times.append(time.perf_counter() - began)
        return min(times[1:])

    def _free(self) -> int:
        torch.cuda.synchronize(self._device)
        with capturing:
            torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """torch warns and does not raise: another thread may wait for the device meanwhile; warnings of
    other threads are ignored."""
    before = torch.cuda.get_sync_debug_mode()
    here, found = threading.get_ident(), []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if threading.get_ident() == here:
            found.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if any(_WAITS in message for message in found):
        raise UnsupportedModelError("the step synchronizes with the GPU")
