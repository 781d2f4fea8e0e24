"""A few flags of vLLM 0.32, as its parser has them."""

from __future__ import annotations

import argparse
import sys

NEEDS_HELP = any("--help" in word for word in sys.argv)
"""As in vllm/engine/arg_utils.py: else most flags have none."""


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    print("INFO a line that the import prints")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    model = parser.add_argument_group("ModelConfig")
    model.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    model.add_argument("--max-model-len", type=human_readable_int)
    model.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=False)
    parallel = parser.add_argument_group("ParallelConfig")
    parallel.add_argument(
        "--tensor-parallel-size", "-tp", type=int, default=1,
        help="Number of tensor parallel groups." if NEEDS_HELP else "",
    )  # fmt: skip
    parallel.add_argument(
        "--distributed-executor-backend", type=str, metavar=["mp", "ray"], help="At 50%% load."
    )
    parallel.add_argument("--dcp-comm-backend", choices=["a2a", "ag_rs", None])
    scheduler = parser.add_argument_group("SchedulerConfig")
    scheduler.add_argument("--max-num-seqs", type=int)
    parser.add_argument_group("ObservabilityConfig").add_argument("--otlp-traces-endpoint")
    scheduler.add_argument("--hidden", help=argparse.SUPPRESS)
    return parser


def human_readable_int(text: str) -> int:
    return int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)
