"""Tests and measurements on an NVIDIA GPU: the parts in order, and one report.

    python -m tests.gpu.run_all [--part NAME ...] [--time-limit S] [--output DIR]

The report is written after every cell, so a run that is stopped keeps its results. See
tests/gpu/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.cell import Cell, Result, in_order
from tests.gpu.bench.parts import FULL, PARTS, QUICK, cells_of
from tests.gpu.bench.report import build
from tests.gpu.bench.table import table

ROOT = Path(__file__).parents[2]
REPORT, TABLE = "report.json", "table.txt"
KINDS = {
    "machine": "bench.machine:describe",
    "tests": "run_all:run_tests",
    "copy": "bench.ceilings:copy",
    "product": "bench.ceilings:product",
    "launch": "bench.ceilings:launch",
    "round_trip": "bench.ceilings:round_trip",
    "attention": "bench.attention_cells:measure",
    "linear": "bench.linear_cells:measure",
    "fused": "bench.fused_cells:measure",
    "sampler": "bench.sampler_cells:measure",
    "wave": "bench.wave_cells:measure",
    "arrivals": "bench.wave_cells:arrivals",
    "peer": "bench.peer_cells:measure",
    "budget": "bench.budget_cells:measure",
    "divided": "bench.divided_cells:measure",
    "profile": "bench.profile_cells:measure",
    "drafts": "bench.draft_cells:measure",
}
"""Kind of a cell -> module of tests.gpu and function, which gets a Bench and the settings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every cell has a result and none failed; missed goals fail nothing."""
    args = _parser().parse_args(arguments)
    deadline = time.monotonic() + args.time_limit
    args.output.mkdir(parents=True, exist_ok=True)
    cells = in_order(cells_of(args.part or ["all"], QUICK if args.quick else FULL))
    signal.signal(signal.SIGTERM, _stop)
    results: list[Result] = []
    bench = Bench(args.device, args.quick)
    try:
        for cell in cells:
            if time.monotonic() > deadline:
                print("time limit reached", file=sys.stderr)
                break
            results.append(result := measure(bench, cell))
            print(f"{cell.name:56} {result.seconds:7.1f} s  {result.error}"[:400].rstrip())
            _write(args, results, len(cells) - len(results))
            if cell.kind == "machine" and not result.is_ok:
                break  # no device: nothing else can run
    except KeyboardInterrupt:
        print("stopped; results so far are in the report", file=sys.stderr)
    finally:
        bench.close()
    report = _write(args, results, len(cells) - len(results))
    text = table(report, args.part or ())
    (args.output / TABLE).write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nreport: {args.output / REPORT}", flush=True)
    return 1 if report["num_left"] or report["failed"] else 0


def measure(bench: Bench, cell: Cell) -> Result:
    """Run one cell; an exception becomes the result's error."""
    module, _, name = KINDS[cell.kind].partition(":")
    function = getattr(importlib.import_module(f"tests.gpu.{module}"), name)
    began = time.perf_counter()
    figures: Mapping[str, Any] = {}
    error = ""
    try:
        figures = dict(function(bench, **cell.settings))
    except UnableError as problem:
        error = str(problem)
    except Exception as problem:
        traceback.print_exc()
        last = traceback.extract_tb(problem.__traceback__)[-1]
        where = f"{os.path.relpath(last.filename)}:{last.lineno}"
        error = f"{type(problem).__name__}: {problem} ({where})"[:2000]
    if error:
        bench.settle()
    seconds = round(time.perf_counter() - began, 3)
    return Result(cell.name, cell.part, cell.kind, figures, error, seconds, dict(cell.settings))


def run_tests(bench: Bench) -> dict[str, Any]:
    """The tests of this folder by pytest in a process: outcomes, failures and the slowest."""
    outcomes = bench.folder() / "tests.xml"
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-m", "not slow"]
    done = subprocess.run([*command, f"--junitxml={outcomes}"], cwd=ROOT, check=False)
    if not outcomes.exists():
        raise UnableError(f"pytest ended with {done.returncode} and wrote no results.")
    counts: Counter[str] = Counter()
    failures, slowest = [], []
    for case in ET.parse(outcomes).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = any(child.tag == "skipped" for child in case)
        counts["failed" if bad else "skipped" if skipped else "passed"] += 1
        failures += [{"test": name, "text": (child.text or "")[-3000:]} for child in bad]
        slowest.append((float(case.get("time", 0)), name))
    return {"counts": counts, "failures": failures, "slowest": sorted(slowest)[:-6:-1]}


def _write(args: argparse.Namespace, results: Sequence[Result], num_left: int) -> dict[str, Any]:
    report = build(results, commit=_commit(), quick=args.quick, num_left=num_left)
    (args.output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.run_all", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--part", action="append", choices=[*PARTS, "all"], metavar="NAME",
        help=f"{', '.join(PARTS)} or all (default); may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=float, default=540.0, metavar="S",
        help="start no cell after this many seconds (default: 540)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path(os.environ.get("OUT") or "gpu-report"), metavar="DIR",
        help="folder of the report (default: $OUT, else ./gpu-report)",
    )  # fmt: skip
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a trial, no figures")
    return parser


def _commit() -> str:
    """The commit of the working tree; "" without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40"],
            cwd=ROOT, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
