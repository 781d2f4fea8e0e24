"""Fuzzes one kind of file: see the package."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import hypothesis

from engine.errors import InferdeckError
from tests.corpus import child, controls
from tests.corpus.case import LONGEST_S, RAW, Case
from tests.fuzz.targets import TARGETS, Target

PER_ROUND = 200
"""Examples of one run of hypothesis."""
CURRENT, COUNT = "current", "count"
SLACK_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="of each target")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for examples with faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    args = parser.parse_args(argv)
    child.prepare()
    names = list(TARGETS) if args.target == "all" else [args.target]
    with tempfile.TemporaryDirectory(prefix="inferdeck-fuzz-") as folder:
        keep = args.keep or Path(folder, "kept")
        keep.mkdir(exist_ok=True, parents=True)
        models = Path(folder, "controls")
        models.mkdir()
        controls.make(models, {TARGETS[name].control for name in names})
        results = {name: fuzz(name, args.seconds, args.seed, models, keep) for name in names}
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any(result["faults"] for result in results.values()) else 0


def fuzz(name: str, seconds: float, seed: int, models: Path, keep: Path) -> dict:
    """Run in forked children until the time is over: one that dies is followed by another."""
    until, faults, examples = time.monotonic() + seconds, [], 0
    while (left := until - time.monotonic()) > 0:
        (keep / COUNT).write_text("0")
        run = partial(_explore, TARGETS[name], until, seed, keep)
        case = Case("fuzz", name, run, control=TARGETS[name].control)
        ((_, outcome),) = child.run_all([case], controls=models, longest_s=left + SLACK_S)
        examples += int((keep / COUNT).read_text() or 0)
        faults += [line for line in outcome.out.splitlines() if line]
        if outcome.ended != "exit" or outcome.code != 0:
            what = {signal.SIGALRM: f"no end within {LONGEST_S:.0f} s"}.get(outcome.code)
            what = what if outcome.ended == "signal" and what else f"{outcome.ended} {outcome.code}"
            faults.append(f"{what}: {_kept(keep)} {outcome.err[-300:]}".strip())
        seed += 1000
    for fault in faults:
        print(f"FAIL {name}: {fault}")
    print(f"{name}: {examples} examples in {seconds:.0f} s, {len(faults)} faults", flush=True)
    return {"examples": examples, "faults": faults}


def _explore(target: Target, until: float, seed: int, keep: Path, folder: Path) -> int:
    """In the child. Each fault is told once; a hang is the alarm's, which ends the process."""
    file = folder / target.file
    original, known, count = file.read_bytes(), set[str](), 0
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def check(content: bytes) -> None:
        nonlocal count
        if time.monotonic() > until:
            return
        count += 1
        (keep / CURRENT).write_bytes(content)
        (keep / COUNT).write_text(str(count))
        for beside in folder.parent.glob("input/*-*"):  # a store's own, of the example before
            if beside.name.startswith(f"{target.file}-"):
                beside.unlink()
        file.write_bytes(content)
        signal.alarm(int(LONGEST_S))
        fault = _fault(target, folder)
        signal.alarm(0)
        if fault and fault not in known:
            known.add(fault)
            print(f"{fault}: {_kept(keep)}", flush=True)

    number = seed
    while time.monotonic() < until:
        settings = hypothesis.settings(
            max_examples=PER_ROUND, deadline=None, database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        test = hypothesis.given(target.examples(original))(check)
        settings(hypothesis.seed(number)(test))()
        number += 1
    return 0


def _fault(target: Target, folder: Path) -> str:
    """What is wrong, the same words for the same fault; "" for nothing."""
    out, err = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        target.read(folder)
        return ""
    except InferdeckError as error:
        raw = sorted(set(RAW.findall(error.cause)))
        return f"raw text {raw} in {type(error).__name__}" if raw else ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"{type(error).__name__} at {place}: {str(error)[:120]!r}"
    finally:
        for number, copy in ((1, out), (2, err)):
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)


def _kept(keep: Path) -> Path:
    """The current example under a name that stays."""
    content = (keep / CURRENT).read_bytes()
    file = keep / hashlib.sha256(content).hexdigest()[:16]
    file.write_bytes(content)
    return file


if __name__ == "__main__":
    sys.exit(main())
