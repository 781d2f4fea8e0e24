"""Crash reports, and the marker file that reveals a crash at the next start. No Qt.

The data folder has running-<pid>.json while the program runs, and running-<pid>.fault, into which
Python writes the stacks if a signal ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import psutil

from app.paths import data_dir
from app.storage.json_file import private, write_whole
from engine.errors import CheckpointError
from engine.json_file import checked, read_json, read_regular
from engine.snapshot import StepRecord
from engine.units import bytes_text, duration_text

log = logging.getLogger(__name__)

_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class Remains:
    """Files of a process that crashed. `fault`: its stacks, if written."""

    data: dict[str, Any]
    fault: str
    files: tuple[Path, ...]

    def remove(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)


class _Known(msgspec.Struct):
    """Of every marker; `at`: a time that can be shown."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
    process_started: float
    at: Annotated[float, msgspec.Meta(ge=0, lt=2**33)]
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    model: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    memory: dict[str, Any] = {}
    steps: list[str] = []


class RunMarker:
    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or data_dir()
        name = f"running-{os.getpid()}"
        self.path, self.fault_path = (self._folder / f"{name}.{s}" for s in ("json", "fault"))
        self._fault_file: IO[str] | None = None
        self._lock = threading.Lock()
        self._is_over = False  # nothing is written any more

    def write(self, data: dict[str, Any]) -> None:
        """Replace the marker's data; from any thread. A disk error is only logged."""
        with self._lock:
            if not self._is_over:
                self._write(data)

    def _write(self, data: dict[str, Any]) -> None:
        process = psutil.Process()
        known = {"pid": process.pid, "process_started": process.create_time(), "at": time.time()}
        part = self.path.with_suffix(".part")
        try:
            with open(part, "w", encoding="utf-8", opener=private) as file:
                file.write(json.dumps({**data, **known}))
            os.replace(part, self.path)
        except OSError as error:
            log.warning("cannot write crash marker: %s", error)

    def catch_faults(self) -> None:
        """Write the stacks of all threads when the process is ended by a signal."""
        try:
            self._fault_file = open(self.fault_path, "w", encoding="utf-8", opener=private)  # noqa: SIM115 - open as long as the process runs
            faulthandler.enable(self._fault_file)
        except OSError as error:
            log.warning("cannot open fault file: %s", error)

    def remove(self) -> None:
        """Remove the marker: the program ends normally."""
        with self._lock:
            self._is_over = True
            if self._fault_file is not None:
                faulthandler.disable()
                self._fault_file.close()
                self._fault_file = None
            for file in (self.path, self.fault_path):
                file.unlink(missing_ok=True)

    def remains(self) -> list[Remains]:
        """Markers of processes that are gone, newest first. Unreadable ones are removed."""
        found = []
        for path in self._folder.glob("running-*.json"):
            files = (path, path.with_suffix(".fault"))
            try:
                data: dict[str, Any] = read_json(path)
                known = checked(data, _Known, path)
                if _is_alive(known.pid, known.process_started):
                    continue
                fault = _text(files[1])
            except CheckpointError as error:
                log.warning("%s", error)
                Remains({}, "", files).remove()
                continue
            found.append(Remains(data, fault, files))
        return sorted(found, key=lambda one: one.data["at"], reverse=True)


def _text(file: Path) -> str:
    return read_regular(file).decode(errors="replace") if file.exists() else ""


def _is_alive(pid: int, started: float) -> bool:
    """Whether that process is still running: PIDs are reused."""
    try:
        return abs(psutil.Process(pid).create_time() - started) < _CLOCK_SLACK_S
    except psutil.Error:
        return False


MOST_REPORTS = 10
_LOG_LINES = 80
LARGEST_LOG = 2**30


def reports_dir() -> Path:
    folder = data_dir() / "reports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def step_line(step: StepRecord) -> str:
    """ "step 812: 28.4 ms, 16 decode + 96 prefill tokens, 16 running, 3 waiting, model 25.1 ms"."""
    parts = [
        f"step {step.index}: {duration_text(step.duration)}",
        f"{step.num_decode_tokens} decode + {step.num_prefill_tokens} prefill tokens",
        f"{step.num_running} running, {step.num_waiting} waiting",
        f"model {duration_text(step.model_s)}, sampling {duration_text(step.sample_s)}",
    ]
    if step.preempted:
        parts.append(f"{len(step.preempted)} preempted")
    return ", ".join(parts)


def report_text(what: str, data: Mapping[str, Any], trace: str, log: Iterable[str] = ()) -> str:
    """`data`: of `CrashWatch.black_box`; parts may be missing."""
    at = data.get("at")
    when = datetime.fromtimestamp(at).isoformat(" ", "seconds") if at else "unknown"
    machine = dict(data.get("machine") or {})
    if isinstance(machine.get("memory"), int):
        machine["memory"] = bytes_text(machine["memory"])
    sections = {
        "Versions": _table(data.get("versions")),
        "Machine": _table(machine),
        "Model": _table(data.get("model")),
        "Settings": _table(data.get("config")),
        "Memory": _table(data.get("memory")),
        "Recent steps": "\n".join(data.get("steps") or ["none"]),
        "Stack": trace.strip() or "unknown",
        "Log": "\n".join(log) or "empty",
    }
    parts = [f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections.items()]
    return "\n\n".join([f"Inferdeck: {what}\nLast update: {when}", *parts]) + "\n"


def write_report(text: str, at: float) -> Path:
    """Write a report, keep the last few; its path. Raises OSError."""
    folder = reports_dir()
    path = folder / f"crash-{datetime.fromtimestamp(at):%Y-%m-%d-%H%M%S}.txt"
    write_whole(path, text)
    for old in sorted(folder.glob("crash-*.txt"))[:-MOST_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def log_tail(file: Path) -> list[str]:
    try:
        text = read_regular(file, LARGEST_LOG).decode(errors="replace")
    except CheckpointError:
        return []
    return text.splitlines()[-_LOG_LINES:]


def _table(values: Mapping[str, Any] | None) -> str:
    if not values:
        return "unknown"
    width = max(len(name) for name in values)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in texts.items())
