"""How many cores other programs keep busy, from the system's own accounts of processor time."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Used(NamedTuple):
    """Seconds of processor time since some moment: of all programs, and of this one."""

    all: float
    own: float


class Crowding:
    """`others` is asked before each step, and looks from time to time. read: the accounts; raises
    OSError or RuntimeError where there are none, and then nothing is ever said."""

    def __init__(self, clock: Callable[[], float], read: Callable[[], Used] | None = None) -> None:
        self._read = read or Accounts().read
        self._others: float | None = None
        self.latest: float | None = None  # what `others` said last
        self._wait = FIRST_S
        self._last = (clock(), self._accounts())

    def others(self, now: float) -> float | None:
        """Cores that other programs used lately, and other work of this one (`keeping_busy`) uses
        now; None where it is not known (yet)."""
        if now - self._last[0] >= self._wait:
            self._look(now)
        beside = _kept_busy()
        self.latest = self._others if not beside else (self._others or 0.0) + beside
        return self.latest

    def _look(self, now: float) -> None:
        (then, before), used = self._last, self._accounts()
        self._last = (now, used)
        if used is None or before is None:
            return
        theirs = (used.all - before.all) - (used.own - before.own)
        self._others = max(0.0, theirs / (now - then))
        # over a pause it is the mean of all of it, for want of anything better
        self._wait = FIRST_S if now - then > STALE_S else max(INTERVAL_S, self._cost_s / SHARE)

    def _accounts(self) -> Used | None:
        """Where there are none, nobody asks again."""
        began = time.perf_counter()
        try:
            used = self._read()
        except (OSError, RuntimeError, psutil.Error):
            self._wait, self._others = math.inf, None
            return None
        self._cost_s = time.perf_counter() - began
        return used


_busy: dict[int, int] = {}  # by the thread that said so: a dict's items change in one piece


@contextmanager
def keeping_busy(num_threads: int) -> Iterator[None]:
    """Work of this program's own, computed by the thread that calls and its helpers: to engines of
    other threads so many cores are taken meanwhile. (The system's accounts know a program as a
    whole: what of it is an engine's they do not tell.)"""
    _busy[threading.get_ident()] = num_threads
    try:
        yield
    finally:
        del _busy[threading.get_ident()]


def _kept_busy() -> int:
    here = threading.get_ident()
    return sum(count for thread, count in tuple(_busy.items()) if thread != here)


class Accounts:
    """Processor time of the cores that this process may use. What runs at a lower priority than
    this process (`nice`) makes way for it, and is left out."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        allowed = allowed_cores()
        self._only = allowed if len(allowed) < cores else frozenset()
        self._makes_way = not _is_nice()

    def read(self) -> Used:
        if self._only:
            each = psutil.cpu_times(percpu=True)
            busy = sum(self._busy(times) for core, times in enumerate(each) if core in self._only)
        else:
            busy = self._busy(psutil.cpu_times())
        return Used(busy, time.process_time())

    def _busy(self, times: object) -> float:
        """Linux counts a virtual machine's `guest` time in `user` as well; `steal` is no
        program's. Windows counts interrupts in `system`."""
        names = ["user", "system", "irq", "softirq"]
        if not self._makes_way:
            names.append("nice")
        return sum(getattr(times, name, 0.0) for name in names)


def allowed_cores() -> frozenset[int]:
    """The logical cores that this process may use."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS and Windows
        return frozenset(range(os.cpu_count() or 1))


def _is_nice() -> bool:
    """Whether this process itself runs at a low priority, so that its time is counted as such."""
    try:
        return os.nice(0) > 0
    except (AttributeError, OSError):
        return False


SYSFS = Path("/sys/devices/system/node")


def nodes(
    folder: Path = SYSFS, allowed: frozenset[int] | None = None
) -> tuple[frozenset[int], ...]:
    """The logical cores of each node that this process may use, in the order of the nodes' numbers;
    nodes without any (of memory alone, or of cores that it may not use) are left out. One node with
    all cores where the system does not tell. folder, allowed: given in tests."""
    allowed = allowed_cores() if allowed is None else allowed
    found = []
    for place in _folders(folder):
        try:
            cores = cores_of((place / "cpulist").read_text()) & allowed
        except (OSError, ValueError):  # half of it says nothing of the machine
            return (allowed,)
        if cores:
            found.append(cores)
    return tuple(found) or (allowed,)


def cores_of(text: str) -> frozenset[int]:
    """Linux's list of cores: "0-3,8-11", a single "5", or nothing. Raises ValueError for others."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        begin, end = int(first), int(last) if dash else int(first)
        if not 0 <= begin <= end:
            raise ValueError(f"{part!r} is no range of cores")
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def _folders(folder: Path) -> list[Path]:
    numbered = [place for place in folder.glob("node[0-9]*") if place.name[4:].isdigit()]
    return sorted(numbered, key=lambda place: int(place.name[4:]))
