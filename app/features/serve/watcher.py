"""Looks at one connection every two seconds, while it is asked to; never twice at once."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.connection import Connection
from app.clients.look import LOOK_TIMEOUT_S as TIMEOUT_S
from app.clients.look import LiveFigures, Looker
from app.clients.target import LinkState, Probe, Target
from app.link.tasks import Task, run_task
from engine.errors import ErrorInfo
from widgets.live.figures import StatTrends

EVERY_MS = 2000
ASKED_EVERY = 5
"""Looks from one question to the next, while the dialect is not known."""

TREND = "tokens"


class Watcher(QObject):
    """`changed`: state or figures. One whose dialect is not known is asked who it is, until it
    answers."""

    changed = Signal()
    recognised = Signal(object)  # Probe

    def __init__(self, connection: Connection, key: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.connection = connection
        self.state = LinkState.CLOSED
        self.words = ""
        """Why it does not answer."""
        self.figures: LiveFigures | None = None
        self.trends = StatTrends((TREND,))
        self._key = key
        self._skipped = 0
        self._looker: Looker | None = None
        self._task: Task | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(EVERY_MS)
        self._timer.timeout.connect(self.look)

    @property
    def is_on(self) -> bool:
        return self._timer.isActive()

    def set_on(self, is_on: bool) -> None:
        if is_on == self.is_on:
            return
        if is_on:
            self._timer.start()
            if self.state is LinkState.CLOSED:
                self._say(LinkState.CONNECTING, "")
            self.look()
        else:
            self._timer.stop()

    def look(self) -> None:
        """Look now, unless a look is under way."""
        dialect = self.connection.dialect
        if self._task is not None:
            return
        if dialect is None:
            self._ask()
            return
        if self._looker is None:
            self._looker = Looker(self.connection.target(self._key), dialect)
        self._task = run_task(self, self._looker.look, self._on_figures, self._on_error)

    def _ask(self) -> None:
        target, self._skipped = self.connection.target(self._key), self._skipped + 1
        if self._skipped % ASKED_EVERY == 1:
            self._task = run_task(self, lambda: _probe(target), self._on_probe, self._on_error)

    def _on_probe(self, probe: Probe) -> None:
        self._task = None
        self.recognised.emit(probe)

    def close(self) -> None:
        """No more looks. A look under way ends by itself, and tells nobody."""
        self._timer.stop()
        looker, self._looker = self._looker, None
        if self._task is not None:
            self._task.cancel()
        if looker is not None:
            looker.close()

    def _on_figures(self, figures: LiveFigures) -> None:
        self._task = None
        self.figures = figures
        rate = figures.tokens_per_s
        if rate is not None and rate == rate:
            self.trends.add(time.perf_counter(), {TREND: rate})
        self._say(LinkState.LIVE, "")

    def _on_error(self, error: ErrorInfo) -> None:
        self._task = None
        was_there = self.figures is not None
        self._say(
            LinkState.RECONNECTING if was_there else LinkState.STALE,
            f"{error.cause} {error.remedy}".strip(),
        )

    def _say(self, state: LinkState, words: str) -> None:
        self.state, self.words = state, words
        self.changed.emit()


def _probe(target: Target) -> Probe:
    """In a task."""
    from app.clients.probe import probe

    return probe(target, TIMEOUT_S)
