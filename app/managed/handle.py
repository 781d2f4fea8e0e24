"""The operating system's side of an engine that runs: `Child` ends with the window, `Staying` does
not, and is found again at its next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from app.managed.launch import Launch
from app.managed.supervisor import EXIT
from app.paths import data_dir
from app.storage.json_file import private

FOLLOW_S = 0.1
"""Between two looks at a log's end."""
LOST = -signal.SIGTERM
"""The exit code where nobody could tell it: its supervisor was killed as well."""
IS_WINDOWS = sys.platform == "win32"


class Child:
    """Its supervisor ends it when our end of its input closes."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=not IS_WINDOWS,  # Ctrl-C in a terminal is the window's
        )  # fmt: skip
        self.pid = self._process.pid

    def lines(self) -> Iterator[bytes]:
        """Of its output, to its end."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            yield from stream

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def beat(self) -> None:
        """Tell its supervisor that the window is there."""
        with suppress(OSError, ValueError):  # it has ended
            assert self._process.stdin is not None
            self._process.stdin.write(b".")
            self._process.stdin.flush()

    def finish(self) -> None:
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def kill(self) -> None:
        _kill(self.pid)


class Record(msgspec.Struct, frozen=True):
    """Of an engine that stays. created: of its supervisor, seconds since 1970, as psutil has it: a
    process id is used again."""

    pid: int
    created: float
    port: int
    launch: Launch


class Staying:
    """Writes to a log file, and ends by a signal to its supervisor."""

    def __init__(self, name: str, record: Record) -> None:
        self.record = record
        self.pid = record.pid
        self._file = _file(name, "log")
        self._child: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._is_left = False
        self._record_file = _file(name, "json")

    @classmethod
    def start(
        cls, name: str, launch: Launch, port: int, words: Sequence[str], env: Mapping[str, str]
    ) -> Staying:
        with open(_file(name, "log"), "wb", opener=private) as output:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env,
                start_new_session=not IS_WINDOWS,
            )  # fmt: skip
        created = psutil.Process(child.pid).create_time()
        made = cls(name, Record(child.pid, created, port, launch))
        made._child = child
        with open(made._record_file, "wb", opener=private) as file:
            file.write(msgspec.json.encode(made.record))
        return made

    @classmethod
    def find(cls, name: str) -> Staying | None:
        """The one that an earlier window left, if it runs still."""
        with suppress(OSError, msgspec.MsgspecError):
            made = cls(name, msgspec.json.decode(_file(name, "json").read_bytes(), type=Record))
            if made.poll() is None:
                return made
        return None

    def lines(self) -> Iterator[bytes]:
        """Of its log, from its begin to its end, or until it is left."""
        with suppress(OSError), self._file.open("rb") as file:
            begun = b""
            while True:
                is_over = self._is_left or self.poll() is not None  # before the last read
                while part := file.readline():
                    begun += part
                    if begun.endswith(b"\n"):
                        yield begun
                        begun = b""
                if is_over:
                    break
                time.sleep(FOLLOW_S)

    def poll(self) -> int | None:
        if self._code is None and not self._runs():
            self._code = self._told_code()
            self._record_file.unlink(missing_ok=True)
        return self._code

    def _runs(self) -> bool:
        if self._child is not None:
            return self._is_left or self._child.poll() is None
        try:
            process = psutil.Process(self.pid)
            is_same = process.create_time() == self.record.created
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _told_code(self) -> int:
        """It may be no child of this window."""
        with suppress(OSError, ValueError):
            last = self._file.read_bytes().splitlines()[-1:]
            for line in last:
                if line.startswith(EXIT.encode()):
                    return int(line.removeprefix(EXIT.encode()))
        return LOST

    def beat(self) -> None:
        """Its supervisor does not need it."""

    def finish(self) -> None:
        with suppress(psutil.Error):
            if self._runs():
                psutil.Process(self.pid).send_signal(signal.SIGTERM)

    def kill(self) -> None:
        _kill(self.pid)

    def leave(self) -> None:
        """Follow it no longer; it runs on."""
        self._is_left = True
        if self._child is not None:
            self._child.returncode = 0  # else Python warns of a child that runs


def _kill(pid: int) -> None:
    with suppress(OSError):
        if not IS_WINDOWS:
            os.killpg(pid, signal.SIGKILL)
        else:
            psutil.Process(pid).kill()


def _file(name: str, kind: str) -> Path:
    return data_dir() / f"{name}.{kind}"
