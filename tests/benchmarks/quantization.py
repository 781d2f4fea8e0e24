"""What weights and KV cache in few bits gain in speed and memory, and what they lose on a text.

    python -m tests.benchmarks.quantization [--part speed|kv|quality ...] [--shape NAME ...]

speed: real shapes with random weights, every number format against bfloat16 in one run, taking
turns: a step of 1, 8 and 32 requests that decode, and a prompt of 1,024 tokens. The baseline is
measured against the memory's bandwidth, so that a slow one cannot make the others look fast.

kv: tokens that a cache of the same size holds.

quality: what every precision costs the starter model (`quality.py`); AWQ and GPTQ also as other
programs make them, with `--peer autoawq=PYTHON --peer llmcompressor=PYTHON` of environments that
have them. It measures no time: with `--keep FOLDER --minutes N` it may be made in portions.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench.runner import read_bandwidth
from app.paths import shapes_dir
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.hardware.machine import default_threads
from tests.benchmarks.peer_quantizers import PEERS, peer_argument
from tests.benchmarks.quality import print_quality, quality, quality_goals
from tests.benchmarks.report import (
    Goal,
    Interference,
    arguments,
    at_least,
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)

BASE = "bfloat16"
FORMATS: dict[str, dict[str, str]] = {
    BASE: {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8, int8 head": {"quantization": "int8", "quantization_head": "int8"},
    "int4, int8 head": {"quantization": "int4", "quantization_head": "int8"},
    "fp8": {"quantization": "fp8"},
    "nf4": {"quantization": "nf4"},
}
SLOW = ("fp8", "nf4")  # whose weights are made plain in each product: measured once a round
CONCURRENCY, PREFILL, PROMPT = (1, 8, 32), 1024, 64
SHAPES = ("llama-3.2-1b", "qwen3-0.6b")
KV_BYTES = 2**30


@dataclass
class Timed:
    """Seconds of the model in single steps, by the number of requests; and in prefills."""

    decode: dict[int, list[float]] = field(default_factory=dict)
    prefill: list[float] = field(default_factory=list)

    def decode_s(self, requests: int) -> float:
        return statistics.median(self.decode[requests])

    @property
    def prefill_s(self) -> float:
        return statistics.median(self.prefill) if self.prefill else math.nan


# -- speed ----------------------------------------------------------------------------------


def make_engine(shape: str, threads: int, **precision: str) -> LLMEngine:
    config = EngineConfig(
        model=str(shapes_dir() / shape), load_format="dummy", dtype="bfloat16",
        max_model_len=2 * PREFILL, num_threads=threads, enable_prefix_caching=False,
        kv_cache_memory_bytes=KV_BYTES, max_num_seqs=max(CONCURRENCY),
        max_num_batched_tokens=2 * PREFILL,
    )  # fmt: skip
    return LLMEngine(config.replace(**precision))


def measure(engine: LLMEngine, timed: Timed, tokens: int, salt: int) -> None:
    """One turn of one engine: `tokens` steps of every number of requests, and one prompt."""
    for requests in CONCURRENCY:
        prompts = [list(range(20 + i + salt, 20 + i + salt + PROMPT)) for i in range(requests)]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.snapshot()
        engine.generate(prompts, params)
        steps = [s for s in engine.snapshot().steps if s.num_decode_tokens == requests]
        timed.decode.setdefault(requests, []).extend(step.model_s for step in steps)
    engine.generate(
        [list(range(100 + salt, 100 + salt + PREFILL))], SamplingParams(temperature=0, max_tokens=1)
    )
    timed.prefill += [s.model_s for s in engine.snapshot().steps if s.num_prefill_tokens == PREFILL]


def speed(
    shape: str, formats: Sequence[str], rounds: int, tokens: int, threads: int
) -> dict[str, Any]:
    engines: dict[str, LLMEngine] = {}
    for name in formats:
        print(f"\r{shape}: loading {name}          ", end="", file=sys.stderr, flush=True)
        engines[name] = make_engine(shape, threads, **FORMATS[name])
    timed = {name: Timed() for name in formats}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            if name in SLOW and number == 0:
                continue
            print(f"\r{shape}: round {number} of {rounds}, {name}        ",
                  end="", file=sys.stderr, flush=True)  # fmt: skip
            count = 3 if number == 0 or name in SLOW else tokens
            measure(engine, Timed() if number == 0 else timed[name], count, number)
    print(file=sys.stderr)
    weights = {name: engine.model_info for name, engine in engines.items()}
    for engine in engines.values():
        engine.shutdown()
    bandwidth = read_bandwidth(threads)
    base, whole = timed[BASE], weights[BASE]
    linear = whole.body_bytes
    found: dict[str, Any] = {"read_bandwidth": bandwidth}
    for name, one in timed.items():
        info = weights[name]
        read = info.weights_bytes - info.lookup_bytes
        found[name] = {
            "weights_bytes": info.weights_bytes,
            "linear_share": info.body_bytes / linear,
            "decode_ms": {n: 1e3 * one.decode_s(n) for n in CONCURRENCY},
            "decode_speed_up": {n: base.decode_s(n) / one.decode_s(n) for n in CONCURRENCY},
            "prefill_tokens_per_s": PREFILL / one.prefill_s,
            "prefill_speed_up": base.prefill_s / one.prefill_s,
            "bandwidth_share": read / one.decode_s(1) / bandwidth,
        }
    return found


def print_speed(found: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{f['weights_bytes'] / 2**20:,.0f}",
            f"{f['linear_share']:.3f}",
            *(f"{f['decode_ms'][n]:.1f} ({f['decode_speed_up'][n]:.2f}x)" for n in CONCURRENCY),
            f"{f['prefill_tokens_per_s']:.0f} ({f['prefill_speed_up']:.2f}x)",
            f"{f['bandwidth_share']:.0%}",
        ]
        for name, f in found.items()
        if isinstance(f, dict)
    ]
    steps = [f"ms a step, {n}" for n in CONCURRENCY]
    header = ["weights", "MiB", "of linear", *steps, "prefill tok/s", "of bandwidth"]
    print_table(header, rows)


def speed_goals(shape: str, found: dict[str, Any]) -> list[Goal]:
    def gain(name: str, requests: int) -> float:
        return float(found[name]["decode_speed_up"][requests])

    def prefill(name: str) -> float:
        return float(found[name]["prefill_speed_up"])

    if any(name not in found for name in FORMATS if name not in SLOW):
        return []
    worst_int8 = min(*(gain("int8", n) for n in CONCURRENCY), prefill("int8"))
    goals = [
        at_least(f"{shape}: the baseline's share of the bandwidth, at least 0.6",
                 found[BASE]["bandwidth_share"], 0.6, ""),
        at_least(f"{shape}: int8 with an int8 head, 1 request, at least 1.7x",
                 gain("int8, int8 head", 1), 1.7),
        at_least(f"{shape}: int4 with an int8 head, 1 request, at least 2.5x",
                 gain("int4, int8 head", 1), 2.5),
        at_least(f"{shape}: int8, 1 request, at least 1.4x", gain("int8", 1), 1.4),
        at_least(f"{shape}: int4, 1 request, at least 1.9x", gain("int4", 1), 1.9),
        at_least(f"{shape}: int8 never slower", worst_int8, 1.0),
        at_least(f"{shape}: int4 at 8 and 32 requests, at least half as fast",
                 min(gain("int4", 8), gain("int4", 32)), 0.5),
        at_least(f"{shape}: int4 prefill no slower", prefill("int4"), 1.0),
        at_most(f"{shape}: int8 linear weights, at most 0.55",
                found["int8"]["linear_share"], 0.55),
        at_most(f"{shape}: int4 linear weights, at most 0.32",
                found["int4"]["linear_share"], 0.32),
    ]  # fmt: skip
    return goals


# -- tokens that a cache holds ----------------------------------------------------------------


def kv(shape: str, threads: int) -> dict[str, float]:
    """Tokens in a cache of the same bytes, over those at 16 bits."""
    tokens: dict[str, int] = {}
    for name in ("auto", "int8", "fp8", "k=int8,v=fp8"):
        engine = make_engine(shape, threads, quantization="int4", kv_cache_dtype=name)
        tokens[name] = engine.plan.num_blocks * engine.config.block_size
        engine.shutdown()
    return {name: count / tokens["auto"] for name, count in tokens.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--part", action="append", choices=("speed", "kv", "quality"))
    parser.add_argument("--format", action="append", choices=FORMATS, dest="formats")
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="of the quality part: what is made and measured stays there, and is "
                        "not made again")  # fmt: skip
    parser.add_argument("--peer", action="append", type=peer_argument, default=[],
                        metavar="NAME=PYTHON",
                        help=f"of the quality part: {' or '.join(PEERS)}")  # fmt: skip
    parser.add_argument("--minutes", type=float,
                        help="of the quality part: begin no case after so many")  # fmt: skip
    args = parser.parse_args(argv)
    parts = args.part or ["speed", "kv", "quality"]
    threads = args.num_threads or default_threads()
    formats = [name for name in args.formats or FORMATS if name != BASE]
    rounds, tokens = (1, 10) if args.quick else (5, 16)
    report: dict[str, Any] = context() | {"num_threads": threads}
    goals: list[Goal] = []
    is_timed = "speed" in parts
    with watch_others() if is_timed else nullcontext(Interference()) as others:
        for shape in args.shape or SHAPES:
            if "speed" in parts:
                found = speed(shape, [BASE, *formats], rounds, tokens, threads)
                print(f"{shape}, bfloat16 activations")
                print_speed(found)
                report[f"speed {shape}"] = found
                goals += speed_goals(shape, found)
            if "kv" in parts:
                tokens_held = kv(shape, threads)
                report[f"kv {shape}"] = tokens_held
                goals += [
                    at_least(f"{shape}: tokens in a KV cache of {name}, at least 1.9x", ratio, 1.9)
                    for name, ratio in tokens_held.items()
                    if name != "auto"
                ]
        if "quality" in parts:
            with tempfile.TemporaryDirectory() as folder:
                kept = args.keep or Path(folder)
                kept.mkdir(parents=True, exist_ok=True)
                report["quality"] = quality(threads, kept, dict(args.peer), args.minutes)
            print_quality(report["quality"])
            goals += quality_goals(report["quality"])
    if is_timed:
        report["others_share"] = others.share
    report["goals"] = [goal.as_dict() for goal in goals]
    print_goals(goals)
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
