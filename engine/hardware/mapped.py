"""Tensors with a mapping of their own: memory that the system gives when it is first written, and
gets back with the tensor.

The C library may hand out memory that was used before, in pages of 4 KiB. Weights are in huge pages
of 2 MiB where Linux has them: the processor then finds their addresses without reading a table for
each page, which on a virtual machine took a fifth of the time of products that read their weights
from memory (Intel Xeon, two cores, 880 MB: 24 instead of 31 GB/s).
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2**21
"""Bytes, on x86-64 and with 4 KiB pages on ARM."""


def mapped_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of `shape` on the CPU. Raises MemoryError."""
    count = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(_mapping(count), dtype=dtype).view(*shape)


def empty_weight(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a weight on the CPU, in huge pages where it fills any. Raises MemoryError or
    RuntimeError."""
    count = math.prod(shape) * dtype.itemsize
    if count < HUGE_PAGE or sys.platform != "linux":
        return torch.empty(shape, dtype=dtype)
    mapping = _mapping(count + HUGE_PAGE)
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return torch.frombuffer(mapping, dtype=dtype, count=math.prod(shape), offset=start).view(*shape)


def _mapping(count: int) -> mmap.mmap:
    # Windows has neither flag, and needs none
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
    try:
        return mmap.mmap(-1, count, **private)
    except OSError as error:
        raise MemoryError(f"mmap of {count:,} bytes failed: {error.strerror}") from error
