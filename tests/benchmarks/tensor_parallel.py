"""Several ranks against one, on the same cores of this machine or on as many of its GPUs.

    python -m tests.benchmarks.tensor_parallel [--model DIR] [--load-format dummy] [--ranks N]
                                               [--device D] [--requests 1 4] [--quick]

An engine with one rank and one with N serve the same prompts, in turns: what the machine does
beside them meets both. On one NUMA node nothing is to be gained, and the figures say what dividing
and exchanging cost; on several, or on GPUs, what they bring.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from app.paths import starter_model
from engine import EngineConfig, LLMEngine
from engine.hardware.idle_cores import nodes
from engine.hardware.machine import default_threads
from tests.benchmarks.busy import reply, summarise
from tests.benchmarks.report import arguments, context, print_table, watch_others, write_json

ROUNDS, QUICK_ROUNDS = 8, 3
REPLY_TOKENS, QUICK_TOKENS = 100, 40


def measure(
    engines: dict[int, LLMEngine], num_requests: int, rounds: int, num_tokens: int
) -> dict[int, dict[str, Any]]:
    """Of every engine, in turns; milliseconds, and of the exchange in a step that decodes."""
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in engines}
    waited: dict[int, list[float]] = {size: [] for size in engines}
    for index in range(rounds):
        order = list(engines.items())
        for size, engine in order if index % 2 == 0 else reversed(order):
            engine.snapshot()  # what was recorded before is not counted
            found[size].append(reply(engine, num_requests, num_tokens, index))
            steps = engine.snapshot().steps
            waited[size] += [s.exchange_s * 1e3 for s in steps if not s.num_prefill_tokens]
    return {
        size: {**summarise(found[size]), "exchange_ms": statistics.mean(waited[size])}
        for size in engines
    }


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=starter_model(), metavar="DIR",
                        help="default: the starter model")  # fmt: skip
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4], metavar="N")
    args = parser.parse_args()
    config = EngineConfig(
        model=str(args.model),
        load_format=args.load_format,
        quantization=args.quantization,
        dtype=args.dtype,
        device=args.device,
        num_threads=args.num_threads or default_threads(),
        adaptive_threads=False,
        enable_prefix_caching=False,
        max_model_len=2048,
    )
    rounds, num_tokens = (
        (QUICK_ROUNDS, QUICK_TOKENS) if args.quick else (ROUNDS, REPLY_TOKENS)
    )
    with watch_others() as others:
        engines = {
            size: LLMEngine(config.replace(tensor_parallel_size=size)) for size in (1, args.ranks)
        }
        for engine in engines.values():
            reply(engine, max(args.requests), 8, 0)
    cases = {}
    for count in args.requests:
        print(f"{count} requests", file=sys.stderr)
        cases[count] = measure(engines, count, rounds, num_tokens)
    info = engines[args.ranks].model_info
    for engine in engines.values():
        engine.shutdown()
    _print(cases)
    report = {
        "benchmark": "tensor_parallel", **context(), "model": str(args.model),
        "dtype": info.dtype, "quantization": args.quantization, "ranks": args.ranks,
        "device": info.device_name, "num_threads": config.num_threads,
        "numa_nodes": len(nodes()), "rounds": rounds, "reply_tokens": num_tokens,
        "requests": cases, "cpu_taken_by_others_before": others.share,
    }  # fmt: skip
    write_json(args.output_json, report)
    return 0


def _print(cases: dict[int, dict[int, dict[str, Any]]]) -> None:
    header = ("requests", "ranks", "first token ms", "a token ms", "p50", "p99", "exchange ms")
    rows = []
    for count, found in cases.items():
        for size, one in found.items():
            gaps = one["itl_ms"]
            figures = (one["ttft_ms"]["mean"], gaps["mean"], gaps["p50"], gaps["p99"],
                       one["exchange_ms"])  # fmt: skip
            rows.append((str(count), str(size), *(f"{figure:,.2f}" for figure in figures)))
    print_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
