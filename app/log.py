"""The program's log, for reports: what was loaded, what failed, with tracebacks. Imports no Qt."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from app.paths import data_dir

MAX_BYTES = 1_000_000
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_file() -> Path:
    return data_dir() / "inferdeck.log"


def start_logging() -> logging.Handler | None:
    """Write the log of this program to `log_file`; None where that cannot be written."""
    try:
        handler = RotatingFileHandler(
            log_file(), maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True
        )
    except OSError:
        return None  # a read-only home must not keep the window from opening
    handler.setFormatter(logging.Formatter(FORMAT))
    for name in ("app", "engine", "widgets"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    return handler


def stop_logging(handler: logging.Handler | None) -> None:
    if handler is not None:
        for name in ("app", "engine", "widgets"):
            logging.getLogger(name).removeHandler(handler)
        handler.close()
