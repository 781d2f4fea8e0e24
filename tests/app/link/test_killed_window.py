"""A window that is killed, not closed: nobody tells its engine's process to end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tests import ROOT

START_S, END_S = 180.0, 60.0


def engines_of(window: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in window.children(recursive=True):
        try:
            if "app.cli.child" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue  # it ended in this moment
    return found


def wait_until(when: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not when():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_the_engine_of_a_killed_window_ends_by_itself() -> None:
    window = psutil.Popen(
        [sys.executable, "-m", "app", "--isolated"], cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    engines: list[psutil.Process] = []
    try:
        wait_until(lambda: engines.extend(engines_of(window)) or engines, START_S)
        window.kill()
        window.wait(END_S)
        wait_until(lambda: not any(one.is_running() for one in engines), END_S)
    finally:
        for process in (window, *engines):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        window.wait(END_S)
