"""Goals with their verdicts, tables, and the JSON file that every benchmark writes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from engine.hardware.machine import machine_info


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """`text` says what was wanted; `value` is what was measured, `met` the comparison's result."""

    text: str
    value: str
    met: bool

    @property
    def verdict(self) -> str:
        return "met" if self.met else "MISSED"

    def as_dict(self) -> dict[str, Any]:
        return {"goal": self.text, "measured": self.value, "met": self.met}


def at_least(text: str, value: float, bound: float, unit: str = "x") -> Goal:
    return Goal(text, f"{value:.2f}{unit}", value >= bound)


def at_most(text: str, value: float, bound: float, unit: str = "") -> Goal:
    return Goal(text, f"{value:.2f}{unit}", value <= bound)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([first, *rest]).rstrip())
    print(flush=True)


def print_goals(goals: Sequence[Goal]) -> None:
    width = max((len(goal.text) for goal in goals), default=0)
    for goal in goals:
        print(f"  {goal.verdict:6}  {goal.text.ljust(width)}  {goal.value}")
    print(flush=True)


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="shorter, and less exact")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--num-threads", type=int, metavar="N", help="default: physical cores")
    return parser


def context() -> dict[str, Any]:
    """Machine and versions, which every report carries."""
    return {
        "machine": dataclasses.asdict(machine_info()),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        },
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def write_json(file: Path | None, report: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"Figures written to {file}")


@dataclasses.dataclass(slots=True)
class Interference:
    """`share`: of the machine's CPU time, what other processes (and a hypervisor) took."""

    share: float = 0.0


@contextmanager
def watch_others() -> Iterator[Interference]:
    """Measure what else ran on the machine meanwhile, and say so where it matters."""
    seen = Interference()
    busy, own, began = _busy_seconds(), _own_seconds(), time.perf_counter()
    yield seen
    elapsed = (time.perf_counter() - began) * (os.cpu_count() or 1)
    seen.share = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)) / elapsed
    if seen.share > 0.05:
        print(
            f"warning: other programs took {seen.share:.0%} of the CPU meanwhile; "
            "the figures are not to be relied on",
            file=sys.stderr,
        )


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice"))


def _own_seconds() -> float:
    """Of this process and its children, those that have ended included."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return float(total)
