"""What a child says on its two pipes: one line of JSON when it listens, and its log.

stdout   {"port": 41235, "pid": 1234}
stderr   \\x1e{"level": 20, "name": "engine.loading", "text": "...", "time": ...}
         whatever a library prints besides, line by line
"""

from __future__ import annotations

import json
import logging
import sys
from typing import IO, NamedTuple

MARK = "\x1e"
"""Before a record of the log: what is printed begins with it by no accident."""
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
    except (ValueError, KeyError, TypeError):
        return None


class LogSender(logging.Handler):
    """Writes records as lines that `parse_record` reads."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            told = {"level": record.levelno, "name": record.name, "text": text[:MAX_TEXT],
                    "time": record.created}  # fmt: skip
            print(MARK + json.dumps(told), file=self._stream, flush=True)
        except OSError:
            pass  # nobody reads it any more: the window has gone
        except Exception:
            self.handleError(record)


def parse_record(line: str) -> logging.LogRecord | None:
    """The record of a line; None for one that was printed."""
    if not line.startswith(MARK):
        return None
    try:
        told = json.loads(line[1:])
        name, level, text = str(told["name"]), int(told["level"]), str(told["text"])
        record = logging.LogRecord(name, level, "", 0, "%s", (text,), None)
        record.created = float(told["time"])
    except (ValueError, KeyError, TypeError):
        return None
    return record
