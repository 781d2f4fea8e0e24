"""What the window costs the engine: the same work headless, with the window, with it hidden.

    python -m tests.benchmarks.gui_overhead [--case NAME ...] [--rounds N]
        [--profile] [--all-docks] [--quick]

Two processes live through a case: one has the engine alone and no Qt, one the real window with the
engine in its thread. Only one of them works at a time; they take turns in short segments, so that
a drift of the machine meets both. The overhead is the mean over rounds of 1 - window / headless
(tokens per second while all conversations decode), with the half width of its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from tests.benchmarks.gui_cases import Case, cases
from tests.benchmarks.report import (
    Goal,
    arguments,
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)

MODES = ("headless", "window drawing", "window hidden")
WARM_UP_TOKENS = 8
FIRST_TOKENS, STARTS = 20, 3
MAX_FIRST_TOKEN_MS, MAX_START_S, MAX_STALL_MS = 20.0, 3.0, 100.0


class Worker:
    """A child process that answers JSON lines."""

    def __init__(self, module: str, argument: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process ended: exit code {self._process.wait()}")
        return dict(json.loads(line))


class Overhead(NamedTuple):
    mean: float
    half_width: float  # of the 95 % interval

    @classmethod
    def of(cls, headless: Sequence[float], other: Sequence[float]) -> Overhead:
        shares = [1 - b / a for a, b in zip(headless, other, strict=True)]
        if len(shares) < 2:
            return cls(shares[0], math.nan)  # one round tells nothing of the spread
        error = statistics.stdev(shares) / math.sqrt(len(shares))
        return cls(statistics.mean(shares), _student(len(shares) - 1) * error)

    def __str__(self) -> str:
        known = math.isfinite(self.half_width)
        return f"{self.mean:.1%}" + (f" ± {self.half_width:.1%}" if known else " (one round)")


def _student(freedom: int) -> float:
    """97.5 % quantile of Student's t for a few degrees of freedom."""
    table = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
    return table.get(freedom, 2.2 if freedom < 20 else 2.0)


