"""`ChatFile`: the file of the chats, or a copy of it while it cannot be used.

A file that cannot be opened, or turns out to be damaged, is replaced by a copy (`problem`). What is
written to the copy is saved as soon as the file can be written again (`resume`), or in a new file
(`start_new_file`).

    damaged file -- recovery thread, row by row --> copy <-- what was written meanwhile
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from app import paths
from app.storage.copies import copy_of, empty_copy
from app.storage.database import Connections, make, open_file, process_lock
from app.storage.errors import (
    StorageCorruptError,
    StorageError,
    StorageNewerError,
    explain,
)
from app.storage.recovery import Recovery
from app.storage.writer import Writer, transact
from engine.errors import ErrorInfo

UNTIL_THEN = "Until then, changes exist only in this window."
UNTIL_CLOSED = "New chats will be lost when this window closes."
BACKUP_PAGES = 1000

log = logging.getLogger(__name__)
T = TypeVar("T")


class Renewed(NamedTuple):
    """A new file with everything that could be saved, and the name of the old one, if there was
    one."""

    aside: Path | None
    num_conversations: int
    num_messages: int


class ChatFile:
    """The file in `path` (default: in the user's data folder).

    `problem`: why changes do not reach the user's file, else None; `spoiled`: that file, if it is
    damaged or newer; `recovery`: of a damaged file. `refusal`: open a copy, because of this error.
    Raises StorageError if the file cannot be opened for writing.
    """

    problem: ErrorInfo | None = None
    spoiled: Path | None = None
    recovery: Recovery | None = None

    def __init__(self, path: Path | None = None, refusal: StorageError | None = None) -> None:
        try:
            self.path = Path(path) if path is not None else paths.chats_file()
        except OSError as error:
            raise explain(error, Path("chats.sqlite3")) from error
        self._read_lock = threading.Lock()
        self._now: Connections
        self._writer = Writer(self.path, self._recover)
        if refusal is None:
            self._use(open_file(self.path))
        else:
            self._use_copy(refusal)
        self._writer.start()

    def close(self) -> None:
        """Cancel a recovery, write the queued changes, then close the file."""
        if self.recovery is not None:
            self.recovery.cancel()
            self.recovery.join()
        self._writer.close()
        self._now.close()

    def flush(self) -> None:
        """Wait until all queued changes are written or have failed."""
        done: Future[None] = self._writer.call(lambda: None)
        done.exception()

    # Copies ----------------------------------------------------------------------------------

    def resume(self) -> Future[None]:
        """Save what was written to a copy, if the file can be opened now; else raises StorageError,
        and `problem` has the numbers of now."""
        return self._writer.call(self._resume)

    def start_new_file(self) -> Future[Renewed]:
        """Rename the spoiled file, and save everything of the copy in a new one, else raises
        StorageError; then nothing has changed."""
        return self._writer.call(self._start_new_file)

    @property
    def is_recovering(self) -> bool:
        return self.recovery is not None and self.recovery.is_running

    def recover(self) -> Future[None]:
        """Start a cancelled or failed recovery again."""
        return self._writer.call(self._recover_again)

    # In the writer's thread:

    def _resume(self) -> None:
        if self.problem is None or self.spoiled is not None or self.is_recovering:
            return
        try:
            opened = open_file(self.path)
            try:
                transact(opened.writer, self._write_pending)
            except BaseException:
                opened.close()
                raise
        except (sqlite3.Error, OSError, StorageError) as error:
            explained = explain(error, self.path)
            self._refuse(explained)
            raise explained from error
        self._use(opened)
        self.problem = None
        log.info("the chat file can be written again")

    def _write_pending(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA defer_foreign_keys = ON")  # a chat may come after its message
        for job in (self._writer.pending or {}).values():
            job(connection)

    def _start_new_file(self) -> Renewed:
        if self.spoiled is None:
            raise StorageError("The chat file is not damaged.", "No action needed.")
        if self.is_recovering:
            raise StorageError(
                f"The recovery of {self.path} is still running.",
                "Wait until it ends, or cancel it.",
            )
        lock = process_lock(self.path)
        try:
            # in pieces: others read the copy in between
            aside = make(self.path, partial(self._now.reader.backup, pages=BACKUP_PAGES))
        except BaseException:
            lock.close()
            raise
        self.spoiled = None  # from here on it is the new file that may have to be resumed
        opened = open_file(self.path, lock)
        counts = [
            opened.reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("conversations", "messages")
        ]
        self._use(opened)
        self.problem = None
        log.warning("started a new chat file; the old file: %s", aside or "missing")
        return Renewed(aside, *counts)

    def _recover(self, error: StorageError) -> bool:
        """Continue on a copy if the file turns out to be damaged; whether to try again."""
        if not isinstance(error, StorageCorruptError) or self.problem is not None:
            return False
        self._use_copy(error)
        return True

    def _use_copy(self, error: StorageError) -> None:
        log.warning("cannot use the chat file: %s", error)
        copy = copy_of(self.path, error)
        self._refuse(error)
        if copy is not None:
            self._use(Connections(copy, copy))
            return
        copy = empty_copy()
        self._use(Connections(copy, copy))
        self._start_recovery(error)

    def _start_recovery(self, error: StorageError) -> None:
        self._refuse(error, "Recovery is in progress.")
        finish = lambda copy: self._writer.call(partial(self._end_recovery, error, copy))
        self.recovery = Recovery(self.path, finish)
        self.recovery.start()

    def _recover_again(self) -> None:
        if self.recovery is not None and not self.recovery.is_running and self.spoiled is not None:
            self._start_recovery(self._damage)

    def _end_recovery(self, error: StorageError, copy: sqlite3.Connection | None) -> None:
        """Use what was recovered, with everything that was written meanwhile."""
        recovery = self.recovery
        assert recovery is not None
        if copy is None:
            self._refuse(error, recovery.text)
            return
        try:
            transact(copy, self._write_pending)
        except BaseException:
            copy.close()
            self._refuse(error, "Recovery failed.")
            raise
        pending = self._writer.pending
        self._use(Connections(copy, copy))
        self._writer.pending = pending
        self._refuse(error, recovery.text)

    def _refuse(self, error: StorageError, found: str = "") -> None:
        """`found`: what a copy has of a damaged file."""
        self._damage = error
        is_spoiled = isinstance(error, StorageCorruptError | StorageNewerError)
        self.spoiled = self.path if is_spoiled else None
        kept = UNTIL_CLOSED if is_spoiled else UNTIL_THEN
        self.problem = error.info()._replace(
            cause=f"{error.cause} {found}".strip(), remedy=f"{error.remedy} {kept}".strip()
        )

    def _use(self, opened: Connections) -> None:
        with self._read_lock:
            before, self._now = getattr(self, "_now", None), opened
        self._writer.use(opened.writer, self._read_lock if opened.lock is None else None)
        if before is not None:
            before.close()

    def _reading(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._read_lock:
            used = self._now
            try:
                return read(used.reader)
            except sqlite3.Error as error:
                failure = error
        explained = explain(failure, self.path)
        # another thread may have met the damage first; a copy is made once
        if not self._writer.call(partial(self._recover, explained)).result():
            with self._read_lock:
                if used is self._now:
                    raise explained from failure
        return self._reading(read)
