"""Where native code failed: a child writes the stacks of its threads to a file before it ends."""

from __future__ import annotations

import faulthandler
import logging
import os
import secrets
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from app.paths import data_dir

log = logging.getLogger(__name__)

FAULT_VARIABLE = "INFERDECK_FAULT_FILE"
MOST_FILES = 10


def new_fault_file() -> Path:
    """For a child that is about to be started; there are only the last few of those before."""
    folder = data_dir()
    for old in sorted(folder.glob("engine-*.fault"))[: 1 - MOST_FILES]:
        with suppress(OSError):  # of a child that runs, on Windows
            old.unlink()
    return folder / f"engine-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.fault"


def catch_faults() -> IO[str] | None:
    """In the child: from now on a fault is written to the file that its environment names."""
    path = os.environ.get(FAULT_VARIABLE)
    if not path:
        return None
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process runs
    except OSError as error:
        log.warning("faults are not written: %s", error)
        return None
    faulthandler.enable(file)
    return file


def fault_in(path: Path) -> str:
    """What a child that has ended wrote; a file in which there is nothing is removed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if not text:
            path.unlink()
    except OSError:
        return ""
    return text
