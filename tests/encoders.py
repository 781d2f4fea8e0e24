"""Processes that encode, used by one tokenizer after another.

A process takes 0.1 s of CPU time to start, which every model that a test loads would take again.
One that a pool ends while it is idle is therefore kept, and is given to the next pool: a tokenizer
sends what it is made of first. One that was busy, or failed, ends as it would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.text.process import WorkerProcess
from engine.text.work import Message, Reply

_MOST = 2
_kept: list[WorkerProcess] = []
_lock = threading.Lock()


class KeptProcess:
    """What a pool sees of a WorkerProcess. The constructor raises OSError."""

    def __init__(self) -> None:
        self.source: object = None
        self._lock = threading.Lock()
        self._is_idle, self._is_ended = True, False
        with _lock:
            kept = _kept.pop() if _kept else None
        if kept is not None and not kept.is_running:
            kept.end()
            kept = None
        self._process = kept or WorkerProcess()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._is_ended and self._process.is_running

    def ask(self, message: Message, check: Callable[[], None] = lambda: None) -> Reply:
        with self._lock:
            self._is_idle = False
            if self._is_ended:
                self._process.kill()
        reply = self._process.ask(message, check)  # after an error it is not idle again
        with self._lock:
            self._is_idle = not self._is_ended  # else `kill` came before the reply: it is dying
        return reply

    def kill(self) -> None:
        with self._lock:
            self._is_ended = True
            if not self._is_idle:
                self._process.kill()

    def end(self) -> None:
        self._is_ended = True
        with _lock:
            if self._is_idle and self._process.is_running and len(_kept) < _MOST:
                _kept.append(self._process)
                return
        self._process.end()


def threads() -> set[threading.Thread]:
    """Those that read what kept processes answer."""
    with _lock:
        return {process._reader for process in _kept}


def end() -> None:
    """All kept processes."""
    while _kept:
        _kept.pop().end()
