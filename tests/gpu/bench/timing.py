"""Times work on a device: many turns in a CUDA graph, or launched one by one where it cannot be
captured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.errors import UnsupportedModelError
from engine.runner.cuda_capture import CudaCapture

ROTATED_BYTES = 256 * 2**20
"""Inputs rotate through so much memory, several times what a GPU's cache holds."""
_TURNS, _REPEATS, _LONGEST_S = 20, 7, 0.5


class Timed(NamedTuple):
    """Median and spread (largest less smallest) of the repeats, seconds a turn. method: "graph",
    "events" (launched one by one, the gaps between launches included) or "clock"."""

    seconds: float
    spread: float
    method: str
    turns: int

    def as_dict(self) -> dict[str, object]:
        return {
            "us": self.seconds * 1e6, "spread_us": self.spread * 1e6, "method": self.method,
            "turns": self.turns,
        }  # fmt: skip


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def num_sets(nbytes: float, device: torch.device) -> int:
    """How many input sets of `nbytes` to rotate through, so that no cache holds them."""
    if device.type != "cuda":
        return 2
    return int(min(64, max(2, -(-ROTATED_BYTES // max(1, int(nbytes))))))


@torch.inference_mode()
def time_turns(work: Callable[[int], object], device: torch.device) -> Timed:
    """Time work(turn), which takes the input set `turn` modulo their number."""
    if device.type != "cuda":
        return _by_clock(work)
    work(0)
    synchronize(device)
    began = time.perf_counter()
    for turn in range(3):
        work(turn)
    synchronize(device)
    once = (time.perf_counter() - began) / 3
    turns = int(min(_TURNS, max(2, _LONGEST_S / max(once, 1e-7))))
    try:
        return _by_graph(work, device, turns)
    except (RuntimeError, UnsupportedModelError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        synchronize(device)  # raises where the device itself is in trouble
        return _by_events(work, device, turns)


def _by_graph(work: Callable[[int], object], device: torch.device, turns: int) -> Timed:
    """Captured as the engine does it: where that fails, what is measured next is not spoilt."""

    def all_turns() -> None:
        for turn in range(turns):
            work(turn)

    graph = CudaCapture(device)(all_turns)
    graph.replay()
    found = [_between_events(graph.replay, device) / turns for _ in range(_REPEATS)]
    return Timed(statistics.median(found), max(found) - min(found), "graph", turns)


def _by_events(work: Callable[[int], object], device: torch.device, turns: int) -> Timed:
    def all_turns() -> None:
        for turn in range(turns):
            work(turn)

    found = [_between_events(all_turns, device) / turns for _ in range(_REPEATS)]
    return Timed(statistics.median(found), max(found) - min(found), "events", turns)


def _between_events(work: Callable[[], object], device: torch.device) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def _by_clock(work: Callable[[int], object]) -> Timed:
    found = []
    for turn in range(3):
        began = time.perf_counter()
        work(turn)
        found.append(time.perf_counter() - began)
    return Timed(statistics.median(found), max(found) - min(found), "clock", 1)
