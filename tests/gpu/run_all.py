"""Tests, measurements and goals on an NVIDIA GPU, in one command that can be stopped at any time.

    python -m tests.gpu.run_all [--part NAME ...] [--time-limit S] [--output DIR]

What is finished is not run again with the same folder; --merge takes over what was finished in
another one. See tests/gpu/README.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.gpu.bench.cell import Cell, in_order
from tests.gpu.bench.parts import FULL, PARTS, QUICK, cells_of
from tests.gpu.bench.report import build
from tests.gpu.bench.store import REPORT, Store
from tests.gpu.bench.supervisor import ROOT, Supervisor
from tests.gpu.bench.table import table

TABLE = "table.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every cell has a result and none failed; goals that are missed fail nothing."""
    args = _parser().parse_args(arguments)
    began = time.monotonic()
    store = Store(args.output)
    for source in args.merge:
        store.merge(source)
    commit = args.commit or _commit()
    cells = in_order(cells_of(args.part or ["all"], QUICK if args.quick else FULL))
    if args.only:
        cells = [c for c in cells if c.rank < 0 or fnmatch.fnmatch(c.name, args.only)]
    if args.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if args.again:
        store.forget(args.again)
    supervisor = Supervisor(
        store, args.device, quick=args.quick, deadline=began + args.time_limit, commit=commit,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, _stop)
    left = len(cells)
    try:
        left = _run(supervisor, store, cells)
    except KeyboardInterrupt:
        print("stopped; what is finished is kept", file=sys.stderr)
    finally:
        report = build(store.results, commit=commit, quick=args.quick, num_left=left)
        (store.folder / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        text = table(report, args.part or ())
        (store.folder / TABLE).write_text(text + "\n", encoding="utf-8")
        print(f"\n{text}\n\nreport: {store.folder / REPORT}", flush=True)
    return 1 if left or report["failed"] else 0


def _run(supervisor: Supervisor, store: Store, cells: list[Cell]) -> int:
    """How many cells are left. Without the device nothing else is tried."""
    first, rest = cells[:1], cells[1:]
    left = supervisor.run(first)
    if not store.is_finished(first[0].name):
        return left + len(rest)
    return supervisor.run(rest)


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
        help="seconds after which nothing more is begun (default: 540)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path(os.environ.get("OUT") or "gpu-report"), metavar="DIR",
        help="folder of the results (default: $OUT, else ./gpu-report)",
    )  # fmt: skip
    parser.add_argument(
        "--merge", type=Path, action="append", default=[], metavar="PATH",
        help="folder or report of an earlier run, whose finished cells are taken over",
    )  # fmt: skip
    parser.add_argument("--only", metavar="PATTERN", help="cells whose names match: decode/int4/*")
    parser.add_argument(
        "--again", metavar="PATTERN", help="run these cells again although they are finished"
    )
    parser.add_argument("--list", action="store_true", help="print the cells in order, and end")
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to try everything out; no figure counts"
    )
    parser.add_argument("--commit", default="", help="what is measured, where there is no git")
    return parser


def _commit() -> str:
    """The commit of the working tree, with "+" where files differ from it; "" without git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=20
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=ROOT, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
