"""Against transformers, on the same weights, threads and prompts, in one process, taking turns.

    python -m tests.benchmarks.peers [--shape NAME ...] [--work NAME ...] [--quick]

Workloads: decode-1, decode-8, decode-16 (128 tokens in, 64 out, so many requests at once),
prompt-1024 (1,024 in, 1 out), and shared-prefix (eight prompts of 800 tokens that share 768, one
after the other, this engine with its prefix cache on and off). Figures are medians over rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.bench.report import decode_bandwidth
from app.bench.runner import engine_facts, read_bandwidth
from engine.hardware.machine import default_threads
from tests.benchmarks.checkpoints import make_checkpoint
from tests.benchmarks.peer_engines import (
    Inferdeck,
    PeerEngine,
    Served,
    TransformersContinuousBatching,
    TransformersGenerate,
    load_transformers,
    random_prompts,
)
from tests.benchmarks.report import (
    Goal,
    arguments,
    at_least,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)

SHAPES = ("qwen3-0.6b", "llama-3.2-1b")
PREFIX, TAIL, SHARING, PREFIX_OUTPUT = 768, 32, 8, 4
QUICK_OUTPUT = 20
WARM_UP_INPUT = 16  # tokens: as many requests as are measured, but not their long prefill


@dataclass(frozen=True, slots=True)
class Work:
    """`num_requests` prompts at once. `measure` names the figure that the goals compare."""

    name: str
    num_input: int
    num_output: int
    num_requests: int
    measure: str
    goals: Mapping[str, float]  # peer -> how many times its figure is wanted


WORK = (
    Work("decode-1", 128, 64, 1, "decode tokens/s", {"generate": 1.0}),
    Work("decode-8", 128, 64, 8, "output tokens/s", {"generate": 2.0, "generate_batch": 2.0}),
    Work("decode-16", 128, 64, 16, "output tokens/s", {"generate": 2.0, "generate_batch": 2.0}),
    Work("prompt-1024", 1024, 1, 1, "prompt tokens/s", {"generate": 1.0}),
)
SHARED_PREFIX = "shared-prefix"
PREFIX_GOAL = 0.8


def measure(served: Served, work: Work) -> dict[str, float]:
    """Figures of one run. Decode speed is that of the gaps between tokens, without the prompt."""
    requests = served.requests
    ttft = statistics.mean(r.ttft_s or 0.0 for r in requests)
    gaps = [gap for r in requests for gap in r.itl_s]
    found = {
        "ttft ms": ttft * 1000,
        "output tokens/s": sum(r.num_output_tokens for r in requests) / served.span_s,
    }
    if work.num_requests == 1:
        found["prompt tokens/s"] = work.num_input / ttft
    if gaps:
        found["itl ms"] = statistics.mean(gaps) * 1000
        found["decode tokens/s"] = len(requests) / statistics.mean(gaps)
    return found


class ShapeBenchmark:
    """All comparisons at one shape. Loads both engines on the same checkpoint."""

    def __init__(self, shape: str, model: Path, num_threads: int, rounds: int, quick: bool) -> None:
        self.shape, self.rounds = shape, rounds
        self.quick = quick
        self.num_threads = num_threads
        self.ours = Inferdeck(model, num_threads)
        loaded = load_transformers(model)
        torch.set_num_threads(num_threads)
        self.vocab_size = int(loaded.config.vocab_size)
        self.engines: list[PeerEngine] = [
            self.ours,
            TransformersGenerate(loaded),
            TransformersContinuousBatching(loaded),
        ]
        self.bandwidth = read_bandwidth(num_threads)

    def run(self, names: Sequence[str]) -> dict[str, Any]:
        result: dict[str, Any] = {"work": {}, "goals": []}
        for work in WORK:
            if work.name in names:
                result["work"][work.name] = self._compare(work, result["goals"])
        if SHARED_PREFIX in names:
            result["work"][SHARED_PREFIX] = self._shared_prefix(result["goals"])
        print(f"{self.shape}: goals")
        print_goals(result["goals"])
        result["goals"] = [goal.as_dict() for goal in result["goals"]]
        return result

    def _compare(self, work: Work, goals: list[Goal]) -> dict[str, Any]:
        num_output = min(work.num_output, QUICK_OUTPUT) if self.quick else work.num_output
        rounds: dict[str, list[dict[str, float]]] = {e.name: [] for e in self.engines}
        decoded = []
        for index in range(-1, self.rounds):
            prompts = random_prompts(
                work.num_requests, work.num_input, self.vocab_size, (work.name, index)
            )
            # Each round begins with another engine, so that a drift meets all of them.
            turn = index % len(self.engines)
            for engine in self.engines[turn:] + self.engines[:turn]:
                print(f"{self.shape} {work.name} {engine.name} round {index}", file=sys.stderr)
                if index < 0:
                    engine.run([prompt[:WARM_UP_INPUT] for prompt in prompts], 3)
                    continue
                served = engine.run(prompts, num_output)
                rounds[engine.name].append(measure(served, work))
                if served.load is not None:
                    decoded.append(served.load)
        medians = {name: _medians(found) for name, found in rounds.items()}
        self._print(work, medians)
        for peer, factor in work.goals.items():
            ratio = medians["inferdeck"][work.measure] / medians[peer][work.measure]
            text = f"{work.name}: {work.measure} at least {factor:g}x {peer}"
            goals.append(at_least(text, ratio, factor))
        figures: dict[str, Any] = {"medians": medians, "rounds": rounds}
        achieved = decode_bandwidth(
            decoded, engine_facts(self.ours.engine.snapshot(), self.bandwidth)
        )
        if achieved is not None:
            figures["decode_bytes_per_s"] = achieved
            figures["memory_read_bytes_per_s"] = self.bandwidth
            figures["memory_bandwidth_utilization"] = achieved / self.bandwidth
            print(
                f"decoding read {achieved / 1e9:.1f} GB/s of {self.bandwidth / 1e9:.1f} GB/s that "
                f"memory gives: {achieved / self.bandwidth:.0%}\n"
            )
        return figures

    def _shared_prefix(self, goals: list[Goal]) -> dict[str, Any]:
        """TTFT of prompts that come one after the other, cache on and off, taking turns."""
        ttft: dict[bool, list[float]] = {True: [], False: []}
        first: dict[bool, list[float]] = {True: [], False: []}
        for index in range(self.rounds):
            for cached in (True, False) if index % 2 == 0 else (False, True):
                self.ours.engine.reconfigure(enable_prefix_caching=cached)
                salt = (SHARED_PREFIX, index, cached)
                (prefix,) = random_prompts(1, PREFIX, self.vocab_size, salt)
                tails = random_prompts(SHARING, TAIL, self.vocab_size, (*salt, "tails"))
                times = [
                    self.ours.run([prefix + tail], PREFIX_OUTPUT).requests[0].ttft_s or 0.0
                    for tail in tails
                ]
                print(f"{self.shape} {SHARED_PREFIX} cache {cached} round {index}", file=sys.stderr)
                first[cached].append(times[0] * 1000)
                ttft[cached] += [t * 1000 for t in times[1:]]
        self.ours.engine.reconfigure(enable_prefix_caching=True)
        on, off = statistics.median(ttft[True]), statistics.median(ttft[False])
        length = PREFIX + TAIL
        print(f"{self.shape}, {SHARED_PREFIX}: {SHARING} prompts of {length} tokens, TTFT ms")
        print_table(
            ("", "first", "others (median)"),
            [
                ("cache on", f"{statistics.median(first[True]):.0f}", f"{on:.0f}"),
                ("cache off", f"{statistics.median(first[False]):.0f}", f"{off:.0f}"),
            ],
        )
        saved = 1 - on / off
        text = f"{SHARED_PREFIX}: TTFT down by {PREFIX_GOAL:.0%} or more with the cache"
        goals.append(Goal(text, f"{saved:.1%}", saved >= PREFIX_GOAL))
        return {"ttft_ms_cache_on": on, "ttft_ms_cache_off": off, "saved": saved,
                "first_ms_cache_on": first[True], "first_ms_cache_off": first[False]}  # fmt: skip

    def _print(self, work: Work, medians: Mapping[str, Mapping[str, float]]) -> None:
        columns = list(medians["inferdeck"])
        rows = [(name, *(f"{m[c]:.1f}" for c in columns)) for name, m in medians.items()]
        print(
            f"{self.shape}, {work.name}: {work.num_requests} x {work.num_input} tokens in, "
            f"{'up to ' if self.quick else ''}{work.num_output} out"
        )
        print_table(("", *columns), rows)


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def main() -> int:
    names = [work.name for work in WORK] + [SHARED_PREFIX]
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", metavar="NAME", help=f"default: {SHAPES}")
    parser.add_argument("--work", action="append", choices=names, help="default: all")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with --quick")
    args = parser.parse_args()
    shapes = args.shape or (SHAPES[:1] if args.quick else SHAPES)
    num_threads = args.num_threads or default_threads()
    rounds = args.rounds or (1 if args.quick else 3)
    report = {"benchmark": "peers", **context(), "num_threads": num_threads, "rounds": rounds,
              "quick": args.quick, "shapes": {}}  # fmt: skip
    with watch_others() as others, tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            print(f"making {shape} with random weights", file=sys.stderr)
            model = make_checkpoint(shape, Path(folder))
            benchmark = ShapeBenchmark(shape, model, num_threads, rounds, args.quick)
            report["shapes"][shape] = benchmark.run(args.work or names)
            benchmark.ours.close()
            del benchmark
    report["cpu_taken_by_others"] = others.share
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
