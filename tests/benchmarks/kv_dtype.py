"""Attention over a KV cache in 8 bits against one in bfloat16, by context length.

    python -m tests.benchmarks.kv_dtype [--quick]

Decode (one token each of 1 and 8 requests) and prefill (the last chunk of a prompt) through the
engine's attention backend alone, at the shapes of two models, with the formats taking turns. So
many layers are kept that their caches do not stay in the processor's: a decode step reads memory,
as it does in a model. Times are those of one layer.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention.backends import make_backend
from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import token_rows
from engine.batch.batch import Span, pack
from engine.config import EngineConfig
from engine.hardware.machine import default_threads
from tests.benchmarks.report import (
    Goal,
    arguments,
    at_least,
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)

FORMATS = ("auto", "int8", "fp8", "k=int8,v=fp8")
BLOCK_SIZE = 16
LEAST_BYTES = 256 * 2**20
"""Of a bfloat16 cache in decode: more than the last-level cache of most processors."""

PREFILL_LAYERS = 3  # computes far longer than it reads
CHUNK = 512
ROUNDS, QUICK_ROUNDS = 9, 3
CONTEXTS, QUICK_CONTEXTS = (512, 2048, 8192), (512, 2048)
LONG = 2048
TOKENS_GOAL = 1.9


class Shape(NamedTuple):
    name: str
    spec: LayerSpec
    group: int


SHAPES = (
    Shape("Llama-3.2-1B", LayerSpec(8, 64, 64), 4),
    Shape("Qwen3-0.6B", LayerSpec(8, 128, 128), 2),
)


class Case(NamedTuple):
    """`tokens` of each of `requests` are computed, the last of `length`."""

    name: str
    requests: int
    tokens: int
    length: int

    def spans(self) -> list[Span]:
        blocks = math.ceil(self.length / BLOCK_SIZE)
        return [
            Span([0] * self.tokens, self.length - self.tokens,
                 range(i * blocks, (i + 1) * blocks), 1)
            for i in range(self.requests)
        ]  # fmt: skip

    @property
    def num_blocks(self) -> int:
        return self.requests * math.ceil(self.length / BLOCK_SIZE)


def cases(lengths: tuple[int, ...]) -> Iterator[Case]:
    for length in lengths:
        yield Case("decode, 1 request", 1, 1, length)
        yield Case("decode, 8 requests", 8, 1, length)
        yield Case(f"prefill, {min(CHUNK, length)} tokens", 1, min(CHUNK, length), length)


class Trial:
    """One case at one format: its caches filled, and a step ready to run."""

    def __init__(self, shape: Shape, case: Case, name: str) -> None:
        spec = shape.spec
        plain = case.num_blocks * BLOCK_SIZE * 2 * (spec.num_kv_heads * spec.key_dim) * 2
        self.num_layers = math.ceil(LEAST_BYTES / plain) if case.tokens == 1 else PREFILL_LAYERS
        config = EngineConfig(
            model="", device="cpu", dtype="bfloat16", block_size=BLOCK_SIZE, kv_cache_dtype=name
        )
        layers = dict.fromkeys(range(self.num_layers), spec)
        backend = make_backend(config, layers, case.num_blocks, torch.bfloat16)
        assert isinstance(backend, CPUAttention)
        self.backend = backend
        self.bytes_per_token = self.backend.nbytes / (
            self.num_layers * case.num_blocks * BLOCK_SIZE
        )
        slots = torch.arange(case.num_blocks * BLOCK_SIZE)
        rows = token_rows(slots, BLOCK_SIZE, spec.num_kv_heads)
        vectors = _noise(len(slots), spec.num_kv_heads, spec.key_dim)
        for cache in self.backend.caches.values():
            for pages in cache:
                pages.write(rows, vectors)
        tokens = case.requests * case.tokens
        self.new = _noise(tokens, spec.num_kv_heads, spec.key_dim)
        self.queries = _noise(tokens, spec.num_kv_heads * shape.group, spec.key_dim)
        self.batch = pack(case.spans(), BLOCK_SIZE)
        self.options = AttentionOptions(spec.key_dim**-0.5)

    @torch.inference_mode()
    def seconds(self) -> float:
        """Of one layer, in a step through all of them."""
        start = time.perf_counter()
        self.backend.begin_step(self.batch)
        for layer in range(self.num_layers):
            self.backend.forward(layer, self.queries, self.new, self.new, self.options)
        return (time.perf_counter() - start) / self.num_layers


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def measure(shape: Shape, case: Case, rounds: int) -> dict[str, dict[str, float]]:
    trials = {name: Trial(shape, case, name) for name in FORMATS}
    seconds: dict[str, list[float]] = {name: [] for name in FORMATS}
    for number in range(rounds + 1):
        for name, trial in trials.items():
            taken = trial.seconds()
            if number:  # the first is a warm-up
                seconds[name].append(taken)
    return {
        name: {
            "ms_per_layer": 1e3 * statistics.median(seconds[name]),
            "bytes_per_token_and_layer": trials[name].bytes_per_token,
        }
        for name in FORMATS
    }


def main() -> int:
    args = arguments(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(args.num_threads or default_threads())
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    runs: list[dict[str, Any]] = []
    with watch_others() as others:
        for shape in SHAPES:
            for case in cases(QUICK_CONTEXTS if args.quick else CONTEXTS):
                print(f"\r{shape.name}: {case.name}, {case.length:,}", end="", file=sys.stderr)
                found = measure(shape, case, rounds)
                runs.append({"shape": shape.name, "case": case.name, "requests": case.requests,
                             "context": case.length, "formats": found})  # fmt: skip
    print(file=sys.stderr)
    goals = _goals(runs)
    _print(runs)
    print_goals(goals)
    report = {"benchmark": "kv_dtype", **context(), "num_threads": torch.get_num_threads(),
              "block_size": BLOCK_SIZE, "rounds": rounds, "runs": runs,
              "goals": [goal.as_dict() for goal in goals],
              "cpu_taken_by_others": others.share}  # fmt: skip
    write_json(args.output_json, report)
    return 0


def _ratio(run: dict[str, Any], name: str, key: str) -> float:
    formats = run["formats"]
    return float(formats[name][key] / formats["auto"][key])


def _goals(runs: list[dict[str, Any]]) -> list[Goal]:
    tokens = min(
        1 / _ratio(run, name, "bytes_per_token_and_layer")
        for run in runs
        for name in FORMATS
        if name != "auto"
    )
    goals = [at_least("8 bits hold at least 1.9 times the tokens", tokens, TOKENS_GOAL)]
    for kind in ("decode", "prefill"):
        slowest = max(
            _ratio(run, "int8", "ms_per_layer")
            for run in runs
            if run["case"].startswith(kind) and run["context"] >= LONG
        )
        text = f"int8, {kind} from {LONG:,} tokens of context on: no slower than bfloat16"
        goals.append(at_most(text, slowest, 1.0, "x the time"))
    return goals


def _print(runs: list[dict[str, Any]]) -> None:
    for shape in SHAPES:
        own = [run for run in runs if run["shape"] == shape.name]
        bytes_each = {n: f["bytes_per_token_and_layer"] for n, f in own[0]["formats"].items()}
        words = ", ".join(f"{name} {size:,.0f}" for name, size in bytes_each.items())
        print(f"{shape.name}; bytes of a token in a layer: {words}")
        rows = []
        for run in own:
            cells = [f"{run['formats']['auto']['ms_per_layer']:.3f} ms"]
            for name in FORMATS[1:]:
                ms, ratio = run["formats"][name]["ms_per_layer"], _ratio(run, name, "ms_per_layer")
                cells.append(f"{ms:.3f} ms ({ratio:.2f}x)")
            rows.append((run["case"], f"{run['context']:,}", *cells))
        print_table(("a layer", "context", *FORMATS), rows)


if __name__ == "__main__":
    sys.exit(main())
