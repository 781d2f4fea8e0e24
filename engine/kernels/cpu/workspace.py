"""The memory that compiled functions compute in, and the thread count that they are told.

Both are arguments that stay the same objects while their values change, so that a call that was
recorded can be repeated with another thread count, in memory that has grown since.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

LINE = 64
"""Bytes of a cache line: where what tiles are loaded from begins."""

_current = threading.local()


class Workspace:
    """threads (int32), address (64-byte aligned): arguments of compiled functions."""

    def __init__(self) -> None:
        self.threads, self.address = ctypes.c_int32(), ctypes.c_void_p()
        self._memory: NDArray[np.uint8] | None = None
        self.size = 0  # bytes
        self._shared = self._per_thread = 0

    def prepare(self, size: int = 0, thread_size: int = 0) -> None:
        """Give the functions as many threads as PyTorch has now, and the largest `size` and
        `thread_size` bytes for each of them that were ever asked for. Raises MemoryError, and asks
        for less the next time."""
        self.threads.value = count = torch.get_num_threads()
        shared, per_thread = max(self._shared, size), max(self._per_thread, thread_size)
        needed = shared + count * per_thread
        if needed > self.size:
            # no tensor: a recorder would take it for one of the step's
            self._memory = np.empty(needed + LINE - 1, np.uint8)
            self.address.value = -(-self._memory.ctypes.data // LINE) * LINE
            self.size = needed
        self._shared, self._per_thread = shared, per_thread


def workspace(size: int = 0, thread_size: int = 0) -> Workspace:
    """That of the calling thread, prepared: good until it asks again."""
    current: Workspace | None = getattr(_current, "workspace", None)
    if current is None:
        current = _current.workspace = Workspace()
    current.prepare(size, thread_size)
    return current


@contextmanager
def use(other: Workspace) -> Iterator[None]:
    """Inside, `workspace` is the other one for this thread."""
    before = getattr(_current, "workspace", None)
    _current.workspace = other
    try:
        yield
    finally:
        _current.workspace = before
