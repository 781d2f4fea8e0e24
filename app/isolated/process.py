"""`ChildProcess`: a process of our own, from its start to its certain end.

                stdin   kept open: it ends when the window has gone
this program    stdout  one line: where it listens                       child
                stderr  its log, and what libraries print
"""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import app
from app.isolated.lines import Ready, parse_ready, parse_record

log = logging.getLogger(__name__)

MAX_LINES = 40
"""Of what was printed, for the report of a crash."""
COMMAND = (sys.executable, "-m", "app.isolated.child")
_LAST_WORDS_S = 1.0


class ChildProcess:
    """Started by the constructor, which raises OSError. Any thread may use it."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
    ) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(environment or {}),
            creationflags=_creation_flags(),
        )
        self._ready: queue.SimpleQueue[Ready | None] = queue.SimpleQueue()
        self._printed: deque[str] = deque(maxlen=MAX_LINES)
        self._readers = [
            threading.Thread(target=read, name="isolated output", args=(stream,), daemon=True)
            for read, stream in ((self._read_out, self._process.stdout),
                                 (self._read_err, self._process.stderr))
        ]  # fmt: skip
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """What was printed last, the log left out."""
        return list(self._printed)

    def wait_ready(self, timeout_s: float) -> Ready | None:
        """Where it listens; None where it ended before, or says nothing in time."""
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def ends_within(self, seconds: float) -> bool:
        return self._ends_by(time.monotonic() + seconds)

    def wait(self) -> int:
        """Wait for its end: the exit code, negative for a signal."""
        code = self._process.wait()
        self._read_rest()
        return code

    def end(self, timeout_s: float) -> int:
        """End it for sure: it is asked, then told, then killed."""
        until = time.monotonic() + timeout_s
        with suppress(OSError):
            self._stdin.close()
        if not self._ends_by(until - timeout_s / 2):
            log.warning("the engine's process %d does not end: it is terminated", self.pid)
            self._process.terminate()
            if not self._ends_by(until):
                self._process.kill()
        return self.wait()

    def kill(self) -> None:
        """Now, whatever it does."""
        if self.is_running:
            self._process.kill()

    def _ends_by(self, moment: float) -> bool:
        try:
            self._process.wait(max(0.01, moment - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read_rest(self) -> None:
        """What was on its way when it ended. A grandchild may hold the pipes: not for ever."""
        for reader in self._readers:
            reader.join(_LAST_WORDS_S)
        with suppress(OSError):
            self._stdin.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    # -- the readers' threads ---------------------------------------------------------------

    def _read_out(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", "replace").rstrip()
                ready = parse_ready(line)
                if ready is not None:
                    self._ready.put(ready)
                elif line:
                    self._note(line)
        self._ready.put(None)

    def _read_err(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", "replace").rstrip()
                record = parse_record(line)
                if record is not None:
                    logger = logging.getLogger(record.name)
                    if logger.isEnabledFor(record.levelno):
                        logger.handle(record)
                elif line:
                    self._note(line)

    def _note(self, line: str) -> None:
        self._printed.append(line)
        log.info("process %d: %s", self.pid, line)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the place of this very program in front: a folder named app where the user
    happens to be is not it."""
    root = str(Path(app.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, known] if known else [root]),
        "PYTHONSAFEPATH": "1",
        "PYTHONIOENCODING": "utf-8",
        **more,
    }


def _creation_flags() -> int:
    """On Windows: no console of its own, and Ctrl-C in ours is not meant for it."""
    if sys.platform == "win32":
        return subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return 0
