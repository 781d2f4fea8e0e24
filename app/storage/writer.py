"""The one thread that writes: jobs in a queue, each in a transaction of its own."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from app.storage.errors import StorageError, explain

log = logging.getLogger(__name__)
T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


class Writer:
    """Runs jobs in order on its own connection. A job's Future is done when it is on the disk.

    A failed job is rolled back and its Future raises a StorageError; the next job is tried anew.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connection = connect()
        self._queue: SimpleQueue[tuple[Job, Future] | None] = SimpleQueue()
        self._closed = False
        # daemon: a program that forgets to close must still be able to end
        self._thread = threading.Thread(target=self._run, name="chat-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T]) -> Future[T]:
        future: Future[T] = Future()
        if self._closed:
            future.set_exception(StorageError("The chats are closed.", "Start Inferdeck again."))
        else:
            self._queue.put((job, future))
        return future

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._connection.close()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            job, future = entry
            try:
                result = self._transaction(job)
            except Exception as error:
                if not isinstance(error, sqlite3.Error | OSError):
                    log.exception("a job of the chat store failed")
                future.set_exception(explain(error, self._path))
            else:
                future.set_result(result)

    def _transaction(self, job: Job[T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = job(self._connection)
            self._connection.execute("COMMIT")
            return result
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
