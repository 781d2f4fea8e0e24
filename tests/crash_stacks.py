"""The stacks of a test process that crashed, in the summary.

Tests run in processes of pytest-xdist; what one says as it dies is far above the summary, or lost.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

_FOLDER = "INFERDECK_CRASH_STACKS"
"""Environment: of the files, one for each process. Processes inherit it from the first."""


def _is_first(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if _is_first(config):
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="crash-stacks-")


def pytest_sessionstart(session: pytest.Session) -> None:
    """After pytest's own plugin, which writes them to the process's stderr."""
    folder = Path(os.environ[_FOLDER])
    if not _is_first(session.config) and folder.exists():  # else all has ended
        files = ExitStack()
        file = files.enter_context((folder / f"{os.getpid()}.txt").open("w", encoding="utf-8"))
        files.callback(faulthandler.disable)
        session.config.add_cleanup(files.close)
        faulthandler.enable(file)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _is_first(terminalreporter.config):
        return
    folder = Path(os.environ.pop(_FOLDER))
    for file in sorted(folder.iterdir()):
        if text := file.read_text(encoding="utf-8", errors="replace"):
            terminalreporter.section(f"process {file.stem} crashed")
            terminalreporter.write(text)
    shutil.rmtree(folder)
