"""How long the GUI thread takes: for one frame that is asked for, and for all that it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PySide6.QtCore import QAbstractEventDispatcher, QEventLoop, QObject, QTimer
from PySide6.QtWidgets import QApplication

SMOOTH_MS, STALL_MS = 50.0, 100.0


class Frames(NamedTuple):
    """Milliseconds of frames: of the GUI thread's own time, or of the clock where it says so."""

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
    """From the GUI thread's awakening to its next rest: seconds of the clock and of its own.
    `noted`: somebody called `note` meanwhile."""

    at: float
    wall: float
    own: float
    noted: bool


class LoopMeter(QObject):
    """Every turn of the event loop. A turn is what nobody can interrupt: the user waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Turn] = []
        self._noted = False
        self._began = (time.perf_counter(), time.thread_time())
        dispatcher = QAbstractEventDispatcher.instance()
        dispatcher.awake.connect(self._awake)
        dispatcher.aboutToBlock.connect(self._rests)

    def note(self, *_: Any) -> None:
        """Something that is looked for happens in this turn."""
        self._noted = True

    def restart(self) -> None:
        self.turns, self._noted = [], False

    def _awake(self) -> None:
        self._began = (time.perf_counter(), time.thread_time())

    def _rests(self) -> None:
        began, own = self._began
        now = time.perf_counter()
        self.turns.append(Turn(began, now - began, time.thread_time() - own, self._noted))
        self._noted = False
        self._began = (now, time.thread_time())

    def between(self, start: float, end: float) -> list[Turn]:
        return [turn for turn in self.turns if start <= turn.at < end]


def loop_figures(turns: Sequence[Turn], seconds: float) -> dict[str, Any]:
    """Of the turns of so many seconds: the thread's share, stalls, and frames (noted turns)."""
    walls = [turn.wall * 1e3 for turn in turns]
    return {
        "gui_ms_per_s": sum(turn.own for turn in turns) * 1e3 / seconds,
        "frame_ms": Frames.of([t.wall * 1e3 for t in turns if t.noted])._asdict(),
        "own_ms": Frames.of([t.own * 1e3 for t in turns if t.noted])._asdict(),
        "longest_ms": max(walls, default=0.0),
        "over_50_ms": sum(wall > SMOOTH_MS for wall in walls),
        "over_100_ms": sum(wall > STALL_MS for wall in walls),
    }
