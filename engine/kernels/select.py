"""Which implementation computes an operation: one place, by device, format and number of rows.

Where more than one would do, a short measurement decides, once per process and number format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch

CANDIDATES = {
    torch.float32: ("torch", "transposed"),
    torch.bfloat16: ("torch", "upcast"),
    torch.float16: ("torch", "upcast"),
}
"""Linear implementations that may be the fastest on a CPU, by number format."""

ROW_BUCKETS = (1, 2, 4, 8, 16, 64, 256)
"""Measured numbers of rows; a product of n rows uses the largest bucket that is not above n."""

_WIDTH = 1024  # of the square matrix that is measured
_NUM_MATRICES = 16  # used in turn, as the layers of a model are: 32 MB, more than most caches
_MEASURE_SECONDS = 0.03  # per implementation and number of rows
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
    if device != "cpu" or dtype not in CANDIDATES:
        return "torch"
    chosen = "torch"
    for choice in linear_choices(dtype):
        if choice.rows > max(rows, 1):
            break
        chosen = choice.implementation
    return chosen


def linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for one number format, measured if that is in doubt."""
    with _lock:  # two threads measuring at once would disturb each other
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
    if dtype is not torch.float32 and has_fast_16bit(dtype):
        return (Choice("linear", name, 1, "torch", f"the CPU multiplies {name} itself"),)
    from engine.kernels.linear import IMPLEMENTATIONS

    threads = torch.get_num_threads()
    with torch.inference_mode():
        weights = [torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(_NUM_MATRICES)]
        result = []
        for rows in ROW_BUCKETS:
            x = torch.ones(rows, _WIDTH, dtype=dtype)
            times = {
                key: _milliseconds([partial(IMPLEMENTATIONS[key], x, w, None) for w in weights])
                for key in CANDIDATES[dtype]
            }
            best = min(times, key=lambda key: times[key])
            measured = ", ".join(f"{key} {ms:.2f} ms" for key, ms in times.items())
            reason = f"measured at {_WIDTH} x {_WIDTH} on {threads} threads: {measured}"
            result.append(Choice("linear", name, rows, best, reason))
    return tuple(result)


def _milliseconds(calls: list[Callable[[], object]]) -> float:
    """The shortest time of one call: what else runs on the machine can only lengthen it (a busy
    core makes a whole parallel region wait for its time slice)."""
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
