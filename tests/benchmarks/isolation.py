"""What the window does to the engine's steps: beside it in a thread, and from a process apart.

    python -m tests.benchmarks.isolation [--case draft] [--requests N ...] [--rounds N] [--quick]

Three processes on the starter model, or on its draft model, whose steps take about 2 ms: the
engine's thread alone and without Qt, the window with the engine in its thread, the window with the
engine in a process of its own; both windows draw, every dock in view. Only one of them works at a
time; they take turns in short segments, so that a drift of the machine meets all three.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tests.benchmarks.gui_cases import Case, cases
from tests.benchmarks.gui_overhead import MAX_FIRST_TOKEN_MS, MAX_STALL_MS, Overhead, Worker
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

ALONE, THREAD, PROCESS = "headless", "window, thread", "window, process"
MODES = (ALONE, THREAD, PROCESS)
PLACES = {THREAD: "thread", PROCESS: "process"}
NUM_TOKENS, QUICK_TOKENS, WARM_UP_TOKENS = 1200, 400, 8
FIRST_TOKENS, QUICK_FIRST_TOKENS = 15, 5
MOST_P99 = 1.5
"""What the p99 of a step may grow by when a window in another process draws."""

Segments = Mapping[str, Sequence[Mapping[str, Any]]]


class Trio:
    """The three processes, each with its model loaded."""

    def __init__(
        self,
        stack: ExitStack,
        case: str,
        num_threads: int | None,
        environment: Mapping[str, str],
    ) -> None:
        self._workers: dict[str, Worker] = {}
        for mode in MODES:
            module = "isolation_engine" if mode == ALONE else "isolation_window"
            given = {"case": case, "num_threads": num_threads, "place": PLACES.get(mode)}
            folder = stack.enter_context(tempfile.TemporaryDirectory())  # each has its own chats
            own = {**environment, "INFERDECK_DATA_DIR": folder, "INFERDECK_CONFIG_DIR": folder}
            worker = Worker(f"tests.benchmarks.{module}", json.dumps(given), own)
            self._workers[mode] = stack.enter_context(worker)
            worker.answer()  # it has loaded: each chooses its kernels with the machine to itself

    def segment(self, mode: str, num_chats: int, num_tokens: int) -> dict[str, Any]:
        return self._workers[mode].ask(do="segment", num_chats=num_chats, num_tokens=num_tokens)

    def first_tokens(self, mode: str, count: int) -> list[float]:
        found = self._workers[mode].ask(do="first token", count=count, num_chats=1)
        return list(found["first_token_ms"])


def measure(trio: Trio, num_chats: int, rounds: int, num_tokens: int) -> Segments:
    """Segments of all three in turn."""
    segments: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for mode in MODES:
        trio.segment(mode, num_chats, WARM_UP_TOKENS)
    for index in range(rounds):
        for mode in MODES if index % 2 == 0 else reversed(MODES):
            print(f"{num_chats} requests: round {index + 1} of {rounds}, {mode}", file=sys.stderr)
            segments[mode].append(trio.segment(mode, num_chats, num_tokens))
    return segments


def evaluate(segments: Segments, first: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians over the rounds; the longest gap is the longest of all."""
    speeds = {mode: [s["tokens_per_s"] for s in segments[mode]] for mode in MODES}
    return {
        mode: {
            "tokens_per_s": statistics.median(speeds[mode]),
            "cost": Overhead.of(speeds[ALONE], speeds[mode])._asdict(),
            **{
                name: {q: statistics.median(s[name][q] for s in segments[mode])
                       for q in ("p50", "p99", "max")}
                for name in ("step_ms", "period_ms")
            },
            "longest_gap_ms": max(s.get("longest_gap_ms", 0.0) for s in segments[mode]),
            "first_token_ms": list(first.get(mode, ())),
        }
        for mode in MODES
    }  # fmt: skip


def goals_of(num_chats: int, found: Mapping[str, Any]) -> list[Goal]:
    apart, alone = found[PROCESS], found[ALONE]
    growth = apart["step_ms"]["p99"] / alone["step_ms"]["p99"]
    what = f"{num_chats} requests, engine in a process of its own"
    return [
        at_most(f"{what}: p99 of a step is at most {MOST_P99:g} times that without a window",
                growth, MOST_P99, " times"),
        Goal(f"{what}: it is no longer than with the engine in the window's thread",
             f"{apart['step_ms']['p99']:.2f} against {found[THREAD]['step_ms']['p99']:.2f} ms",
             apart["step_ms"]["p99"] <= found[THREAD]["step_ms"]["p99"]),
        at_most(f"{what}: no stall of the GUI thread over {MAX_STALL_MS:g} ms",
                apart["longest_gap_ms"], MAX_STALL_MS, " ms at most"),
        at_most(f"{what}: first token painted within {MAX_FIRST_TOKEN_MS:g} ms (median)",
                statistics.median(apart["first_token_ms"]), MAX_FIRST_TOKEN_MS, " ms"),
    ]  # fmt: skip


def print_found(num_chats: int, case: Case, found: Mapping[str, Any]) -> None:
    print(f"{num_chats} requests, {case.title}")
    rows = []
    for mode, figures in found.items():
        step, period, first = figures["step_ms"], figures["period_ms"], figures["first_token_ms"]
        is_window = mode != ALONE
        rows.append(
            (
                mode, f"{figures['tokens_per_s']:.1f}",
                str(Overhead(*figures["cost"].values())) if is_window else "",
                f"{step['p50']:.2f}", f"{step['p99']:.2f}", f"{step['max']:.1f}",
                f"{period['p50']:.2f}", f"{period['p99']:.2f}",
                f"{figures['longest_gap_ms']:.0f}" if is_window else "",
                f"{statistics.median(first):.1f} / {max(first):.1f}" if first else "",
            )
        )  # fmt: skip
    header = ("", "tokens/s", "cost", "step p50 ms", "p99", "max", "start to start p50", "p99",
              "GUI gap ms", "first token ms, median / max")  # fmt: skip
    print_table(header, rows)


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--case", choices=("starter", "draft"), default="starter")
    parser.add_argument("--requests", type=int, action="append", metavar="N", help="default: 1, 4")
    parser.add_argument("--rounds", type=int, help="default: 8, or 3 with --quick")
    return parser.parse_args()


def main() -> int:
    args = parsed()
    case = cases(quick=args.quick)[args.case]
    rounds = args.rounds or (3 if args.quick else 8)
    num_tokens = QUICK_TOKENS if args.quick else NUM_TOKENS
    report: dict[str, Any] = {
        "benchmark": "isolation", **context(), "case": case.name, "rounds": rounds,
        "num_tokens": num_tokens, "requests": {},
    }  # fmt: skip
    goals: list[Goal] = []
    environment = {}
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        environment["QT_QPA_PLATFORM"] = os.environ.get("QT_QPA_PLATFORM", "offscreen")
    with watch_others() as others, ExitStack() as stack:
        trio = Trio(stack, case.name, args.num_threads, environment)
        count = QUICK_FIRST_TOKENS if args.quick else FIRST_TOKENS
        first = {mode: trio.first_tokens(mode, count) for mode in PLACES}
        for num_chats in args.requests or (1, 4):
            segments = measure(trio, num_chats, rounds, num_tokens)
            found = evaluate(segments, first)
            report["requests"][num_chats] = {"found": found, "segments": segments}
            goals += goals_of(num_chats, found)
            print_found(num_chats, case, found)
    print_goals(goals)
    report["goals"] = [goal.as_dict() for goal in goals]
    report["cpu_taken_by_others"] = others.share
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