def measure(
    case: Case, rounds: int, args: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run one case: all segments of both processes, then the first tokens."""
    quick = args.quick
    argument = json.dumps(
        {"case": case.name, "quick": quick, "num_threads": args.num_threads,
         "all_docks": args.all_docks}
    )  # fmt: skip
    segments: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        workers = []
        for module in ("gui_headless", "gui_window"):
            worker = Worker(f"tests.benchmarks.{module}", argument, environment)
            workers.append(stack.enter_context(worker))
            worker.answer()  # it has loaded: each chooses its kernels with the machine to itself
        alone, window = workers

        def run(mode: str, num_tokens: int | None = None) -> dict[str, Any]:
            if mode == "headless":
                return alone.ask(num_tokens=num_tokens)
            visible = mode == "window drawing"
            return window.ask(do="segment", visible=visible, num_tokens=num_tokens)

        for mode in MODES:
            run(mode, WARM_UP_TOKENS)
        for index in range(rounds):
            for mode in MODES if index % 2 == 0 else reversed(MODES):
                print(f"{case.name}: round {index + 1} of {rounds}, {mode}", file=sys.stderr)
                segments[mode].append(run(mode))
        found = window.ask(do="first token", count=FIRST_TOKENS // 2 if quick else FIRST_TOKENS)
        if args.profile:
            found |= window.ask(do="profile")
    return {"segments": segments, **found}


def evaluate(case: Case, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[Goal]]:
    segments = found["segments"]
    speeds = {mode: [s["tokens_per_s"] for s in segments[mode]] for mode in MODES}
    drawn = segments["window drawing"]
    drawing = Overhead.of(speeds["headless"], speeds["window drawing"])
    hidden = Overhead.of(speeds["headless"], speeds["window hidden"])
    stall = max(s["longest_gap_ms"] for mode in MODES[1:] for s in segments[mode])
    stalls = sum(s["num_stalls"] for mode in MODES[1:] for s in segments[mode])
    first = found["first_token_ms"]
    result = {
        "tokens_per_s": {mode: statistics.median(values) for mode, values in speeds.items()},
        "overhead_drawing": drawing._asdict(),
        "overhead_hidden": hidden._asdict(),
        "gui_ms_per_s": statistics.median(s["gui_ms_per_s"] for s in drawn),
        "redraw_ms_per_s": statistics.median(s["redraw_ms_per_s"] for s in drawn),
        "redraws_per_s": statistics.median(s["redraws_per_s"] for s in drawn),
        "longest_gap_ms": stall,
        "num_stalls": stalls,
        "first_token_ms": {"median": statistics.median(first), "max": max(first), "all": first},
        "segments": segments,
    }
    goals = [
        Goal(f"{case.name}: the window costs at most {case.goal:.0%} of the throughput",
             str(drawing), drawing.mean <= case.goal),
        at_most(f"{case.name}: first token painted within {MAX_FIRST_TOKEN_MS:g} ms of its step",
                max(first), MAX_FIRST_TOKEN_MS, " ms at most"),
        Goal(f"{case.name}: no stall of the GUI thread over {MAX_STALL_MS:g} ms",
             f"{stalls} stalls, longest gap {stall:.0f} ms", stalls == 0),
    ]  # fmt: skip
    return result, goals


def print_case(case: Case, result: Mapping[str, Any]) -> None:
    print(f"{case.title}: {case.num_chats} conversations, {case.num_tokens} tokens each")
    speeds = result["tokens_per_s"]
    cost = {
        "headless": "",
        "window drawing": str(Overhead(*result["overhead_drawing"].values())),
        "window hidden": str(Overhead(*result["overhead_hidden"].values())),
    }
    rows = [(mode, f"{speeds[mode]:.1f}", cost[mode]) for mode in MODES]
    print_table(("", "tokens/s (median)", "cost"), rows)
    print(
        f"GUI thread: {result['gui_ms_per_s']:.0f} ms a second, of which the charts "
        f"{result['redraw_ms_per_s']:.0f} ms at {result['redraws_per_s']:.1f} redraws a second; "
        f"first token painted after {result['first_token_ms']['median']:.1f} ms (median)\n"
    )


def start_seconds(environment: Mapping[str, str]) -> list[float]:
    """From starting the interpreter to the window's first paint, in seconds."""
    found = []
    for _ in range(STARTS):
        began = time.time()
        with Worker("tests.benchmarks.gui_window", "start", environment) as worker:
            found.append(worker.answer()["on_screen"] - began)
    return found


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    names = list(cases(quick=False))
    parser.add_argument("--case", action="append", choices=names, help="default: all")
    parser.add_argument("--profile", action="store_true", help="where the GUI thread's time goes")
    parser.add_argument("--all-docks", action="store_true", help="every dock open and in view")
    parser.add_argument("--rounds", type=int, help="default: 8, or 3 with --quick")
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 8)
    known = cases(quick=args.quick)
    report: dict[str, Any] = {"benchmark": "gui_overhead", **context(), "rounds": rounds,
                              "quick": args.quick, "cases": {}, "goals": []}  # fmt: skip
    goals: list[Goal] = []
    with watch_others() as others, tempfile.TemporaryDirectory() as folder:
        environment = {"INFERDECK_DATA_DIR": folder, "INFERDECK_CONFIG_DIR": folder}
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            environment["QT_QPA_PLATFORM"] = os.environ.get("QT_QPA_PLATFORM", "offscreen")
        starts = start_seconds(environment)
        report["start_s"] = starts
        goals.append(at_most(f"the window is on the screen within {MAX_START_S:g} s",
                             max(starts), MAX_START_S, " s at most"))  # fmt: skip
        for name in args.case or names:
            found = measure(known[name], rounds, args, environment)
            result, reached = evaluate(known[name], found)
            report["cases"][name] = result
            goals += reached
            print_case(known[name], result)
            if args.profile:
                print(f"GUI thread under the profiler, {found['seconds']:.1f} s:")
                print(found["profile"])
    print_goals(goals)
    report["goals"] = [goal.as_dict() for goal in goals]
    report["cpu_taken_by_others"] = others.share
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
