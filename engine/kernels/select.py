"""Which implementation computes an operation: one place, by device, format and number of rows.

Where more than one would do, a short measurement decides, once per process and number format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

import torch

ROW_BUCKETS = (1, 2, 4, 8, 16, 64)
"""Measured numbers of rows; a product of n rows uses the largest bucket that is not above n."""

_WIDTH = 1024  # of the square matrix that is measured
_NUM_MATRICES = 16  # used in turn, as the layers of a model are: 32 MB, more than most caches
_MEASURE_SECONDS = 0.05  # per implementation and number of rows
_lock = threading.Lock()


class Choice(NamedTuple):
    """`operation` in `dtype` with at least `rows` rows is computed by `implementation`."""

    operation: str
    dtype: str
    rows: int
    implementation: str
    reason: str


def choose_linear(dtype: torch.dtype, device: str, rows: int) -> str:
    """Name of the linear implementation for `rows` rows of activations in `dtype`."""
    if device != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return "torch"
    chosen = "torch"
    for choice in linear_choices(dtype):
        if choice.rows > max(rows, 1):
            break
        chosen = choice.implementation
    return chosen


def linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for one number format, measured if that is in doubt."""
    if dtype is not torch.float32:
        with _lock:  # two threads measuring at once would disturb each other
            return _linear_choices(dtype)
    return _linear_choices(dtype)


def choices() -> list[Choice]:
    """Every choice on this machine's CPU, for people to read."""
    formats = (torch.float32, torch.bfloat16, torch.float16)
    return [choice for dtype in formats for choice in linear_choices(dtype)]


def has_fast_16bit(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for products in `dtype` that torch uses."""
    check = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    supported: Callable[[], bool] | None = getattr(torch.ops.mkldnn, check, None)
    return bool(supported and supported())


@cache
def _linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    name = str(dtype).removeprefix("torch.")
    if dtype is torch.float32:
        return (Choice("linear", name, 1, "torch", "the only implementation"),)
    if has_fast_16bit(dtype):
        return (Choice("linear", name, 1, "torch", f"the CPU multiplies {name} itself"),)
    from engine.kernels.linear import IMPLEMENTATIONS

    with torch.inference_mode(), _one_thread():
        weights = [torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(_NUM_MATRICES)]
        result = []
        for rows in ROW_BUCKETS:
            x = torch.ones(rows, _WIDTH, dtype=dtype)
            times = {
                key: _milliseconds([partial(compute, x, weight, None) for weight in weights])
                for key, compute in IMPLEMENTATIONS.items()
            }
            best = min(times, key=lambda key: times[key])
            measured = ", ".join(f"{key} {ms:.2f} ms" for key, ms in times.items())
            reason = f"measured at {_WIDTH} x {_WIDTH} on one thread: {measured}"
            result.append(Choice("linear", name, rows, best, reason))
    return tuple(result)


@contextmanager
def _one_thread() -> Iterator[None]:
    """With several threads a busy machine makes every parallel region wait for a time slice, and
    the measurement tells how busy it is; the order of implementations is the same on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _milliseconds(calls: list[Callable[[], object]]) -> float:
    """The shortest time of one call: what else runs on the machine can only lengthen it."""
    calls[0]()
    shortest = float("inf")
    begin = time.perf_counter()
    for call in calls:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        shortest = min(shortest, end - start)
        if end - begin > _MEASURE_SECONDS:
            break
    return shortest * 1000
