"""Times the candidates for an operation on this machine; callers cache the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch

from engine.units import duration_text

_MARGIN = 0.95

one_at_a_time = threading.RLock()
"""Two threads that measure at once would disturb each other."""


class Choice(NamedTuple):
    """`operation` in `dtype` with at least `rows` rows is computed by `implementation`."""

    operation: str
    dtype: str
    rows: int
    implementation: str
    reason: str


def shortest_ms(
    calls: Mapping[str, Callable[[int], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The shortest time of each call, which is given the number of its turn; turn 0 warms up.

    What else runs on the machine can only lengthen a call (a busy core makes a whole parallel
    region wait for its time slice), so each is repeated often enough to meet a quiet moment. On one
    thread the thread's own clock leaves that out altogether.
    """
    shortest = dict.fromkeys(calls, float("inf"))
    for turn in range(turns):
        for name, call in calls.items():
            start = clock()
            call(turn)
            seconds = clock() - start
            if turn > 0:
                shortest[name] = min(shortest[name], seconds * 1000)
    return shortest


def faster(chosen: str, times: Mapping[str, float]) -> str:
    """The fastest, but what is chosen already stays unless the other is clearly faster."""
    fastest = min(times, key=times.__getitem__)
    if chosen in times and times[fastest] > _MARGIN * times[chosen]:
        return chosen
    return fastest


def times_text(times: Mapping[str, float]) -> str:
    """ "torch 1.20 ms, native 0.80 ms"."""
    return ", ".join(f"{name} {duration_text(ms / 1e3)}" for name, ms in times.items())


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
