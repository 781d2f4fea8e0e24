"""`inferdeck ladder`: the gain of each serving technique under a load."""

from __future__ import annotations

import argparse
import json

from app.cli import values
from app.cli.bench import add_workload_options, machine, plan_under_goals
from app.cli.options import (
    add_engine_options,
    add_options,
    add_report_options,
    engine_config,
    write_report,
)
from app.cli.session import StatusLine, open_engine
from app.cli.sweep import (
    add_goal_options,
    commands_of,
    exit_status,
    goals_of,
    write_output,
)
from engine.errors import ConfigError
from engine.units import precision_name

NAME = "ladder"
HELP = "Measure the gain of each serving technique."
DESCRIPTION = (
    "Run a workload with static batching and contiguous KV allocation. Then add one technique "
    "after the other: continuous batching, paged KV cache, prefix cache, quantized weights, "
    "quantized KV cache, speculative decoding. For each, find the users under the goals: the "
    "largest concurrency that meets them."
)
EPILOG = """\
examples:
  inferdeck ladder --workload voice-bot --goodput ttft:500 itl:50
  inferdeck ladder --workload query-rewrite --goodput itl:50 --price-per-hour 2.5 --output l.html
  inferdeck ladder --model DIR --workload mixed-lengths --goodput itl:80 --quantization int4

--quantization, --kv-cache-dtype and --speculative-method choose the precisions and the drafts that
the ladder adds. Default: int8, int8 and ngram. A technique that makes the load slower, or raises
the perplexity by more than the limit, is shown and left out of the next rungs."""

MAX_PRICE, MAX_PERCENT = 1e6, 1e3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_options(parser)
    add_options(
        parser.add_argument_group("ladder"),
        ("--price-per-hour P", values.number(0, MAX_PRICE), "Price of the machine per hour, for "
         "the cost per million output tokens."),
        ("--quality-limit PERCENT", values.number(0, MAX_PERCENT), "Largest increase of the "
         "perplexity. Default: 1.", 1.0),
        ("--rounds N", values.positive, "Runs of each rung's largest load. Default: 1.", 1),
    )  # fmt: skip
    add_goal_options(parser)
    add_report_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.bench.ladder import Ladder
    from app.bench.ladder_bench import EngineLadder
    from app.bench.ladder_record import LadderResult, as_dict, as_text, export, to_run
    from app.bench.rungs import NAIVE, Choices, rungs_of
    from app.bench.runner import BenchRunner
    from app.features.bench.quality import measure_quality
    from app.paths import runs_dir
    from app.storage.run_records import State
    from app.storage.run_store import RunStore

    if args.concurrency is not None or args.request_rate is not None:
        raise ConfigError(
            "The ladder searches the concurrency.", "Omit --concurrency and --request-rate."
        )
    args.compare = None
    goals, plan, status = goals_of(args), plan_under_goals(args), StatusLine()
    chosen = engine_config(args)
    with open_engine(chosen.replace(**NAIVE)) as engine:
        model = engine.model_info
        rungs = rungs_of(engine.config, model, Choices.of(chosen))
        runner = BenchRunner(engine, plan, bandwidth=False)
        bench = EngineLadder(engine, runner, measure_quality)
        ladder = Ladder(
            bench, rungs, goals, plan.workload.num_requests, engine.measure_peaks(), args.rounds,
            args.quality_limit / 100, progress=status.follow,
        )  # fmt: skip
        runner.progress = ladder.on_request
        ladder.run()
        config = engine.config
        status.clear()
    state = State.STOPPED if ladder.was_cancelled else State.DONE
    result = LadderResult(
        model.name, precision_name(model.dtype), plan.workload.title, tuple(rungs), goals,
        args.price_per_hour, state,
    )  # fmt: skip
    report = {"config": config.as_dict(), "machine": machine(), **as_dict(result)}
    if args.json:
        print(json.dumps(report))
    else:
        print(as_text(result))
        if tuned := result.tuned:
            print(f"\n{commands_of(config.replace(**tuned))}")
    RunStore(runs_dir()).add(to_run(result))
    if args.output_json:
        write_report(args.output_json, report)
    if args.output is not None:
        write_output(args.output, result, export)
    return exit_status(result, sum(rung.state == "failed" for rung in rungs), "rung")
