"""Watches the engine process from outside: a hang that holds the interpreter reports nothing.

What counts as a beat of the process:

    until it answers a load or a change of settings    data, CPU time or reads from the disk
    then                                               data: its server sends some each second
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from engine import messages as m
from engine.heartbeat import COMMAND_S, SLOW_S, Beat, Heartbeat, Pulse, Watch

BUSY_SHARE = 0.05
"""Of one core. Threads that wait for the interpreter look for it 200 times a second."""
_ANSWERS = (
    m.Loaded, m.LoadFailed, m.Reconfigured, m.ReconfigureFailed, m.EngineCrashed
)  # fmt: skip


class Activity:
    """Whether a process computes or reads from the disk."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at, self._cpu_s, self._num_read = 0.0, 0.0, 0

    def has_moved(self) -> bool:
        """Since the last call. True also where the OS does not report it."""
        now = time.monotonic()
        try:
            process = psutil.Process(self._pid)
            times = process.cpu_times()
            cpu_s = times.user + times.system
            num_read = process.io_counters().read_bytes if hasattr(process, "io_counters") else 0
        except (OSError, RuntimeError, psutil.Error):
            return True
        is_busy = cpu_s - self._cpu_s > BUSY_SHARE * (now - self._at)
        has_read = num_read != self._num_read
        self._at, self._cpu_s, self._num_read = now, cpu_s, num_read
        return is_busy or has_read


class ChildWatch:
    """Call `look` about every LOOK_S on one thread; any thread may use the rest. `clock`: the one
    of `heard_at`. It and `has_moved` are replaced in tests."""

    def __init__(
        self,
        pid: int,
        has_moved: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._doing = "starting the engine process"
        self._silent = f"no data from process {pid}"
        self._has_moved = has_moved or Activity(pid).has_moved
        self._heard_at = clock()
        self._heartbeat = Heartbeat(clock)
        self._beat(self._heard_at)
        self._watch = Watch(self._heartbeat)
        self._is_loading = True
        self._reported: tuple[m.Stalled, float] | None = None  # by the engine itself, and when

    @property
    def stalled(self) -> m.Stalled | None:
        reported = self._reported
        return self._watch.stalled or (reported[0] if reported is not None else None)

    @property
    def pulse(self) -> Pulse | None:
        """None while the engine answers."""
        reported, stalled, seconds = self._reported, self._watch.stalled, self._heartbeat.seconds
        if stalled is not None and seconds >= COMMAND_S:  # else `look` is about to find a beat
            return Pulse(stalled.doing, seconds, is_stuck=True)
        if reported is not None:
            event, at = reported
            since = self._heartbeat.clock() - at
            return Pulse(event.doing, event.seconds + since, is_stuck=True)
        return None

    def sent(self, command: m.Command) -> None:
        self._is_loading |= isinstance(command, m.Load | m.Reconfigure)

    def heard(self, event: object) -> None:
        if isinstance(event, m.LoadProgress):
            self._is_loading = True
        elif isinstance(event, _ANSWERS):
            self._is_loading = False
        if isinstance(event, m.Stalled):
            self._reported = event, self._heartbeat.clock()
        elif isinstance(event, m.Recovered | m.EngineCrashed):
            self._reported = None

    def look(self, heard_at: float) -> m.Stalled | m.Recovered | None:
        """`heard_at`: when data last arrived; 0 before the first."""
        now = self._heartbeat.clock()
        if heard_at > self._heard_at:
            self._heard_at, self._doing = heard_at, self._silent
            self._beat(heard_at)
        elif self._is_loading and now - self._heard_at < SLOW_S and self._has_moved():
            self._beat(now)
        event = self._watch.look()
        if isinstance(event, m.Recovered) and self._reported is not None:
            return self._reported[0]  # the process answers, its engine does not
        return event

    def _beat(self, at: float) -> None:
        self._heartbeat.beat = Beat(self._doing, at, COMMAND_S)
