"""The program's log: loads, failures, tracebacks. Imports no Qt."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple

from app.paths import data_dir

LOGGERS = ("app", "engine", "widgets")
MAX_BYTES = 1_000_000
"""Default size of the log file."""
MAX_LINES = 5000
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_file() -> Path:
    return data_dir() / "inferdeck.log"


def start_logging() -> logging.Handler | None:
    """Write this program's log to `log_file`; None if it is not writable."""
    try:
        handler = RotatingFileHandler(
            log_file(), maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True
        )
    except OSError:
        return None  # a read-only home must not keep the window from opening
    handler.setFormatter(logging.Formatter(FORMAT))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    return handler


def set_log_level(level: str) -> None:
    """Set the minimum level: info, warning or error."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def set_log_size(megabytes: int) -> None:
    """Size at which the log file rotates."""
    for handler in logging.getLogger(LOGGERS[0]).handlers:
        if isinstance(handler, RotatingFileHandler):
            handler.maxBytes = megabytes * MAX_BYTES


def stop_logging(handler: logging.Handler | None) -> None:
    if handler is not None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()


class LogLine(NamedTuple):
    """A record of the log. `time`: seconds since 1970; `level`: as in `logging`; `text` may have
    several lines, a traceback at its end."""

    time: float
    level: int
    name: str
    text: str


class LogBuffer(logging.Handler):
    """Keeps the last records for the window. `on_line` is called from the thread that logs."""

    def __init__(self, on_line: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.on_line = on_line
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self.num_lines = 0  # that ever came

    def start(self) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.setLevel(logging.INFO)
            logger.addHandler(self)

    def stop(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self.on_line = lambda: None
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + (self.formatter or logging.Formatter()).formatException(
                    record.exc_info
                )
            self._lines.append(LogLine(record.created, record.levelno, record.name, text))
            self.num_lines += 1
            self.on_line()
        except Exception:
            self.handleError(record)

    def since(self, number: int) -> list[LogLine]:
        """Stored lines after the first `number` of this run."""
        self.acquire()
        try:
            kept = len(self._lines)
            first = max(0, kept - (self.num_lines - number))
            return list(islice(self._lines, first, kept))
        finally:
            self.release()
