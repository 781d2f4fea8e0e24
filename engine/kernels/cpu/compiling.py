"""Runs compilers side by side, and ends them with every process that they started: a driver (cc) is
the leader of the process group of its parts (cc1, as, ld), which would outlive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable

from engine.kernels.cpu.library_cache import UnavailableError
from engine.units import duration_text

TIMEOUT_S = 240.0
"""Of one command. Beside five busy programs per core, the largest source needs half of it."""
LOOK_S = 0.02


class _Running:
    """A command. It prints into a file: a full pipe would stop it."""

    def __init__(self, command: list[str]) -> None:
        self.name = command[0]
        self._until = time.monotonic() + TIMEOUT_S
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._printed.close()
            raise UnavailableError(f"could not run {self.name}: {error}") from error

    def has_ended(self) -> bool:
        """Raises UnavailableError once its time is over."""
        if self._process.poll() is not None:
            return True
        if time.monotonic() > self._until:
            raise UnavailableError(
                f"{self.name} did not finish in {duration_text(TIMEOUT_S)}: "
                "close other programs and restart Inferdeck"
            )
        return False

    def printed(self) -> str:
        """Of a command that has ended. Raises UnavailableError where it failed."""
        self._printed.seek(0)
        text = self._printed.read().decode(errors="replace")
        if self._process.returncode != 0:
            said = [line for line in text.splitlines() if "error" in line] or [text]
            raise UnavailableError(f"{self.name} failed: {said[0].strip()[:200]}")
        return text

    def end(self) -> None:
        """With what it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._printed.close()


def run(
    commands: Iterable[list[str]],
    check: Callable[[], None] = lambda: None,
    report: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """What the commands print, in the order of their ends. One runs on each core.

    check: called every LOOK_S; what it raises ends the commands. report: called with the number of
    commands that have ended. Raises UnavailableError. No process remains.
    """
    waiting, running, printed = list(commands)[::-1], list[_Running](), list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                running.append(_Running(waiting.pop()))
            time.sleep(LOOK_S)
            check()
            for one in [one for one in running if one.has_ended()]:
                printed.append(one.printed())
                one.end()
                running.remove(one)
                report(len(printed))
    finally:
        for one in running:
            one.end()
    return printed
