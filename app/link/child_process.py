"""The child process: start, log lines and end of it; stacks of native faults in a file."""

from __future__ import annotations

import faulthandler
import json
import logging
import math
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

import app
from app.paths import data_dir

log = logging.getLogger(__name__)

FAULT_VARIABLE = "INFERDECK_FAULT_FILE"
MOST_FILES = 10


def new_fault_file() -> Path:
    """A new file for the next child. Of older files, the last few are kept."""
    folder = data_dir()
    for old in sorted(folder.glob("engine-*.fault"))[: 1 - MOST_FILES]:
        with suppress(OSError):  # of a child that runs, on Windows
            old.unlink()
    return folder / f"engine-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.fault"


def catch_faults() -> IO[str] | None:
    """In the child: write faults to the file named by its environment."""
    path = os.environ.get(FAULT_VARIABLE)
    if not path:
        return None
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process runs
    except OSError as error:
        log.warning("cannot open the crash log: %s", error)
        return None
    faulthandler.enable(file)
    return file


def fault_in(path: Path) -> str:
    """The stacks of a child that ended; an empty file is removed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if not text:
            path.unlink()
    except OSError:
        return ""
    return text


MARK = "\x1e"
"""Marks log lines: printed text does not begin with it."""
MAX_TEXT = 20_000


class Ready(NamedTuple):
    """Where a child listens."""

    port: int
    pid: int


def ready_line(ready: Ready) -> str:
    return json.dumps(ready._asdict())


def parse_ready(line: str) -> Ready | None:
    try:
        told = json.loads(line)
        return Ready(int(told["port"]), int(told["pid"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class LogSender(logging.Handler):
    """Writes records as lines for `parse_record`."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            told = {"level": record.levelno, "name": record.name,
                    "text": self.format(record)[:MAX_TEXT], "time": record.created}  # fmt: skip
            print(MARK + json.dumps(told), file=self._stream, flush=True)
        except OSError:
            pass  # the window is gone
        except Exception:
            self.handleError(record)


def parse_record(line: str) -> logging.LogRecord | None:
    """The record of a line; None for other output."""
    if not line.startswith(MARK):
        return None
    try:
        told = json.loads(line[1:])
        name, level, text = str(told["name"]), int(told["level"]), str(told["text"])
        record = logging.LogRecord(name, level, "", 0, "%s", (text,), None)
        record.created = float(told["time"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return record


MAX_LINES = 40
"""Lines of output kept for a crash report."""
COMMAND = (sys.executable, "-m", "app.cli.child")
KILL_S = 30.0
"""After SIGKILL. A process in uninterruptible sleep (a driver, a disk) may outlive it."""
_LAST_WORDS_S = 1.0


class ChildProcess:
    """Started by the constructor, which raises OSError. Any thread may use it.

    A process that has not ended KILL_S after it was killed is lost: nothing waits for it."""

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
        self._lost_at = math.inf
        self._ready: queue.SimpleQueue[Ready | BaseException | None] = queue.SimpleQueue()
        self._printed: deque[str] = deque(maxlen=MAX_LINES)
        self._readers = [
            threading.Thread(target=self._read, name="isolated-output", args=(stream,), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """False also for a lost one."""
        return self._process.poll() is None and time.monotonic() < self._lost_at

    @property
    def last_lines(self) -> list[str]:
        """The last output lines, without the log."""
        return list(self._printed)

    def wait_ready(self, timeout_s: float) -> Ready | None:
        """Where it listens; None if it ended. Raises TimeoutError, or what went wrong in reading
        its output."""
        try:
            ready = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(ready, BaseException):
            raise ready
        return ready

    def closes_within(self, seconds: float) -> bool:
        """Whether it closes its output, as at its end, or ends while another process holds it."""
        self._readers[0].join(seconds)
        return not (self._readers[0].is_alive() and self.is_running)

    def ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(max(0.01, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, timeout_s: float) -> int | None:
        """End it: close its input, then terminate, then kill. The exit code, negative for a
        signal; None for a lost one."""
        with suppress(OSError):
            self._stdin.close()
        if self.is_running and not self.ends_within(timeout_s / 2):
            log.warning("engine process %d is not exiting; terminating it", self.pid)
            self._process.terminate()
            if not self.ends_within(timeout_s / 2):
                self.kill()
                self.ends_within(KILL_S)
        code = self._process.poll()
        if code is None:
            log.error("engine process %d does not end and keeps its memory", self.pid)
            return None
        for reader in self._readers:  # briefly: a grandchild may hold the pipes
            reader.join(_LAST_WORDS_S)
        return code

    def kill(self) -> None:
        if self.is_running:
            self._lost_at = min(self._lost_at, time.monotonic() + KILL_S)
            self._process.kill()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    # -- the readers' threads ---------------------------------------------------------------

    def _read(self, stream: IO[bytes]) -> None:
        is_out = stream is self._process.stdout
        with stream:
            for raw in stream:
                try:
                    self._take(raw.decode("utf-8", "replace").rstrip(), is_out)
                except BaseException as error:  # a pipe that nobody reads would block the process
                    log.exception("cannot read a line of process %d", self.pid)
                    if is_out and b'"port"' in raw:  # where it listens
                        self._ready.put(error)
        if is_out:
            self._ready.put(None)

    def _take(self, line: str, is_out: bool) -> None:
        if is_out and (ready := parse_ready(line)) is not None:
            self._ready.put(ready)
        elif (record := parse_record(line)) is not None:
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        elif line:
            self._printed.append(line)
            log.info("process %d: %s", self.pid, line)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with this program first in PYTHONPATH: the working directory may
    have another `app`."""
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
    """On Windows: no console, and Ctrl-C in ours does not reach it."""
    if sys.platform == "win32":
        return subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return 0
