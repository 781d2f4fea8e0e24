"""Walks through the points: see the package."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.corpus import child
from tests.corpus.case import Case, faults
from tests.faults.fault import KINDS, Fault, Point
from tests.faults.table import POINTS, kinds_of

CONTROL = "model"
SCENES = {
    "engine_scenes": (
        "load", "step", "add", "encoder", "reconfigure", "unload", "shutdown"
    ),
    "storage_scenes": ("chats", "opened", "file"),
    "download_scenes": ("queued",),
    "process_scenes": ("started",),
}  # fmt: skip
MODULES = (
    "tests.faults.engine_scenes", "tests.faults.storage_scenes", "tests.faults.process_scenes",
    "app.link.child_engine", "app.storage.report_store",
)  # fmt: skip
MODULE_OF = {scene: module for module, scenes in SCENES.items() for scene in scenes}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--point", metavar="N", type=int, action="append", help="default: all")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--sample", metavar="SECONDS", type=float, help="as many as fit, mixed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--jobs", metavar="N", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the points and end")
    args = parser.parse_args(argv)
    if args.list:
        for number, point in enumerate(POINTS, 1):
            print(f"{number:3} {point.stage:26} {point.target} {', '.join(kinds_of(point))}")
        return 0
    child.prepare()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # collections of the children need not look at what was imported
    cases = [
        case
        for number, point in enumerate(POINTS, 1)
        for kind in kinds_of(point)
        if (not args.point or number in args.point) and (not args.kind or kind in args.kind)
        for case in [_case(number, point, kind)]
    ]
    records = list(run(cases, args.jobs, args.sample))
    failed = [record for record in records if record["faults"]]
    if args.json is not None:
        report = {"cases": len(records), "failed": len(failed), "records": records}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{len(records)} faults at {len({r['point'] for r in records})} points, "
          f"{len(failed)} failed")  # fmt: skip
    return 1 if failed else 0


def run(
    cases: list[Case], jobs: int = 1, sample_s: float | None = None
) -> Iterator[dict[str, Any]]:
    """A record of each case; with `sample_s` of as many as begin by then, in an order that is mixed
    and always the same."""
    if sample_s is not None:
        random.Random(1).shuffle(cases)
    with tempfile.TemporaryDirectory(prefix="inferdeck-controls-") as name:
        folder = Path(name, CONTROL)
        folder.mkdir()
        from tests.faults.bench import make_control

        child.call(lambda: make_control(folder))
        started = time.monotonic()
        chosen = takewhile(
            lambda case: sample_s is None or time.monotonic() - started < sample_s, cases
        )
        for case, outcome in child.run_all(chosen, jobs, controls=Path(name)):
            found = faults(case, outcome, None)
            number, kind = case.key.split("/")
            record = {
                "point": int(number), "kind": kind, "stage": case.kind, "faults": found,
                "seconds": round(outcome.seconds, 2), "message": outcome.err[-3000:],
            }  # fmt: skip
            if found:
                why = outcome.err.strip().rpartition("\n")[2]
                print(f"FAIL {number} {kind} ({case.kind}): {'; '.join(found)}: {why}", flush=True)
            yield record


def _case(number: int, point: Point, kind: str) -> Case:
    def scene(folder: Path) -> int:
        module = importlib.import_module(f"tests.faults.{MODULE_OF[point.scene]}")
        getattr(module, point.scene)(Fault(point, kind), folder)
        return 0

    return Case(point.stage, f"{number}/{kind}", scene, control=CONTROL, expected="ok")


if __name__ == "__main__":
    sys.exit(main())
