"""The thread that writes the chats: jobs in order, each in its own transaction. No Qt."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from app.storage.errors import StorageError, explain

log = logging.getLogger(__name__)
T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


def transact(connection: sqlite3.Connection, job: Job[T]) -> T:
    """The result of `job`, committed; everything is rolled back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job(connection)
        connection.execute("COMMIT")
        return result
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class Writer:
    """Runs jobs in order on a connection. A job's Future is done when its changes are on disk, and
    raises StorageError if it failed; later jobs still run.

    `recover`: called in this thread with the error of a job; whether to run the job again.
    """

    def __init__(self, path: Path, recover: Callable[[StorageError], bool]) -> None:
        self._path, self._recover = path, recover
        self._connection: sqlite3.Connection
        self._guard: AbstractContextManager[Any] = nullcontext()
        self.pending: dict[Hashable, Job[Any]] | None = None
        """Jobs that ran on a copy, oldest first, the last one of each key; None: not collected."""
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._closed = False
        # daemon: a program that forgets to close must still be able to end
        self._thread = threading.Thread(target=self._run, name="chat-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def use(
        self, connection: sqlite3.Connection, shared: AbstractContextManager[Any] | None
    ) -> None:
        """Write to `connection` from now on; call it in the thread, or before it starts.

        `shared`: the lock of the readers of the same connection, which is one of a copy; its jobs
        are collected in `pending`.
        """
        self._connection = connection
        self._guard = nullcontext() if shared is None else shared
        self.pending = None if shared is None else {}

    def submit(self, job: Job[T], key: Hashable = None) -> Future[T]:
        """Run `job` in a transaction. `key`: it replaces all that earlier jobs of this key did."""
        return self.call(partial(self._transaction, job, object() if key is None else key))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` between two jobs."""
        future: Future[T] = Future()
        if self._closed:
            future.set_exception(StorageError("The chat store is closed.", "Restart Inferdeck."))
        else:
            self._queue.put((function, future))
        return future

    def close(self) -> None:
        """Write the queued changes, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            function, future = entry
            if not future.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                future.set_result(self._attempt(function))
            except BaseException as error:  # somebody waits for the outcome
                if not isinstance(error, StorageError | sqlite3.Error | OSError):
                    log.exception("a chat store job failed")
                future.set_exception(explain(error, self._path))

    def _attempt(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except (sqlite3.Error, OSError, StorageError) as error:
            if not self._recover(explain(error, self._path)):
                raise
        return function()

    def _transaction(self, job: Job[T], key: Hashable) -> T:
        with self._guard:
            result = transact(self._connection, job)
        if self.pending is not None:
            self.pending.pop(key, None)  # to the end
            self.pending[key] = job
        return result
