"""A thread for each rank, with its cores or GPU.

    rank 0   thread, its OpenMP threads, weights and KV: NUMA node 0      or   cuda:0
    rank 1   thread, its OpenMP threads, weights and KV: NUMA node 1           cuda:1

Memory is on the NUMA node of the thread that first touches it, and OpenMP threads run on the cores
of the thread that started them. So a rank's weights are loaded by the thread that computes with
them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from engine.hardware.devices import is_cuda, make_current
from engine.hardware.idle_cores import nodes
from engine.kernels.cpu.library import Library
from engine.parallel.exchange import Exchange, PeerFailedError

T = TypeVar("T")


class Team:
    """The threads of all ranks. devices: of the ranks, in order. num_threads: of all ranks
    together, on the CPU. native: the compiled library for their barriers, if available."""

    def __init__(
        self, devices: Sequence[str], num_threads: int, native: Library | None = None
    ) -> None:
        self.devices = tuple(devices)
        self.size = len(devices)
        self.exchange = Exchange(self.size, native)
        self.cores = _cores(devices)
        # no reference to the team: they end with it, even if it is never closed
        self._threads = [
            ThreadPoolExecutor(1, f"rank-{rank}", _begin, (device, self.cores[rank]))
            for rank, device in enumerate(devices)
        ]
        self.set_threads(num_threads)

    def set_threads(self, num_threads: int) -> None:
        """Divide so many threads of the CPU among the ranks, from the next call on."""
        self._wanted = max(1, num_threads // self.size)

    def call(self, rank: int, work: Callable[[], T], num_threads: int | None = None) -> T:
        """Run a function on one rank's thread and wait for it; while the others are idle it may use
        more threads."""
        return self._threads[rank].submit(self._with_threads, work, num_threads).result()

    def together(self, work: Callable[[int], T]) -> list[T]:
        """Run a step on every rank and wait for all. Raises the first rank's error; the exchange is
        reset then."""
        futures = [
            thread.submit(self._part, rank, work) for rank, thread in enumerate(self._threads)
        ]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self.exchange.reset()
            raise next((e for e in errors if not isinstance(e, PeerFailedError)), errors[0])
        self.exchange.clear()
        return [future.result() for future in futures]

    def _part(self, rank: int, work: Callable[[int], T]) -> T:
        try:
            return self._with_threads(lambda: work(rank))
        except BaseException:
            self.exchange.fail(rank)
            raise

    def _with_threads(self, work: Callable[[], T], num_threads: int | None = None) -> T:
        wanted = num_threads or self._wanted
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
        return work()

    def close(self) -> None:
        """End the threads; their memory is free when they are gone."""
        for thread in self._threads:
            thread.shutdown(wait=True)

    @property
    def description(self) -> str:
        if is_cuda(self.devices[0]):
            return f"tensor parallel on {', '.join(self.devices)}"
        where = ", one NUMA node each" if all(self.cores) else ""
        return f"{self.size} tensor parallel ranks, {self._wanted} threads each{where}"


def _begin(device: str, cores: frozenset[int]) -> None:
    make_current(device)
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread, and those that it starts


def _cores(devices: Sequence[str]) -> list[frozenset[int]]:
    """Cores of each rank, if there are enough NUMA nodes; else empty sets: any core."""
    found, size = nodes(), len(devices)
    if is_cuda(devices[0]) or len(found) < size or not _may_bind():
        return [frozenset()] * size
    bounds = [rank * len(found) // size for rank in range(size + 1)]
    return [frozenset().union(*found[first:last]) for first, last in itertools.pairwise(bounds)]


def _may_bind() -> bool:
    """Whether threads can be bound to cores."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS and Windows; a sandbox may forbid it
        return False
    return True
