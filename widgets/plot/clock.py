"""`RedrawClock`: one clock for all live drawing, which measures and limits its cost.

Drawing takes the interpreter from the engine's thread: it has a maximum rate and a budget in
milliseconds of GUI work per second, and stops for hidden widgets.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from statistics import median
from typing import Protocol

import shiboken6
from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QRegion

_ACCOUNT_S = 5.0  # the account covers this long
_LONGEST_INTERVAL_MS = 1000
BEAT_S, _SILENT_BEAT_S = 0.45, 1.0
"""Time between two beats, and the same without snapshots: rates fall, and figures grow old."""
_TURN_S = 0.004  # of drawing, before the event loop has its turn: a first token does not wait
work_time = time.thread_time
"""CPU time of this thread: waiting for a busy core does not count as work."""


class Redrawable(Protocol):
    """A widget that the clock redraws. It may be hidden or deleted."""

    def isVisible(self) -> bool: ...

    def visibleRegion(self) -> QRegion: ...

    def wants_redraw(self) -> bool:
        """Whether a redraw would show anything new."""
        ...

    def redraw(self) -> None: ...


def _is_seen(member: Redrawable) -> bool:
    """Whether any part is on the screen, not behind another tab or scrolled away."""
    return member.isVisible() and not member.visibleRegion().isEmpty()


class RedrawClock(QObject):
    """Calls `redraw` of its visible members at most `rate_hz` times a second.

    Figures that are read change less often, at its beats, and all of them with the same snapshot,
    the newest: header, labels of charts, and texts of views (by the signal `beat`). A beat is drawn
    at once.

    The rate drops as far as needed to stay within `budget_ms_per_s`, but not below one redraw a
    second. The timer runs only while a visible member wants a redraw: call `wake` when there is
    something new."""

    beat = Signal()
    """Texts change now: show those of the newest snapshot."""

    def __init__(
        self, rate_hz: float = 4.0, budget_ms_per_s: float = 8.0, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.rate_hz = rate_hz
        self.budget_ms_per_s = budget_ms_per_s
        self._members: weakref.WeakSet[Redrawable] = weakref.WeakSet()
        self._unseen: weakref.WeakSet[Redrawable] = weakref.WeakSet()  # by the last tick
        self._costs: deque[tuple[float, float]] = deque()  # (when, seconds)
        self._rounds: deque[float] = deque(maxlen=5)  # seconds of work of the last rounds
        self._spent_in_round = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.CoarseTimer)
        self._timer.timeout.connect(self._tick)
        self._due: deque[Redrawable] = deque()  # of this round, not drawn yet
        self.is_beat = True
        """Whether figures may change: False only within a redraw between two beats."""
        self._beat_at = -math.inf
        self._ticked_at = 0.0
        self._beat = QTimer(self)
        self._beat.setSingleShot(True)
        self._beat.timeout.connect(self._draw_beat)
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.timeout.connect(self._draw)

    def add(self, member: Redrawable) -> None:
        """Redraw `member` whenever it is visible and wants it. Holds a weak reference."""
        self._members.add(member)

    @property
    def is_running(self) -> bool:
        return self._timer.isActive()

    @property
    def redraw_ms_per_s(self) -> float:
        """Milliseconds of drawing work per second, over the last five seconds."""
        self._forget(time.perf_counter())
        return sum(seconds for _, seconds in self._costs) * 1e3 / _ACCOUNT_S

    @property
    def interval_ms(self) -> int:
        """Time between two redraws: from the rate, or longer to stay within the budget."""
        # the median: the first painting of a window is no measure of the next
        round_ms = median(self._rounds) * 1e3 if self._rounds else 0.0
        for_budget = round_ms * 1e3 / self.budget_ms_per_s
        return round(min(max(1e3 / self.rate_hz, for_budget), _LONGEST_INTERVAL_MS))

    def wake(self) -> None:
        """Start the timer: a member has something new."""
        if not self._timer.isActive():
            self._timer.start(self.interval_ms)

    def saw(self, member: Redrawable) -> None:
        """`member` is painted as it was before. Where it came back from behind a tab, which is no
        showing, nothing else may wake the clock: an idle engine sends no snapshots."""
        if member in self._unseen:
            self.wake()

    def take_snapshot(self) -> None:
        """There is a new snapshot: a beat follows when all have taken it, about twice a second."""
        if not self._beat.isActive():
            pace = max(BEAT_S, 0.9e-3 * self.interval_ms)
            since = time.perf_counter() - self._beat_at
            self._beat.start(round(1e3 * max(0.0, pace - since)))

    def _draw_beat(self) -> None:
        """Draw, and let the next tick be later by as much as this one is early."""
        self.beat.emit()
        early_ms = self.interval_ms - round((time.perf_counter() - self._ticked_at) * 1e3)
        self._beat_at = -math.inf
        self._tick()
        if self._timer.isActive():
            self._timer.start(self.interval_ms + max(0, early_ms))

    def charge(self, seconds: float) -> None:
        """Count the work of a paint (members call this from their paintEvent)."""
        self._spent_in_round += seconds
        now = time.perf_counter()
        self._costs.append((now, seconds))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._costs and self._costs[0][0] < now - _ACCOUNT_S:
            self._costs.popleft()

    def _tick(self) -> None:
        self._close_round()
        now = self._ticked_at = time.perf_counter()
        self.is_beat = now - self._beat_at >= _SILENT_BEAT_S
        if self.is_beat:
            self._beat_at = now
        members = [m for m in self._members if shiboken6.isValid(m)]
        wanting = [m for m in members if m.wants_redraw()]
        due = [m for m in wanting if _is_seen(m)]
        self._unseen = weakref.WeakSet(set(wanting).difference(due))
        if not due:
            self._timer.stop()
            self.is_beat = True
            return
        self._due.extend(member for member in due if member not in self._due)
        self._draw()
        if self._timer.interval() != self.interval_ms:
            self._timer.setInterval(self.interval_ms)

    def _draw(self) -> None:
        """Redraw due members for at most one turn; the rest follow in the next."""
        turn = 0.0
        while self._due and turn < _TURN_S:
            member = self._due.popleft()
            if shiboken6.isValid(member) and member.wants_redraw():
                start = work_time()
                member.redraw()
                self.charge(work_time() - start)
                turn += work_time() - start
        if self._due:
            self._rest.start(0)
        else:
            self.is_beat = True

    def _close_round(self) -> None:
        """Finish the account of the previous round: its painting happened after its tick."""
        if self._spent_in_round:
            self._rounds.append(self._spent_in_round)
        self._spent_in_round = 0.0
