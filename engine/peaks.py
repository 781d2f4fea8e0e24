"""What this machine can do at most: bytes read per second, operations per second.

The yardstick of `engine.step_cost`. Imports no torch until it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.machine import free_memory, machine_name

SUM_BYTES, LEAST_SUM_BYTES = 2**30, 2**28
"""Read by the sum: far more than any cache holds."""
_SUM_REPEATS = 5
_ROWS, _WIDTH = 512, 2048  # of the product: 4.3 GFLOP
_PRODUCTS_S = 0.4  # time for repeating it
_MOST_PRODUCTS = 8


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured on `machine` with `num_threads` threads. `flops_per_s` is that of a large product
    in `dtype` (in float32 where the machine widens it). measured_at: seconds since 1970."""

    read_bytes_per_s: float
    flops_per_s: float
    dtype: str
    num_threads: int
    machine: str
    measured_at: float


def measure_peaks(dtype: str, num_threads: int) -> Peaks:
    """Measure for about half a second. The best of several turns counts, because whatever else
    runs on the machine can only slow it down. Raises MemoryError or RuntimeError where there is
    no room for the measurement."""
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            return Peaks(
                read_bytes_per_s=_read_bytes_per_s(),
                flops_per_s=_flops_per_s(dtype),
                dtype=dtype,
                num_threads=num_threads,
                machine=machine_name(),
                measured_at=time.time(),
            )
    finally:
        torch.set_num_threads(threads_before)


def _read_bytes_per_s() -> float:
    """Of a sum over memory that is only read."""
    import torch

    free, _ = free_memory()
    size = max(LEAST_SUM_BYTES, min(SUM_BYTES, free // 4))
    data = torch.ones(size // 4, dtype=torch.float32)
    return size / min(_seconds(data.sum) for _ in range(_SUM_REPEATS))


def _flops_per_s(dtype: str) -> float:
    import torch

    from engine.kernels.select import has_fast_16bit

    wanted = getattr(torch, dtype)
    fast = wanted is torch.float32 or has_fast_16bit(wanted)
    number = wanted if fast else torch.float32
    rows = torch.ones(_ROWS, _WIDTH, dtype=number)
    matrix = torch.ones(_WIDTH, _WIDTH, dtype=number)
    operations = 2 * _ROWS * _WIDTH * _WIDTH
    turns: list[float] = []
    while len(turns) < 2 or (len(turns) < _MOST_PRODUCTS and sum(turns) < _PRODUCTS_S):
        turns.append(_seconds(lambda: rows @ matrix.T))
    return operations / min(turns)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
