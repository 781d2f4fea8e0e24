"""The engine's thread for its callers: commands in through a queue, events out through a callback.

    caller  -- submit(Command) -->  queue  -->  EngineWorker: commands, one step, events, snapshot
    caller  <-- on_event(Event) --------------------------------------------------'
                     '------------  EngineThread: looks at the worker's heartbeat each second

Neither side blocks: `submit` returns at once, and `on_event` runs on one of these threads and must
return quickly (the window's bridge appends to a deque).

A worker whose beat is overdue (see `heartbeat`) is reported as Stalled. The next Load abandons it:
a hang in native code cannot be ended, so its thread and its memory stay until it returns. A worker
that dies is reported as EngineCrashed, and another one waits for Load.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from engine import messages as m
from engine.engine_worker import EngineWorker
from engine.errors import ErrorInfo
from engine.heartbeat import LOOK_S, Heartbeat, Pulse, Watch, unresponsive
from engine.served_engine import EngineFactory, make_engine

log = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """A worker and the thread that watches it. `factory`, `clock` and `look_s` are replaced in
    tests."""

    def __init__(
        self,
        on_event: Callable[[m.Event], None],
        *,
        snapshot_interval_s: float = 0.05,
        name: str = "engine",
        factory: EngineFactory = make_engine,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__(name=f"{name}-watch", daemon=True)
        self._emit = on_event
        self._wake = threading.Event()
        self._make = lambda: EngineWorker(
            on_event, self._wake.set, Heartbeat(clock), snapshot_interval_s=snapshot_interval_s,
            name=name, factory=factory,
        )  # fmt: skip
        self._look_s = look_s
        self._is_left = False
        # of the next two, which change together; reentrant: the garbage collector may submit
        self._lock = threading.RLock()
        self._worker = self._make()
        self._watch = Watch(self._worker.heartbeat)

    # -- called from any thread -------------------------------------------------------------

    def start(self) -> None:
        self._worker.start()
        super().start()

    @property
    def pulse(self) -> Pulse:
        with self._lock:
            worker, watch = self._worker, self._watch
        heartbeat = worker.heartbeat
        is_alive = self.is_alive() and worker.is_alive() and not worker.has_died
        return Pulse(heartbeat.beat.doing, heartbeat.seconds, watch.stalled is not None, is_alive)

    def submit(self, command: m.Command) -> None:
        """A Load replaces a stuck worker."""
        with self._lock:  # a worker that was replaced serves no more commands
            stalled = self._watch.stalled if isinstance(command, m.Load) else None
            if stalled is not None and not self._worker.is_stopping:
                self._replace(m.EngineCrashed(unresponsive(stalled), "", is_restarting=True))
            self._worker.submit(command)

    def cancel_load(self) -> None:
        """Cancel the loads and changes of settings submitted so far; later ones run."""
        self._worker.cancel_load()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Abort everything and end the thread. True if it ended within the time; a stuck worker is
        left behind."""
        with self._lock:  # a worker that stops is not replaced
            worker = self._worker
            worker.stop()
        if worker.is_alive():
            worker.join(timeout_s)
        self._is_left = True
        self._wake.set()
        if self.is_alive():
            self.join(timeout_s)
        return not (self.is_alive() or worker.is_alive())

    def _replace(self, why: m.EngineCrashed) -> None:
        """Abandon the worker. Another one reports why, then serves what is left."""
        left = self._worker.abandon()
        self._worker = self._make()
        self._watch = Watch(self._worker.heartbeat)
        self._worker.submit(why)
        for submitted in left:
            self._worker.take_over(submitted)
        self._worker.start()

    # -- the thread -------------------------------------------------------------------------

    def run(self) -> None:
        while not self._is_left:
            try:
                if self._has_ended():
                    return
                self._look()
            except BaseException:
                log.exception("watching the engine failed")
            self._wake.wait(self._look_s)
            self._wake.clear()

    def _has_ended(self) -> bool:
        worker = self._worker
        if worker.has_ended:
            worker.join(self._look_s)
        return worker.is_stopping and not worker.is_alive()

    def _look(self) -> None:
        with self._lock:
            worker = self._worker
            if (worker.has_died or not worker.is_alive()) and not worker.is_stopping:
                self._replace(m.EngineCrashed(_dead(worker.heartbeat.beat.doing), ""))
                return
            event = self._watch.look()
        if isinstance(event, m.Stalled):
            log.warning("no answer for %.0f s (%s)\n%s", event.seconds, event.doing, _stack(worker))
        if event is not None:
            self._emit(event)


def _dead(doing: str) -> ErrorInfo:
    during = f" ({doing})" if doing else ""
    return ErrorInfo(
        f"The engine thread ended unexpectedly{during}.",
        "Restart the engine. If it ends again, report the bug with the log.",
        "EngineDied",
    )


def _stack(worker: threading.Thread) -> str:
    """Where the worker is."""
    frame = sys._current_frames().get(worker.ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))
