"""`inferdeck predict`: latency and throughput of a workload at other settings, without running it.

A short load calibrates a model of the engine's step times; the scheduler replays the workload on
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.cli import values
from app.cli.bench import (
    add_comparison_options,
    add_workload_options,
    comparison_of,
    describe_plan,
    machine,
    model_line,
    plan_of,
    work_line,
)
from app.cli.options import (
    add_engine_options,
    add_options,
    add_report_options,
    check_writable,
    engine_config,
    write_report,
)
from app.cli.recorded import predict_recording
from app.cli.session import StatusLine, open_engine
from engine.errors import ConfigError
from engine.units import change_text, counted, duration_text, percent_text

# What follows needs numpy, which `--help` need not wait for.
if TYPE_CHECKING:
    from app.bench.runner import Plan
    from engine.llm_engine import LLMEngine

NAME = "predict"
HELP = "Predict a workload's latency and throughput at other settings."
DESCRIPTION = (
    "Calibrate a model of the engine's step times in seconds, and replay a workload on it with the "
    "real scheduler."
)
EPILOG = """\
examples:
  inferdeck predict --workload query-rewrite --compare max_num_seqs=4,16
  inferdeck predict --model DIR --workload voice-bot --compare max_num_seqs=1,4 --measure
  inferdeck predict --workload mixed-lengths --request-rate 4 --compare batching=continuous,static
  inferdeck predict --recording FILE --set max_num_seqs=8 --set block_size=32

Settings that can be compared change which steps run, not how long a given step takes: max_num_seqs,
max_num_batched_tokens, batching, enable_prefix_caching, enable_chunked_prefill, watermark,
block_size, kv_cache_memory_bytes, kv_allocation."""

BASE = "predicted"
LEAST_S, MOST_LAST_S = 5.0, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_options(parser)
    add_comparison_options(parser)
    add_options(
        parser,
        ("--measure", None, "Run each value too, and report the prediction's error."),
    )
    add_options(
        parser.add_argument_group("a recorded load"),
        ("--recording FILE", values.path, "Replay the end of a recording instead of a workload. No "
         "model is loaded."),
        ("--set SETTING=VALUE", values.name, "Setting of the prediction; repeatable.", []),
        ("--last SECONDS", values.number(LEAST_S, MOST_LAST_S),
         "Seconds before its end that are replayed. Default: 60."),
    )  # fmt: skip
    add_report_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.bench.predict import encode_with, predict_all
    from app.bench.report import aligned, table

    if args.recording is not None or args.set or args.last is not None:
        return predict_recording(args)
    comparison = comparison_of(args.compare)
    plan = plan_of(args)
    config = engine_config(args, comparison[0] if comparison else "")
    if config.speculative_method != "off":
        raise ConfigError("Speculative decoding cannot be predicted.", "Omit --speculative-method.")
    if args.output_json:
        check_writable(args.output_json)
    changes = _changes(comparison)
    status = StatusLine()
    with open_engine(config) as engine:
        encode = encode_with(lambda: engine.tokenizer, engine.model_info.max_model_len)
        predicted, calibration = predict_all(
            engine, plan, changes, encode, lambda progress: status.show(str(progress))
        )
        measured = _measure(engine, plan, comparison, status) if args.measure else {}
        config, model = engine.config, engine.model_info
        status.clear()
    runs = {name: _run(figures, measured.get(name)) for name, figures in predicted.items()}
    report = {
        "config": config.as_dict(), "model": dataclasses.asdict(model), "machine": machine(),
        "workload": describe_plan(plan), "calibration": calibration,
        "compare": comparison[0] if comparison else None, "runs": runs,
    }  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        columns = {}
        for name, one in runs.items():
            for kind in ("predicted", "measured"):
                if kind in one:
                    columns[kind if name == BASE else f"{name} {kind}"] = one[kind]
        print(f"{model_line(config, model)}\n{work_line(plan)}\n{_calibration_line(calibration)}")
        print(f"\n{table(columns)}")
        if measured:
            print(f"\nPrediction error\n{aligned(_error_rows(runs))}")
    if args.output_json:  # after printing: a full disk loses no figures
        write_report(args.output_json, report)
    return 0


def _changes(comparison: tuple[str, list[Any]] | None) -> dict[str, dict[str, Any]]:
    from engine.simulate.settings import check_replayed

    if comparison is None:
        return {BASE: {}}
    setting, values = comparison
    check_replayed([setting])
    return {str(value): {setting: value} for value in values}


def _measure(
    engine: LLMEngine, plan: Plan, comparison: tuple[str, list[Any]] | None, status: StatusLine
) -> dict[str, dict[str, Any]]:
    from app.bench.runner import BenchRunner

    runner = BenchRunner(engine, plan, status.counting, bandwidth=False)
    if comparison is not None:
        return runner.compare(*comparison)
    return {BASE: next(iter(runner.variants().values()))}


def _run(predicted: dict[str, Any], measured: dict[str, Any] | None) -> dict[str, Any]:
    from app.bench.predict import errors

    if measured is None:
        return {"predicted": predicted}
    return {
        "predicted": predicted, "measured": measured, "error": errors(predicted, measured),
    }  # fmt: skip


def _calibration_line(calibration: Mapping[str, Any]) -> str:
    return (
        f"Calibrated with {counted(calibration['steps'], 'step')} in "
        f"{duration_text(calibration['seconds'])}; median error of a step: "
        f"{percent_text(calibration['median_error'])}"
    )


def _error_rows(runs: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    names = list(dict.fromkeys(name for one in runs.values() for name in one["error"]))
    rows = [["", *("" if name == BASE else name for name in runs)]]
    for name in names:
        found = (one["error"].get(name) for one in runs.values())
        rows.append([name, *("-" if e is None else change_text(e) for e in found)])
    return rows
