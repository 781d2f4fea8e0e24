"""The report of a crash: one text file with versions, machine, settings and the last steps. No Qt.

It has no prompt, no reply and no title of a chat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from app.paths import data_dir
from app.units import format_bytes
from engine.snapshot import StepRecord

MOST_REPORTS = 10
_LOG_LINES = 80


def reports_dir() -> Path:
    folder = data_dir() / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def step_line(step: StepRecord) -> str:
    """ "step 812: 28.4 ms, 16 decode + 96 prefill tokens, 16 running, 3 waiting, model 25.1 ms"."""
    parts = [
        f"step {step.index}: {step.duration * 1e3:.1f} ms",
        f"{step.num_decode_tokens} decode + {step.num_prefill_tokens} prefill tokens",
        f"{step.num_running} running, {step.num_waiting} waiting",
        f"model {step.model_s * 1e3:.1f} ms, sampling {step.sample_s * 1e3:.1f} ms",
    ]
    if step.exchange_s > 0:
        parts.append(f"exchange between ranks {step.exchange_s * 1e3:.1f} ms")
    if step.preempted:
        parts.append(f"{len(step.preempted)} preempted")
    return ", ".join(parts)


def report_text(what: str, data: Mapping[str, Any], trace: str, log: Iterable[str] = ()) -> str:
    """`data`: what `black_box` made, as far as it is there."""
    at = data.get("at")
    when = datetime.fromtimestamp(at).isoformat(" ", "seconds") if at else "not known"
    machine = dict(data.get("machine") or {})
    if isinstance(machine.get("memory"), int):
        machine["memory"] = format_bytes(machine["memory"])
    sections = {
        "Versions": _table(data.get("versions")),
        "Machine": _table(machine),
        "Model": _table(data.get("model")),
        "Settings": _table(data.get("config")),
        "Memory": _table(data.get("memory")),
        "Last steps": "\n".join(data.get("steps") or ["none"]),
        "Where it was": trace.strip() or "not known",
        "Log": "\n".join(log) or "empty",
    }
    parts = [f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections.items()]
    return "\n\n".join([f"Inferdeck: {what}\nLast heard of: {when}", *parts]) + "\n"


def write_report(text: str, at: float) -> Path:
    """Write it beside the last few; its path. Raises OSError."""
    folder = reports_dir()
    path = folder / f"crash-{datetime.fromtimestamp(at):%Y-%m-%d-%H%M%S}.txt"
    path.write_text(text, encoding="utf-8")
    for old in sorted(folder.glob("crash-*.txt"))[:-MOST_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def log_tail(file: Path) -> list[str]:
    """The last lines of the log."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []


def _table(values: Mapping[str, Any] | None) -> str:
    if not values:
        return "not known"
    width = max(len(name) for name in values)
    return "\n".join(f"{name.ljust(width)}  {_word(value)}" for name, value in values.items())


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
