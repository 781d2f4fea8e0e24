"""Part "engine": throughput with all docks open against headless, in processes of their own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.gui_cases import cases
from tests.benchmarks.gui_overhead import MODES, Overhead, evaluate
from tests.benchmarks.gui_overhead import measure as measure_overhead

CASE = "qwen3-0.6b"
ROUNDS, QUICK_ROUNDS = 8, 2


def measure(quick: bool, num_threads: int | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """`environment`: of the window, with folders of its own."""
    case = cases(quick=quick)[CASE]
    rounds = QUICK_ROUNDS if quick else ROUNDS
    args = argparse.Namespace(
        quick=quick, num_threads=num_threads, profile=False, all_docks=True
    )
    result, goals = evaluate(case, measure_overhead(case, rounds, args, environment))
    costs = [
        "", *(str(Overhead(*result[f"overhead_{mode}"].values())) for mode in ("drawing", "hidden"))
    ]  # fmt: skip
    speeds = result["tokens_per_s"]
    return {
        "title": f"{case.title}: throughput with all docks open",
        "origin": f"{case.num_chats} conversations of {case.num_tokens} tokens, {rounds} rounds in "
        "turns with the engine alone in a process without Qt",
        "header": ("", "tokens/s (median)", "cost"),
        "rows": [
            (mode, f"{speeds[mode]:.1f}", cost) for mode, cost in zip(MODES, costs, strict=True)
        ],
        "notes": [
            f"GUI thread {result['gui_ms_per_s']:.0f} ms a second; first token on the screen after "
            f"{result['first_token_ms']['median']:.1f} ms (median), "
            f"{result['first_token_ms']['max']:.1f} ms at most"
        ],
        "figures": result,
        "goals": [goal.as_dict() for goal in goals],
    }
