"""Runs the corpus: see the package."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.corpus import child, commands, controls
from tests.corpus.case import LONGEST_S, Case, faults
from tests.corpus.table import KINDS, all_cases

PROGRAM_S = 120.0
"""Of which most are imports."""
LEAST = 5
"""Cases of a sample on a slow machine."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--only", metavar="TEXT", help="cases whose key contains TEXT")
    parser.add_argument("--sample", metavar="SECONDS", type=float, help="as many as fit, mixed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--jobs", metavar="N", type=int, default=1)
    parser.add_argument("--program", action="store_true", help="a new program for every command")
    parser.add_argument("--list", action="store_true", help="print the keys and end")
    args = parser.parse_args(argv)
    cases = [c for c in all_cases() if not args.kind or c.kind in args.kind]
    cases = [c for c in cases if args.only is None or args.only in f"{c.kind}/{c.key}"]
    if args.list:
        print("\n".join(f"{case.kind}/{case.key}" for case in cases))
        return 0
    child.prepare()
    commands.as_program = args.program
    longest_s = PROGRAM_S if args.program else LONGEST_S
    records = list(run(cases, args.jobs, args.sample, longest_s))
    failed = [record for record in records if record["faults"]]
    report = {"cases": len(records), "failed": len(failed),
              "by_kind": Counter(r["kind"] for r in records), "records": records}  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    slowest = max(records, key=lambda r: r["seconds"], default=None)
    if slowest is not None:
        largest = max(r["peak_bytes"] for r in records)
        print(f"slowest {slowest['seconds']:.1f} s ({slowest['key']}), "
              f"largest {largest / 1e6:,.0f} MB")  # fmt: skip
    print(f"{len(records)} cases, {len(failed)} failed")
    return 1 if failed else 0


def run(cases: list[Case], jobs: int, sample_s: float | None, longest_s: float) -> Iterator[dict]:
    """A record of each case; with `sample_s` of as many as begin by then, LEAST at least, in an
    order that is mixed and always the same."""
    if sample_s is not None:
        random.Random(0).shuffle(cases)
    with tempfile.TemporaryDirectory(prefix="inferdeck-controls-") as folder:
        expected = controls.make(Path(folder), {case.control for case in cases})
        until = math.inf if sample_s is None else time.monotonic() + sample_s
        numbered = itertools.takewhile(
            lambda one: one[0] < LEAST or time.monotonic() < until, enumerate(cases)
        )
        chosen = (case for _, case in numbered)
        for case, outcome in child.run_all(
            chosen, jobs, controls=Path(folder), longest_s=longest_s
        ):
            found = faults(case, outcome, expected.get(case.answer or case.control))
            if found:
                print(f"FAIL {case.kind}/{case.key}: {'; '.join(found)}", flush=True)
            yield {
                "kind": case.kind, "key": case.key, "expected": case.expected, "faults": found,
                "ended": outcome.ended, "code": outcome.code, "seconds": outcome.seconds,
                "peak_bytes": outcome.peak, "message": outcome.err[-2000:],
            }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
