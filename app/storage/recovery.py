"""Recovery of a damaged file of chats in its own thread. No Qt."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from app.storage.copies import salvaged
from app.storage.salvage import RecoveryCancelled, Salvaged
from engine.errors import in_one_line

JOIN_S = 10.0
"""Longest wait for the thread at the end: one statement of SQLite."""

log = logging.getLogger(__name__)


class Recovery:
    """Copies what can be read of `path`, which stays unchanged.

    `finish`: called in this thread with the copy, or with None where there is none; `ended`: done
    when the Future that it returns is done. `is_complete`: whether it has ended, and the copy with
    everything readable is in use.
    """

    def __init__(
        self, path: Path, finish: Callable[[sqlite3.Connection | None], Future[Any]]
    ) -> None:
        self.path, self._finish = path, finish
        self.found = Salvaged()
        self.ended: Future[None] = Future()
        self.is_complete = False
        self._cancelled = threading.Event()
        self._failure = ""
        self._is_whole = False  # then it is too late to cancel
        self._thread = threading.Thread(target=self._run, name="chat-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Stop, and drop what was recovered."""
        self._cancelled.set()

    def join(self) -> None:
        self._thread.join(JOIN_S)

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set() and not self._is_whole

    @property
    def fraction(self) -> float | None:
        """Of the messages; None if their number cannot be read."""
        expected = self.found.expected_messages
        return min(1.0, self.found.messages / expected) if expected else None

    @property
    def text(self) -> str:
        """What was recovered as a sentence."""
        if self._failure:
            return f"Recovery failed: {self._failure}."
        return "Recovery was cancelled." if self.is_cancelled else self.found.text

    def _run(self) -> None:
        copy = None
        try:
            copy = salvaged(self.path, self.found, self._cancelled.is_set)
            self._is_whole = True
        except RecoveryCancelled:
            log.info("the recovery of %s was cancelled", self.path)
        except MemoryError:
            self._failure = "out of memory"
        except (OSError, sqlite3.Error) as error:
            log.warning("cannot recover chats of %s: %s", self.path, error)
            self._failure = in_one_line(error)
        except BaseException:  # the window waits for an end
            log.exception("the recovery of %s failed", self.path)
            self._failure = "see the log"

        def end(finished: Future[Any]) -> None:
            self.is_complete = copy is not None and finished.exception() is None
            self.ended.set_result(None)

        self._finish(copy).add_done_callback(end)
