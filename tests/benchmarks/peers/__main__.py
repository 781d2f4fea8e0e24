"""This engine beside others, on the same weights, threads and prompts, taking turns.

    python -m tests.benchmarks.peers [--openvino PYTHON] [--llama-cpp FOLDER] [--vllm PYTHON]
        [--transformers PYTHON] [--shape NAME ...] [--work NAME ...] [--bits N ...]
        [--kv-bits N] [--quick]

PYTHON: of an environment that has the engine. FOLDER: with llama-server and llama-quantize. With
none of them: transformers, in this Python. Works: decode-N (N requests, 128 tokens in, 64 out),
prompt-N (N in, 1 out), shared-prefix (eight prompts of 800 tokens that share 768, one after the
other), long-N (N requests, 4,096 in, 64 out). Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from app.paths import shapes_dir
from engine.hardware.machine import default_threads
from engine.telemetry.step_cost import ModelCost
from tests.benchmarks.checkpoints import make_checkpoint
from tests.benchmarks.peers.comparison import compare, fill_caches, goals, print_row, row
from tests.benchmarks.peers.floors import Rates, floor_ms, machine_flags, measure_rates
from tests.benchmarks.peers.peer import CHILDREN, KINDS, OURS, Peer, PeerError
from tests.benchmarks.peers.work import BITS, MAX_LEN, MAX_REQUESTS, MAX_TOKENS, WORKS
from tests.benchmarks.report import (
    Goal,
    arguments,
    context,
    print_goals,
    watch_others,
    write_json,
)

SHAPES = ("qwen3-0.6b", "llama-3.2-1b")
QUICK_OUTPUT = 20


def parser() -> argparse.ArgumentParser:
    found = arguments(__doc__.splitlines()[0])
    for name in ("openvino", "vllm", "transformers"):
        found.add_argument(f"--{name}", metavar="PYTHON", help=f"Python that has {name}")
    found.add_argument("--llama-cpp", metavar="FOLDER", help="of llama-server and llama-quantize")
    found.add_argument("--cache", type=Path, metavar="FOLDER", help="keep made models there")
    found.add_argument("--shape", action="append", metavar="NAME", help=f"default: {SHAPES}")
    names = [work.name for work in WORKS]
    found.add_argument("--work", action="append", choices=names, help="default: all")
    found.add_argument("--bits", action="append", type=int, choices=BITS, help="default: all")
    found.add_argument("--kv-bits", type=int, choices=(16, 8), default=16, help="of the KV cache")
    found.add_argument("--rounds", type=int, help="default: 3, or 1 with --quick")
    return found


def peers_of(args: argparse.Namespace) -> dict[str, str]:
    """Python or folder by engine, ours first."""
    named = {name: getattr(args, name.replace("-", "_"), None) for name in KINDS}
    asked = {name: value for name, value in named.items() if value}
    return {OURS: sys.executable, **(asked or {"transformers": sys.executable})}


def shape_config(shape: str) -> Any:
    return AutoConfig.from_pretrained(shapes_dir() / shape)


def kv_cache_gib(shape: str) -> int:
    """Room for what any work has in the KV cache at once, in 16 bits: engines take whole GiB."""
    config = shape_config(shape)
    per_token = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return math.ceil(MAX_TOKENS * per_token / 2**30)


def options_of(
    model: Path, cache: Path, bits: int, kv_bits: int, num_threads: int
) -> dict[str, Any]:
    """What every child is told; `bits` of the weights."""
    return {
        "model": str(model.absolute()), "cache": str(cache.absolute()), "bits": bits,
        "kv_bits": kv_bits, "num_threads": num_threads, "max_len": MAX_LEN,
        "max_requests": MAX_REQUESTS, "kv_cache_gib": kv_cache_gib(model.name),
    }  # fmt: skip


@contextmanager
def loaded(peers: dict[str, str], options: dict[str, Any]) -> Iterator[list[Peer]]:
    """The engines that serve such weights and KV caches. One that does not load is left out."""
    label = f"{Path(options['model']).name}, {options['bits']} bits"
    with ExitStack() as stack:
        found = []
        for name, where in peers.items():
            kind = KINDS[name]
            if options["bits"] not in kind.bits or options["kv_bits"] not in kind.kv_bits:
                continue
            is_folder = name == "llama-cpp"
            python = sys.executable if is_folder else where
            told = options | {"programs": where if is_folder else None}
            print(f"{label}: loading {name}", file=sys.stderr)
            try:
                peer = Peer(name, [python, str(CHILDREN / kind.script)], told)
            except (OSError, PeerError) as error:
                if name == OURS:
                    raise
                print(f"{label}: {name} is left out: {error}", file=sys.stderr)
                continue
            stack.callback(peer.close)
            found.append(peer)
        yield found


def measure(
    peers: list[Peer], shape: str, bits: int, args: argparse.Namespace, rates: Rates
) -> tuple[dict[str, Any], list[Goal]]:
    """Rows by work, and goals, of one shape in one precision."""
    vocab_size = int(shape_config(shape).vocab_size)
    (ours,) = (peer for peer in peers if peer.name == OURS)
    assert ours.cost is not None
    cost, peaks = rates.at_peaks(ModelCost(**ours.cost), bits), rates.peaks(bits)
    fill_caches(peers, vocab_size, int(kv_cache_gib(shape) * 2**30 / cost.kv_bytes_per_token))
    found: dict[str, Any] = {"engines": {peer.name: peer.engine for peer in peers}, "work": {}}
    reached: list[Goal] = []
    for work in WORKS:
        if args.work and work.name not in args.work:
            continue
        output = min(work.num_output, QUICK_OUTPUT) if args.quick else work.num_output
        rounds = compare(work, bits, peers, vocab_size, output, args.rounds)
        floor = floor_ms(cost, peaks, work, output)
        one = row(work, bits, rounds, floor, output)
        print_row(one)
        reached += goals(one)
        found["work"][work.name] = {**one.as_dict(), "floor_ms": floor}
    return found, reached


def made(shape: str, cache: Path) -> Path:
    """The checkpoint of `shape` in `cache`, with random weights."""
    if not (cache / shape).exists():
        print(f"making {shape} with random weights", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            make_checkpoint(shape, Path(unfinished)).rename(cache / shape)
    return cache / shape


def main() -> int:
    args = parser().parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    num_threads = args.num_threads or default_threads()
    rates, flags = measure_rates(num_threads), machine_flags()
    print(
        f"{num_threads} threads, {' '.join(name for name, has in flags.items() if has)}\n"
        f"memory {rates.read / 1e9:.1f} GB/s, products {rates.floats / 1e12:.2f} TFLOP/s in "
        f"floating point and {rates.int8 / 1e12:.2f} TOP/s in int8\n"
    )
    report = {"benchmark": "peers", **context(), "flags": flags, "rates": asdict(rates),
              "num_threads": num_threads, "kv_bits": args.kv_bits, "rounds": args.rounds,
              "quick": args.quick, "shapes": {}}  # fmt: skip
    with watch_others() as others, tempfile.TemporaryDirectory() as folder:
        cache = args.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        for shape in args.shape or (SHAPES[:1] if args.quick else SHAPES):
            model = made(shape, cache)
            reached: list[Goal] = []
            of_shape = report["shapes"][shape] = {}
            for bits in args.bits or BITS:
                options = options_of(model, cache, bits, args.kv_bits, num_threads)
                with loaded(peers_of(args), options) as engines:
                    of_shape[f"{bits} bits"], more = measure(engines, shape, bits, args, rates)
                reached += more
            of_shape["goals"] = [goal.as_dict() for goal in reached]
            print(f"{shape}: goals")
            print_goals(reached)
    report["cpu_taken_by_others"] = others.share
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
