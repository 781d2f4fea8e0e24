"""Background tasks: run in a thread, deliver the result in the GUI thread.

run_task(owner, lambda: describe_model(path), self._show_report, self._show_error)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import shiboken6
from PySide6.QtCore import QObject, Qt, Signal, Slot

from engine.errors import ErrorInfo, InferdeckError, describe

T = TypeVar("T")


class Task(QObject):
    """One task. `cancel` drops its result; a running task is not interrupted."""

    _finished = Signal(object, object)  # result, ErrorInfo | None

    def __init__(
        self,
        owner: QObject,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[ErrorInfo], None],
    ) -> None:
        super().__init__()
        self._owner = owner
        self._work, self._done, self._failed = work, done, failed
        self._cancelled = False
        self._finished.connect(self._deliver, Qt.ConnectionType.QueuedConnection)
        # A daemon: exit does not wait for an import or a scan.
        self._thread = threading.Thread(target=self._run, name="task", daemon=True)

    def start(self) -> Task:
        _running.add(self)
        self._thread.start()
        return self

    def cancel(self) -> None:
        self._cancelled = True

    def join(self, timeout_s: float) -> None:
        """Drop its result and wait for its thread."""
        self.cancel()
        self._thread.join(max(0.0, timeout_s))
        if not self._thread.is_alive():
            _running.discard(self)

    def _run(self) -> None:
        result: Any = None
        error: ErrorInfo | None = None
        try:
            result = self._work()
        except BaseException as problem:  # the user reads any failure, a panic of native code too
            error = describe(problem)
        if shiboken6.isValid(self):
            self._finished.emit(result, error)

    @Slot(object, object)
    def _deliver(self, result: Any, error: ErrorInfo | None) -> None:
        self._thread.join()  # it has nothing left to do
        _running.discard(self)
        if self._cancelled or not shiboken6.isValid(self._owner):
            return
        if error is None:
            self._done(result)
        else:
            self._failed(error)


_running: set[Task] = set()
_Call = tuple[Callable[[], Any], Callable[[Any], None], Callable[[ErrorInfo], None]]


class LatestTask:
    """One task of `owner` at a time: starting another drops the result of the one before."""

    def __init__(self, owner: QObject) -> None:
        self._owner = owner
        self._task: Task | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def run(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[ErrorInfo], None]
    ) -> None:
        """As `run_task`; it is over when `done` or `failed` is called."""

        def deliver(then: Callable[[Any], None], outcome: Any) -> None:
            self._task = None
            then(outcome)

        self.cancel()
        self._task = run_task(self._owner, work, partial(deliver, done), partial(deliver, failed))

    def cancel(self) -> None:
        """Drop the result of the running task, if any."""
        if self._task is not None:
            self._task.cancel()
        self._task = None


class TaskQueue:
    """Tasks of `owner` one after another, in the order of the calls."""

    def __init__(self, owner: QObject) -> None:
        self._owner = owner
        self._task: Task | None = None
        self._waiting: deque[_Call] = deque()
        self._is_over = False

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def run(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[ErrorInfo], None]
    ) -> None:
        """As `run_task`; after `finish` in this thread."""
        self._waiting.append((work, done, failed))
        if self._is_over:
            self.finish(0)
        elif self._task is None:
            self._next()

    def finish(self, timeout_s: float) -> None:
        """Complete all, as the program ends; their results are dropped."""
        self._is_over = True
        if self._task is not None:
            self._task.join(timeout_s)
            self._task = None
        while self._waiting:
            with suppress(InferdeckError, OSError):
                self._waiting.popleft()[0]()

    def _next(self) -> None:
        if self._waiting:
            work, done, failed = self._waiting.popleft()
            end = lambda then: partial(self._deliver, then)
            self._task = run_task(self._owner, work, end(done), end(failed))

    def _deliver(self, then: Callable[[Any], None], outcome: Any) -> None:
        self._task = None
        try:
            then(outcome)
        finally:
            if self._task is None:
                self._next()


def run_task(
    owner: QObject,
    work: Callable[[], T],
    done: Callable[[T], None],
    failed: Callable[[ErrorInfo], None],
) -> Task:
    """Run `work` in a thread; then call `done(result)` or `failed(error)` in the GUI thread,
    unless `owner` is gone by then."""
    return Task(owner, work, done, failed).start()


def wait_for_tasks(timeout_s: float) -> bool:
    """Drop the results of all tasks and wait for their threads; False if one still runs."""
    deadline = time.monotonic() + timeout_s
    for task in list(_running):
        task.join(deadline - time.monotonic())
    return not _running
