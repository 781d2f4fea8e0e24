"""Delivers the engine's events to the GUI thread: urgent ones at once, the rest throttled.

    engine thread                                  GUI thread
    put(event) --> deque, one posted wake-up -->   answers, first tokens, ends: at once
                                                   text: when a short timer fires (`TextThrottle`)
                                                   snapshots: less often (`SnapshotThrottle`)

`put` appends to a deque and posts at most one wake-up: the engine never waits for the window.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from statistics import median
from threading import Lock
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer

from app.clients.target import Event
from app.storage.model_sources import STARTER_TITLE, is_starter
from app.wire.snapshots import merge_snapshots
from engine import messages
from engine.snapshot import EngineSnapshot, ModelInfo

if TYPE_CHECKING:
    from app.link.bridge import EngineBridge

SHORTEST_MS, LONGEST_MS = 66, 200
"""Interval of text updates while streaming. 15 per second look smooth; below 5 they stutter."""
SHARE = 0.03
"""Share of a CPU core that the window may use while replies stream."""
_MEASURED_S = 0.5
_IDLE_S = 1.5
_STEEPEST = 1.4  # change of the interval from one measurement to the next


class TextThrottle:
    """`interval_ms` between two text updates, from the CPU time of the calling thread.

    Call `mark` at every update. The interval grows while the thread is busy for more than `SHARE`
    of the time, and shrinks again below it. All work of the thread counts, so text yields to charts
    and to the user.
    """

    def __init__(
        self,
        work: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._work, self._clock = work, clock
        self._interval = float(SHORTEST_MS)
        self._since = self._marked = clock()
        self._work_since = work()

    @property
    def interval_ms(self) -> int:
        return round(self._interval)

    def mark(self) -> None:
        now, work = self._clock(), self._work()
        was_idle = now - self._marked > _IDLE_S
        self._marked = now
        elapsed = now - self._since
        if not was_idle and elapsed < _MEASURED_S:
            return
        if not was_idle:  # what was done before a pause has nothing to do with text
            change = (work - self._work_since) / elapsed / SHARE
            self._interval *= min(max(change, 1 / _STEEPEST), _STEEPEST)
            self._interval = min(max(self._interval, SHORTEST_MS), LONGEST_MS)
        self._since, self._work_since = now, work


class SnapshotThrottle:
    """`interval_ms` between two snapshots shown, from the CPU time of showing one.

    Use `measure` around the showing. Skipped snapshots are merged into the next: no step or sample
    is lost.
    """

    SHORTEST_MS, LONGEST_MS = 250, 1000
    SHARE = 0.006
    """Share of a CPU core, without drawing: charts have their own budget."""

    def __init__(self, work: Callable[[], float] = time.thread_time) -> None:
        self._work = work
        # the median of some: work that is done once in a while is no measure of the next
        self._costs: deque[float] = deque(maxlen=5)

    @property
    def interval_ms(self) -> int:
        needed = median(self._costs) * 1e3 / self.SHARE if self._costs else 0.0
        return round(min(max(needed, self.SHORTEST_MS), self.LONGEST_MS))

    @contextmanager
    def measure(self) -> Iterator[None]:
        began = self._work()
        try:
            yield
        finally:
            self._costs.append(self._work() - began)


_WAKE = QEvent.Type(QEvent.registerEventType())


class EventDispatcher(QObject):
    """Delivers to `receiver`. Lives in the GUI thread; only `put` is called elsewhere.

    Text, progress and snapshots wait for a timer that runs only while something is pending;
    snapshots wait for their throttle too.
    """

    def __init__(self, receiver: EngineBridge) -> None:
        super().__init__(receiver)
        self._receiver = receiver
        self.is_closed = False
        """Later events wait for `close`."""
        self.inbox: deque[Event] = deque()
        """Events that the GUI thread has not taken yet."""
        self._lock = Lock()  # of the two flags below, which both threads set
        self._wake_posted = False
        self._timer_soon = False
        self._outputs: list[messages.OutputEvent] = []
        self._progress: messages.LoadProgress | None = None
        self.snapshots: list[EngineSnapshot] = []  # pending
        self._last_model: tuple[ModelInfo, ModelInfo] | None = None  # as reported, and as shown
        self.snapshot_at = 0.0  # when the last state was handed on
        self._text_throttle = TextThrottle()  # of text: that of all replies is handed on together
        self._snapshot_throttle = SnapshotThrottle()
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.flush)
        self._state_timer = QTimer(self)  # a state is shown in a turn of its own, after the text
        self._state_timer.setSingleShot(True)
        self._state_timer.timeout.connect(self._flush_snapshots)

    # The engine's thread ---------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Queue the event; wake the GUI thread if needed."""
        self.inbox.append(event)
        if self.is_closed:
            return
        urgent = _is_urgent(event)
        if self._timer_soon and not urgent:
            return
        levels = Qt.EventPriority
        self._wake(levels.HighEventPriority if urgent else levels.NormalEventPriority)

    def _wake(self, priority: Qt.EventPriority) -> None:
        with self._lock:
            if self._wake_posted:
                return
            self._wake_posted = True
        QCoreApplication.postEvent(self, QEvent(_WAKE), priority.value)

    # The GUI thread --------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        active = self._timer.isActive() or self._state_timer.isActive()
        return not (active or self.inbox or self._outputs or self.snapshots)

    def event(self, event: QEvent) -> bool:
        if event.type() != _WAKE:
            return super().event(event)
        with self._lock:
            self._wake_posted = False
        try:
            self.deliver()
        finally:  # a receiver that fails does not keep the rest
            if self.inbox:
                self._wake(Qt.EventPriority.NormalEventPriority)
            self._run_timer()
        return True

    def deliver(self) -> None:
        """Take queued events in order: deliver urgent ones, keep the rest for the timer."""
        while self.inbox:
            event = self.inbox.popleft()
            if isinstance(event, messages.OutputEvent):
                self._outputs.append(event)
                if _is_urgent(event):
                    self.flush_outputs()
            elif isinstance(event, messages.SnapshotEvent):
                self.snapshots.append(event.snapshot)
            elif isinstance(event, messages.LoadProgress):
                self._progress = event
            else:
                self.flush_outputs()
                self._flush_progress()
                self._receiver.take_answer(event)

    def flush(self) -> None:
        """Deliver what waits for the timer."""
        with self._lock:
            self._timer_soon = False
        self.deliver()
        self.flush_outputs()
        self._flush_progress()
        if self.snapshots and self._snapshot_due_ms() <= 0:
            self._state_timer.start(0)
        self._run_timer()

    def keep_written(self) -> None:
        """Deliver pending text and drop the rest, which is outdated."""
        written = [event for event in self.inbox if isinstance(event, messages.OutputEvent)]
        self.inbox.clear()
        self._outputs += written
        self.flush_outputs()
        self._progress = None

    def close(self) -> None:
        """Deliver the last events; ignore later ones."""
        self.is_closed = True
        self.deliver()
        self.flush_outputs()
        self._timer.stop()
        self._state_timer.stop()
        self.snapshots.clear()

    def flush_outputs(self) -> None:
        if self._outputs:
            self._text_throttle.mark()
            batch, self._outputs = self._outputs, []
            self._receiver.take_outputs(batch)

    def _flush_progress(self) -> None:
        if self._progress is not None:
            latest, self._progress = self._progress, None
            self._receiver.take_progress(latest)

    def _flush_snapshots(self) -> None:
        pending, self.snapshots = self.snapshots, []
        for _, alike in groupby(pending, key=lambda s: s.settings_since):
            merged = merge_snapshots(list(alike))
            merged = dataclasses.replace(merged, model=self._titled(merged.model))
            self.snapshot_at = time.perf_counter()
            with self._snapshot_throttle.measure():
                self._receiver.take_snapshot(merged)

    def _titled(self, model: ModelInfo) -> ModelInfo:
        """`titled(model)`; most states have the same."""
        if self._last_model is None or self._last_model[0] is not model:
            self._last_model = model, titled(model)
        return self._last_model[1]

    # When ------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        """Start the timer if something is pending and it does not run yet."""
        if self.is_closed:
            return
        if self._outputs or self._progress:
            wait = self._text_throttle.interval_ms
        elif self.snapshots and not self._state_timer.isActive():
            wait = max(self._text_throttle.interval_ms, self._snapshot_due_ms())
        else:
            return
        if self._timer.isActive() and self._timer.remainingTime() <= wait:
            return
        with self._lock:
            self._timer_soon = wait <= self._text_throttle.interval_ms
        self._timer.start(wait)

    def _snapshot_due_ms(self) -> int:
        """The last snapshot before the engine idles does not wait for the throttle."""
        if self.snapshots[-1].requests:
            interval = self._snapshot_throttle.interval_ms
        else:
            interval = SnapshotThrottle.SHORTEST_MS
        elapsed = (time.perf_counter() - self.snapshot_at) * 1000
        return max(0, int(interval - elapsed))


def _is_urgent(event: Event) -> bool:
    if isinstance(event, messages.OutputEvent):
        return event.is_first or event.finish_reason is not None
    return not isinstance(event, messages.SnapshotEvent | messages.LoadProgress)


def titled(model: ModelInfo) -> ModelInfo:
    """The model with its display name: the starter's folder name is not one."""
    return dataclasses.replace(model, name=STARTER_TITLE) if is_starter(model.path) else model
