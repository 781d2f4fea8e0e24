"""What a step costs beside the model: its host time, and sampling.

    python -m tests.benchmarks.step_parts [--model DIR] [--quick]

Host time is planning, packing, commit and events, without any tensor operation: the time of
`LLMEngine.step` less the model's and the sampler's. Sampling is of 64 rows of a large vocabulary,
beside the time in which torch reads them once (the sum of each row).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from app.paths import starter_model
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.hardware.machine import default_threads
from engine.sampling.sampler import Sampler, SamplingRow
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

RUNNING = (1, 16, 64, 256)
PROMPT, STEPS, QUICK_STEPS = 32, 200, 40
FIXED_MS, REQUEST_MS = 1.0, 0.020
ROWS, VOCABULARY, GREEDY_MS = 64, 151_936, 3.0
SPREAD = 5.0
"""Of the logits: so peaked that a few hundred tokens hold 0.9 of the mass, as with a model."""
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=1.0),
    "top-k 50": SamplingParams(temperature=1.0, top_k=50),
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "top-k 50, top-p 0.9": SamplingParams(temperature=1.0, top_k=50, top_p=0.9),
}


def host_ms(engine: LLMEngine, running: int, num_steps: int) -> list[float]:
    """Of each step in which `running` requests decode."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 2, ignore_eos=True)
    for index in range(running):
        engine.add_request([(index * PROMPT + i) % 250 + 1 for i in range(PROMPT)], params)
    found = []
    while engine.has_unfinished:
        began = time.perf_counter()
        engine.step()
        taken = time.perf_counter() - began
        step = engine.snapshot().steps[-1]
        if len(step.entries) == running and all(e.kind == "decode" for e in step.entries):
            found.append((taken - step.model_s - step.sample_s) * 1e3)
    return found


def host_times(model: Path, num_threads: int, num_steps: int) -> dict[int, dict[str, float]]:
    engine = LLMEngine(
        EngineConfig(
            model=str(model), device="cpu", num_threads=num_threads, max_num_seqs=max(RUNNING),
            max_num_batched_tokens=2048, max_model_len=512, enable_prefix_caching=False,
        )
    )  # fmt: skip
    found = {}
    for running in RUNNING:
        times = sorted(host_ms(engine, running, num_steps))
        found[running] = {
            "p50_ms": statistics.median(times), "p99_ms": times[int(0.99 * (len(times) - 1))],
            "goal_ms": FIXED_MS + REQUEST_MS * running, "num_steps": len(times),
        }  # fmt: skip
    engine.shutdown()
    return found


def shortest(call: Callable[[], object], turns: int) -> float:
    """Milliseconds."""
    taken = []
    for _ in range(turns):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken[1:]) * 1e3


def sampling_times(turns: int) -> dict[str, float]:
    """Milliseconds of a step's sampling, and of reading its logits."""
    logits = SPREAD * torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(VOCABULARY, torch.device("cpu"))
    found = {"read": shortest(lambda: logits.sum(dim=1), turns)}
    for name, params in SAMPLING.items():
        prompt = [1] * PROMPT
        rows = [SamplingRow(f"{name}-{i}", params, i, PROMPT, prompt, []) for i in range(ROWS)]
        found[name] = shortest(lambda rows=rows: sampler.sample(logits, rows), turns)
        for row in rows:
            sampler.forget(row.request_id)
    return found


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=starter_model(), metavar="DIR",
                        help="its speed hardly matters (default: the starter)")  # fmt: skip
    args = parser.parse_args()
    threads = args.num_threads or default_threads()
    with watch_others() as others:
        host = host_times(args.model, threads, QUICK_STEPS if args.quick else STEPS)
        torch.set_num_threads(threads)
        sampling = sampling_times(5 if args.quick else 20)
    goals = _goals(host, sampling)
    print_table(
        ("running requests", "host ms, p50", "p99", "goal"),
        [(f"{n}", *(f"{one[key]:.2f}" for key in ("p50_ms", "p99_ms", "goal_ms")))
         for n, one in host.items()],
    )  # fmt: skip
    print_table(
        (f"{ROWS} rows of {VOCABULARY:,}", "ms", "of a read"),
        [(name, f"{ms:.2f}", f"{ms / sampling['read']:.1f}x") for name, ms in sampling.items()],
    )
    print_goals(goals)
    report: dict[str, Any] = {
        "benchmark": "step_parts", **context(), "num_threads": threads, "host": host,
        "sampling_ms": sampling, "goals": [goal.as_dict() for goal in goals],
        "cpu_taken_by_others": others.share,
    }  # fmt: skip
    write_json(args.output_json, report)
    return 0


def _goals(host: dict[int, dict[str, float]], sampling: dict[str, float]) -> list[Goal]:
    return [
        *(at_most(f"host time of {n} running requests at most {one['goal_ms']:.2f} ms, p50",
                  one["p50_ms"], one["goal_ms"], " ms") for n, one in host.items()),
        at_most(f"greedy sampling of {ROWS} rows at most {GREEDY_MS:.0f} ms",
                sampling["greedy"], GREEDY_MS, " ms"),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
