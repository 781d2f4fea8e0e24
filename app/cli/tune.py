"""`inferdeck tune`: search for the fastest settings that meet latency goals."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.cli import values
from app.cli.bench import add_workload_options, plan_under_goals
from app.cli.options import add_engine_options, add_options, add_report_options
from app.cli.sweep import add_goal_options, run_sweep

# What follows needs numpy, which `--help` need not wait for.
if TYPE_CHECKING:
    from app.bench.goals import Goals
    from app.bench.progress import Progress
    from app.bench.runner import BenchRunner
    from app.bench.sweep import Axis
    from app.bench.tuner import Tuner

NAME = "tune"
HELP = "Find the best settings that meet latency goals."
DESCRIPTION = (
    "Search the combinations of some settings for the best one whose latencies meet the goals. "
    "Runs a part of the combinations."
)
EPILOG = """\
examples:
  inferdeck tune --workload query-rewrite --goodput itl:50
  inferdeck tune --workload voice-bot --goodput ttft:500 itl:50 --vary block_size --vary batching
  inferdeck tune --workload mixed-lengths --goodput itl:80 --vary max_num_seqs=4,8,16
  inferdeck tune --workload voice-bot --goodput itl:50 --objective memory --vary kv_cache_dtype

A calibration of a few seconds predicts every combination, if the settings can be predicted (see
`inferdeck predict --help`). The search starts at the best predicted ones. It changes one setting at
a time, and repeats the best combinations until one differs from the others by more than the noise.
Runs that are too slow end early."""

DEFAULT = ("max_num_seqs", "max_num_batched_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_options(parser)
    add_options(
        parser.add_argument_group("search"),
        ("--vary NAME[=V1,V2]", values.name, "Setting to vary, with values or its usual ones; "
         f"repeatable. Default: {' and '.join(DEFAULT)}.", []),
        ("--objective NAME", values.one_of("throughput", "goodput", "memory"),
         "throughput: most tokens/s under the goals, and so the lowest cost. goodput: most "
         "requests/s that meet the goals. memory: least memory of weights and used KV cache. "
         "Default: throughput.", "throughput"),
        ("--trials N", values.positive, "Most runs. Default: a quarter of the combinations, at "
         "least 8."),
    )  # fmt: skip
    add_goal_options(parser)
    add_report_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.bench.axes import with_usual_values

    args.base_url = args.compare = args.rounds = None
    plan = plan_under_goals(args)

    def search(
        runner: BenchRunner, axes: Sequence[Axis], goals: Goals, tell: Callable[[Progress], None]
    ) -> Tuner:
        from app.bench.predict import encode_with, guess_of
        from app.bench.ranking import Objective
        from app.bench.tuner import Tuner, most_trials

        engine: Any = runner.engine
        encode = encode_with(lambda: engine.tokenizer, engine.model_info.max_model_len)
        wanted = Objective(args.objective)
        note = lambda text: print(f"\nnote: {text}", file=sys.stderr)
        guess = guess_of(runner, goals, wanted, encode, tell, note)
        count = math.prod(len(axis.values) for axis in axes)
        return Tuner(axes, goals, args.trials or most_trials(count), guess, wanted)

    args.sweep = [with_usual_values(text) for text in args.vary or DEFAULT]
    return run_sweep(args, plan, search)
