"""How long the GUI thread takes: for one frame that is asked for, and for all that it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PySide6.QtCore import QAbstractEventDispatcher, QEventLoop, QObject, Qt, QTimer
from PySide6.QtWidgets import QApplication

SMOOTH_MS, STALL_MS = 50.0, 100.0
BEAT_MS = 10


class Frames(NamedTuple):
    """Milliseconds of frames: of the GUI thread's own time."""

    median: float
    p99: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Frames:
        if not values:
            return cls(0.0, 0.0, 0.0, 0)
        array = np.asarray(values)
        return cls(
            float(np.median(array)), float(np.percentile(array, 99)), float(array.max()), len(array)
        )

    @property
    def cells(self) -> tuple[str, ...]:
        return (f"{self.median:.1f}", f"{self.p99:.1f}", f"{self.max:.1f}", f"{self.count:,}")


def drain() -> None:
    """Let the window do all that it has to do now: events, layouts, painting."""
    for _ in range(3):  # an event may ask for a layout, and that for a painting
        QApplication.processEvents()


def pause(milliseconds: int) -> None:
    """Let the window live."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def wait_for(condition: Callable[[], bool], timeout_s: float, interval_ms: int = 50) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for nothing")
        pause(interval_ms)


def frame_ms(do: Callable[[], object]) -> float:
    """Milliseconds of this thread's own time for `do` and all that follows from it."""
    drain()
    began = time.thread_time()
    do()
    drain()
    return (time.thread_time() - began) * 1e3


class Turn(NamedTuple):
    """What the GUI thread did between two rests: seconds of its own time. `noted`: somebody called
    `note` meanwhile."""

    own: float
    noted: bool


class LoopMeter(QObject):
    """Every turn of the event loop, and for how long a beat of 10 ms had to wait for one to end.

    The environment must have QT_NO_GLIB=1: with Qt's own dispatcher text and its painting are one
    turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Turn] = []
        self.waits: list[float] = []  # seconds of the clock
        self._noted = False
        self._own = time.thread_time()
        self._beat_at = time.perf_counter()
        self._beat = QTimer(self)
        self._beat.setTimerType(Qt.TimerType.PreciseTimer)
        self._beat.timeout.connect(self._on_beat)
        self._beat.start(BEAT_MS)
        QAbstractEventDispatcher.instance().aboutToBlock.connect(self._rests)

    def note(self, *_: Any) -> None:
        """Something that is looked for happens in this turn."""
        self._noted = True

    def restart(self) -> None:
        self.turns, self.waits, self._noted = [], [], False

    def stop(self) -> None:
        self._beat.stop()

    def _rests(self) -> None:
        own = time.thread_time()
        self.turns.append(Turn(own - self._own, self._noted))
        self._noted, self._own = False, own

    def _on_beat(self) -> None:
        now = time.perf_counter()
        self.waits.append(max(0.0, now - self._beat_at - BEAT_MS / 1e3))
        self._beat_at = now

    def figures(self, seconds: float) -> dict[str, Any]:
        """Of so many seconds since the last restart: the thread's share, waits, and frames (noted
        turns)."""
        waits = [wait * 1e3 for wait in self.waits]
        return {
            "gui_ms_per_s": sum(turn.own for turn in self.turns) * 1e3 / seconds,
            "frame_ms": Frames.of([t.own * 1e3 for t in self.turns if t.noted])._asdict(),
            "longest_wait_ms": max(waits, default=0.0),
            "over_50_ms": sum(wait > SMOOTH_MS for wait in waits),
            "over_100_ms": sum(wait > STALL_MS for wait in waits),
        }
