"""Which implementation computes an operation: one place, by device, format and number of rows.

Where more than one would do, a short measurement decides, once per process and number format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch

CANDIDATES = {
    torch.float32: ("torch", "transposed"),
    torch.bfloat16: ("torch", "upcast"),
    torch.float16: ("torch", "upcast"),
}
"""Linear implementations that may be the fastest on a CPU, by number format."""

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Numbers of rows from which an implementation may take over; a product of n rows uses the largest
that is not above n."""

MANY_ROWS = 192
"""From here on a float32 product is limited by arithmetic, and torch's own is as good as any."""

_WIDTH = 1024  # of the square matrix that is measured
_NUM_MATRICES = 16  # used in turn, as the layers of a model are: 32 MB, more than most caches
_TURNS = 24
_MARGIN = 0.95
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
    if dtype is torch.float32:
        return _float32_choices(name)
    return _upcast_choices(dtype, name)


def _float32_choices(name: str) -> tuple[Choice, ...]:
    """One decision for all products of a few rows, from two sizes together: the difference is a
    property of the library, and one decision is less easily upset by a busy moment."""
    few = [_milliseconds(torch.float32, rows) for rows in (4, 16)]
    times = {key: sum(found[key] for found in few) for key in CANDIDATES[torch.float32]}
    reason = _measured(times, torch.get_num_threads())
    choice = Choice("linear", name, 2, _faster(torch.float32, times), reason)
    return (
        Choice("linear", name, 1, "torch", "one row: a product of matrix and vector"),
        choice,
        Choice("linear", name, MANY_ROWS, "torch", "many rows: limited by arithmetic"),
    )


def _upcast_choices(dtype: torch.dtype, name: str) -> tuple[Choice, ...]:
    """Without 16-bit instructions torch's own product costs the same for every row; converting
    the weight pays from some number of rows on, and then for all that are more. Both split alike
    over threads, so one thread decides: on several, a busy machine makes parallel regions wait,
    and a wrong choice here costs a factor of five."""
    result: list[Choice] = []
    for rows in ROW_BUCKETS:
        with _one_thread():
            times = _milliseconds(dtype, rows, time.thread_time)
        result.append(Choice("linear", name, rows, _faster(dtype, times), _measured(times, 1)))
        if result[-1].implementation == "upcast":
            return tuple(result)
    return (*result, Choice("linear", name, 2 * rows, "upcast", "many rows share the conversion"))


def _faster(dtype: torch.dtype, times: dict[str, float]) -> str:
    """The first candidate is torch's own: the other has to be clearly faster."""
    first, other = CANDIDATES[dtype]
    return other if times[other] < _MARGIN * times[first] else first


def _measured(times: dict[str, float], threads: int) -> str:
    found = ", ".join(f"{key} {ms:.2f} ms" for key, ms in times.items())
    return f"measured at {_WIDTH} x {_WIDTH}, threads: {threads}: {found}"


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _milliseconds(
    dtype: torch.dtype, rows: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest time of one product by each candidate, taking turns. What else runs on the
    machine can only lengthen a call (a busy core makes a whole parallel region wait for its time
    slice), so each is repeated often enough to meet a quiet moment. On one thread the thread's own
    clock leaves that out altogether."""
    from engine.kernels.linear import IMPLEMENTATIONS

    shortest = dict.fromkeys(CANDIDATES[dtype], float("inf"))
    with torch.inference_mode():
        weights = [torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(_NUM_MATRICES)]
        x = torch.ones(rows, _WIDTH, dtype=dtype)
        for turn in range(_TURNS):
            for key in shortest:
                start = clock()
                IMPLEMENTATIONS[key](x, weights[turn % _NUM_MATRICES], None)
                seconds = clock() - start
                if turn > 1:  # the first calls warm up
                    shortest[key] = min(shortest[key], seconds * 1000)
    return shortest
