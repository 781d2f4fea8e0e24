"""Adaptive threads against a fixed number, alone and beside programs that never rest.

    python -m tests.benchmarks.busy [--model DIR] [--load-format dummy] [--requests N] [--quick]

One engine writes the same replies with both, in turns, beside 0, 1 and as many busy programs as
there are cores. Loading is measured in processes of their own, in turns as well: what a process
learnt of the kernels once it does not measure again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from app.paths import starter_model
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.hardware.idle_cores import allowed_cores
from engine.hardware.machine import default_threads
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

PROMPT_TOKENS, REPLY_TOKENS, QUICK_TOKENS = 200, 120, 60
ROUNDS, QUICK_ROUNDS = 8, 3
LOADS, QUICK_LOADS = 4, 2
SETTLE_S = 1.0
NAMES = {False: "fixed", True: "adaptive"}
ALONE_GOAL = 1.05
"""Alone a trial now and then is all that it may cost."""

_LOAD = """
import json, sys, time
from engine import EngineConfig, LLMEngine
config = EngineConfig(**json.loads(sys.argv[1]))
began = time.perf_counter()
engine = LLMEngine(config)
print(time.perf_counter() - began)
engine.shutdown()
"""


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many programs that compute all the time."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def reply(engine: LLMEngine, num_requests: int, num_tokens: int, salt: int) -> dict[str, Any]:
    """Seconds to the first token of all requests, and of every step in which all decode."""
    vocabulary = engine.model_info.vocab_size
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    began = time.perf_counter()
    waiting = {
        engine.add_request([(7 * n + 13 * r + salt) % vocabulary for n in range(PROMPT_TOKENS)],
                           params)
        for r in range(num_requests)
    }  # fmt: skip
    first, gaps, last = 0.0, [], 0.0
    while engine.has_unfinished:
        events = engine.step()
        now = time.perf_counter()
        if not waiting:
            gaps.append(now - last)
        else:
            waiting -= {event.request_id for event in events if event.is_first}
            first = now - began
        last = now
    return {"ttft_s": first, "itl_s": gaps}


def replies(
    engine: LLMEngine, num_requests: int, rounds: int, num_tokens: int
) -> dict[str, dict[str, Any]]:
    """Of both, in turns. Milliseconds."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for index in range(rounds):
        for is_adaptive in (False, True) if index % 2 == 0 else (True, False):
            engine.reconfigure(adaptive_threads=is_adaptive)
            found[is_adaptive].append(reply(engine, num_requests, num_tokens, index))
    return {NAMES[kind]: summarise(rounds_of) for kind, rounds_of in found.items()}


def summarise(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    firsts = [one["ttft_s"] * 1e3 for one in rounds]
    gaps = np.array([gap for one in rounds for gap in one["itl_s"]]) * 1e3
    return {
        "ttft_ms": {"mean": statistics.mean(firsts), "max": max(firsts)},
        "itl_ms": {
            "mean": float(gaps.mean()), "p50": float(np.percentile(gaps, 50)),
            "p99": float(np.percentile(gaps, 99)), "max": float(gaps.max()),
        },
    }  # fmt: skip


def loads(config: EngineConfig, count: int) -> dict[str, list[float]]:
    """Seconds, each in a process of its own, without what importing takes."""
    found: dict[str, list[float]] = {name: [] for name in NAMES.values()}
    for _ in range(count):
        for kind, name in NAMES.items():
            values = json.dumps(config.replace(adaptive_threads=kind).as_dict())
            done = subprocess.run(
                [sys.executable, "-c", _LOAD, values], capture_output=True, text=True, check=True
            )
            found[name].append(float(done.stdout))
    return found


def goals_of(busy: int, found: dict[str, Any]) -> list[Goal]:
    fixed, adaptive = found["fixed"], found["adaptive"]
    goals = []
    for what, key in (("a token", "itl_ms"), ("the first token", "ttft_ms")):
        ratio = adaptive[key]["mean"] / fixed[key]["mean"]
        if not busy:
            text = f"alone: {what} takes at most {ALONE_GOAL} times as long as with a fixed number"
            goals.append(at_most(text, ratio, ALONE_GOAL, "x"))
        else:
            text = f"beside {busy} busy: {what} is faster than with a fixed number"
            goals.append(Goal(text, f"{1 / ratio:.2f}x", ratio < 1))
    return goals


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=starter_model(), metavar="DIR",
                        help="default: the starter model")  # fmt: skip
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--requests", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args()
    config = EngineConfig(
        model=str(args.model),
        load_format=args.load_format,
        num_threads=args.num_threads or default_threads(),
        enable_prefix_caching=False,
        device="cpu",
    )
    rounds, num_tokens, num_loads = (
        (QUICK_ROUNDS, QUICK_TOKENS, QUICK_LOADS) if args.quick else (ROUNDS, REPLY_TOKENS, LOADS)
    )
    with watch_others() as others:
        engine = LLMEngine(config)
        reply(engine, args.requests, num_tokens, 0)
    cases: dict[int, Any] = {}
    goals: list[Goal] = []
    for busy in sorted({0, 1, len(allowed_cores())}):
        print(f"beside {busy} busy programs", file=sys.stderr)
        with busy_programs(busy):
            found = replies(engine, args.requests, rounds, num_tokens)
            cases[busy] = {**found, "load_s": loads(config, num_loads)}
        goals += goals_of(busy, found)
    engine.shutdown()
    _print(args.requests, config, cases)
    print_goals(goals)
    report = {
        "benchmark": "busy", **context(), "model": str(args.model), "requests": args.requests,
        "num_threads": config.num_threads, "prompt_tokens": PROMPT_TOKENS, "rounds": rounds,
        "reply_tokens": num_tokens, "busy_programs": cases,
        "goals": [goal.as_dict() for goal in goals], "cpu_taken_by_others_before": others.share,
    }  # fmt: skip
    write_json(args.output_json, report)
    return 0


def _print(num_requests: int, config: EngineConfig, cases: dict[int, Any]) -> None:
    print(f"{num_requests} requests, at most {config.num_threads} threads; milliseconds")
    header = ("", "first token", "most", "a token", "p50", "p99", "most", "load s", "most")
    rows = []
    for busy, case in cases.items():
        for name in NAMES.values():
            first, gaps, seconds = case[name]["ttft_ms"], case[name]["itl_ms"], case["load_s"][name]
            figures = (first["mean"], first["max"], *gaps.values())
            rows.append(
                (
                    f"beside {busy}, {name}", *(f"{figure:,.1f}" for figure in figures),
                    f"{statistics.mean(seconds):.1f}", f"{max(seconds):.1f}",
                )
            )  # fmt: skip
    print_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
