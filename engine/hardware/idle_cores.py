"""Cores that other programs leave idle, from the system's CPU times.

Imports no torch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

INTERVAL_S = 0.5
FIRST_S = 0.1
STALE_S = 2.0
"""Between two looks that far apart nothing was computed; the next one is taken after FIRST_S."""
SHARE = 0.005
"""Of the engine's time that may go into looking: on a machine with hundreds of processors the
system needs milliseconds for its accounts."""
_MORE = 0.65
"""Cores that must have become free before one more is counted: less than what makes it one fewer
would have the count swing with every look."""


class Used(NamedTuple):
    """CPU seconds since some fixed moment: of all programs, and of this one."""

    all: float
    own: float

    def others_since(self, before: Used) -> float:
        """CPU seconds of other programs since `before`."""
        return (self.all - before.all) - (self.own - before.own)


class FreeCores:
    """The number of threads, up to `most`, that have a core to themselves.

    read: the CPU times; where it raises OSError or RuntimeError, the use by other programs is
    unknown. running: see `others_running`. `latest`, `latest_others`: the last results of `count`
    and `others`.
    """

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        num_cores: int | None = None,
        read: Callable[[], Used] | None = None,
        running: Callable[[], int | None] | None = None,
    ) -> None:
        allowed = allowed_cores()
        self._running = running or others_running
        self._most = most
        self._num_cores = num_cores or len(allowed)
        self._read = read or partial(_processor_time, allowed)
        self._others: float | None = None
        self.latest = most
        self.latest_others: float | None = None
        self._wait = FIRST_S
        self._last = (clock(), self._accounts())

    def count(self, now: float) -> int:
        """At least one; all if the use by other programs is unknown."""
        others = self.others(now)
        if others is None:
            self.latest = self._most
            return self.latest
        left = self._num_cores - others
        wanted = max(1, min(self._most, int(left + 0.5)))
        if wanted < self.latest or left >= self.latest + _MORE:
            self.latest = wanted
        return self.latest

    def count_now(self, now: float) -> int:
        """`count`, or more where others have stopped since: its mean goes half a second back, or
        over all of a pause."""
        count = self.count(now)
        if count == self._most or (running := self._running()) is None:
            return count
        return max(count, min(self._most, self._num_cores - running))

    def others(self, now: float) -> float | None:
        """Cores used recently by other programs, plus those used now by other work of this one
        (`keeping_busy`); None if unknown."""
        if now - self._last[0] >= self._wait:
            self._look(now)
        here = threading.get_ident()
        beside = sum(count for thread, count in tuple(_busy.items()) if thread != here)
        self.latest_others = (self._others or 0.0) + beside if beside else self._others
        return self.latest_others

    def _look(self, now: float) -> None:
        (then, before), used = self._last, self._accounts()
        self._last = (now, used)
        if used is None or before is None:
            return
        self._others = max(0.0, used.others_since(before) / (now - then))
        # over a pause it is the mean of all of it, for want of anything better
        self._wait = FIRST_S if now - then > STALE_S else max(INTERVAL_S, self._cost_s / SHARE)

    def _accounts(self) -> Used | None:
        """None where there are none; then they are not read again."""
        began = time.perf_counter()
        try:
            used = self._read()
        except (OSError, RuntimeError, psutil.Error):
            self._wait, self._others = math.inf, None
            return None
        self._cost_s = time.perf_counter() - began
        return used


_LOOKS, _APART_S = 3, 0.0005


def others_running(file: Path = Path("/proc/loadavg")) -> int | None:
    """Threads of the whole system, but for this one, that run or wait for a core at this moment:
    the fewest of a few looks, for many run very briefly. None where Linux does not tell."""
    found: list[int] = []
    try:
        for look in range(_LOOKS):
            if look:
                time.sleep(_APART_S)
            found.append(int(file.read_text("ascii").split()[3].partition("/")[0]))
    except (OSError, ValueError, IndexError):
        return None
    return max(0, min(found) - 1)


class OtherPrograms:
    """The cores that other programs use, on average since this object was made. `read`: as in
    `FreeCores`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        read: Callable[[], Used] | None = None,
    ) -> None:
        self._clock, self._read = clock, read or partial(_processor_time, allowed_cores())
        self._began, self._before = clock(), self._accounts()

    def cores(self) -> float:
        """0 where that is unknown."""
        passed, used = self._clock() - self._began, self._accounts()
        if used is None or self._before is None or passed <= 0:
            return 0.0
        return max(0.0, used.others_since(self._before) / passed)

    def _accounts(self) -> Used | None:
        with suppress(OSError, RuntimeError, psutil.Error):
            return self._read()
        return None


_busy: dict[int, int] = {}  # by the thread that said so: a dict's items change in one piece


@contextmanager
def keeping_busy(num_threads: int) -> Iterator[None]:
    """Marks cores as used by other work of this program, in the calling thread and its helpers:
    engines of other threads then use fewer. (The system's CPU times do not separate threads of one
    program.)"""
    _busy[threading.get_ident()] = num_threads
    try:
        yield
    finally:
        del _busy[threading.get_ident()]


def _processor_time(allowed: frozenset[int]) -> Used:
    """Of the cores `allowed`. What runs at a lower priority than this process (`nice`) makes way
    for it, and is left out. Linux counts a virtual machine's `guest` time in `user` as well;
    `steal` is no program's. Windows counts interrupts in `system`."""
    names = ["user", "system", "irq", "softirq"]
    if _is_nice():  # our own time is counted as such
        names.append("nice")
    if len(allowed) < (os.cpu_count() or 1):
        each = psutil.cpu_times(percpu=True)
        times = [each[core] for core in allowed if core < len(each)]
    else:
        times = [psutil.cpu_times()]
    busy = sum(getattr(one, name, 0.0) for one in times for name in names)
    return Used(busy, time.process_time())


def _is_nice() -> bool:
    """Whether this process has a lower priority than usual; False where that is unknown."""
    with suppress(AttributeError, OSError):  # not on Windows; a sandbox may forbid it
        return os.nice(0) > 0
    return False


def allowed_cores() -> frozenset[int]:
    """The logical cores that this process may use; all where that is unknown."""
    with suppress(AttributeError, OSError):  # not on macOS and Windows; a sandbox may forbid it
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
