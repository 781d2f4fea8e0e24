"""`inferdeck bench`: run a workload and report throughput, latency and memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.bench.workload import Workload, fixed, of_prompts, preset, preset_names
from app.cli import values
from app.cli.keys import keys_of
from app.cli.options import (
    add_engine_options,
    add_options,
    add_report_options,
    check_writable,
    engine_config,
    write_report,
)
from app.cli.session import StatusLine, open_engine
from app.cli.sweep import add_sweep_options, run_sweep
from app.server.options import KEY_VARIABLE
from app.units import setting_value
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError

# What follows needs numpy, which `--help` need not wait for.
if TYPE_CHECKING:
    from app.bench.runner import Plan
    from app.storage.intervals import Difference
    from engine.snapshot import ModelInfo

NAME = "bench"
HELP = "Benchmark a model under load."
DESCRIPTION = "Run a workload and report throughput, latency and memory."
EPILOG = """\
examples:
  inferdeck bench --workload query-rewrite
  inferdeck bench --model DIR --workload voice-bot --output-json voice-bot.json
  inferdeck bench --model DIR --load-format dummy --input-len 128 --output-len 64 --num-requests 8
  inferdeck bench --workload mixed-lengths --request-rate 2
  inferdeck bench --workload mixed-lengths --compare kv_allocation=paged,contiguous
  inferdeck bench --workload voice-bot --sweep concurrency=1,2,4,8 --goodput ttft:500 itl:50
  inferdeck bench --workload query-rewrite --sweep max_num_seqs=4,8,16 --rounds 3 --output s.html
  inferdeck bench --workload voice-bot --sweep engine=Inferdeck,http://host:8000 --rounds 3
  inferdeck bench --prompts questions.csv --concurrency 4
  inferdeck bench --base-url http://host:8000 --workload query-rewrite

Without --prompts, prompts are random tokens: speed is representative, the text is meaningless.
Replies ignore EOS and run to full length. TTFT: time from arrival to first token. ITL: time between
output events, all requests. TPOT: (E2E latency - TTFT) / (tokens - 1), per request."""

DEFAULT_COMPARE_ROUNDS = 2
MIN_RATE, MAX_RATE = 1e-3, 1e6
MIN_BURSTINESS, MAX_BURSTINESS = 1e-3, 1e3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_options(parser)
    add_comparison_options(parser)
    add_sweep_options(parser)
    add_options(
        parser.add_argument_group("benchmarking a running server"),
        ("--base-url URL", values.url, "Benchmark the server at this URL."),
        ("--api-key K", values.name, "API key for the server, or URL=K for one of several; "
         f"repeatable. Default for a single server: {KEY_VARIABLE}.", []),
        ("--served-model NAME", values.name,
         "Model name on the server. Default: the first model listed."),
    )  # fmt: skip
    add_report_options(parser)
    add_engine_options(parser)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Those of `plan_of`."""
    add_options(
        parser.add_argument_group("workload"),
        ("--workload NAME", values.name, f"Preset workload: {', '.join(preset_names())}."),
        ("--variant NAME", values.name, "Variant of the preset. Default: all."),
        ("--prompts FILE", values.path, "Prompts from a file: JSONL, CSV (column prompt, else the "
         "first) or text (one per line, or blocks separated by blank lines)."),
        ("--input-len N", values.positive, "Tokens per prompt."),
        ("--output-len N", values.positive, "Tokens per reply."),
        ("--num-requests N", values.positive, "Number of requests."),
        ("--raw-prompts", None, "Send the prompts of a file as they are. Default: apply the "
         "model's chat template, if it has one."),
    )  # fmt: skip
    add_options(
        parser.add_mutually_exclusive_group(),
        ("--concurrency N", values.positive,
         "Number of concurrent requests. Default: the preset's value, or all."),
        ("--request-rate R", values.number(MIN_RATE, MAX_RATE),
         "Mean requests per second (Poisson arrivals)."),
    )  # fmt: skip
    add_options(
        parser,
        ("--burstiness B", values.number(MIN_BURSTINESS, MAX_BURSTINESS), "Shape of the gamma "
         "distribution of arrival intervals: below 1 bursts, above 1 steadier. Default: 1 "
         "(Poisson).", 1.0),
        ("--num-warmups N", values.count, "Warm-up requests. Default: 1.", 1),
    )  # fmt: skip


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """Those of `comparison_of`, and how often a run is repeated."""
    add_options(
        parser,
        ("--rounds N", values.positive, "Number of runs; all samples are pooled. Default: 1; "
         f"{DEFAULT_COMPARE_ROUNDS} with --compare."),
        ("--compare SETTING=V1,V2", values.name, "Compare values of an engine setting in "
         "alternating runs. Use semicolons between values that contain commas."),
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from app.bench.differences import has_interval
    from app.bench.differences import rows as difference_rows
    from app.bench.report import NOT_REPORTED, aligned, beside_server, table
    from app.storage.intervals import ONE_RUN

    is_remote = args.base_url is not None
    if is_remote:
        _refuse_engine_options(args)
    elif (args.api_key or args.served_model is not None) and not _has_engines(args):
        raise ConfigError("--api-key and --served-model require --base-url.", "Add --base-url URL.")
    comparison = comparison_of(args.compare)
    plan = plan_of(args)
    if args.sweep:
        return run_sweep(args, plan)
    if args.goodput or args.output:
        raise ConfigError("--goodput and --output need --sweep.", "Add --sweep concurrency=1,2,4.")
    varied = comparison[0] if comparison else ""
    config = None if is_remote else engine_config(args, varied)
    if args.output_json:
        check_writable(args.output_json)
    if config is None:
        measured, columns, heading = _measure_server(args, plan)
    else:
        measured, columns, heading = _measure_engine(config, plan, comparison)
    report = {
        **measured,
        "machine": machine(),
        "workload": describe_plan(plan),
        **_results(columns, comparison),
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(f"{heading}\n\n{table(columns, NOT_REPORTED if is_remote else '-')}")
        for name, figures in columns.items():
            if beside := beside_server(figures):
                print(f"\n{name}: client vs. server latency\n{beside}")
        if found := _differences(columns, comparison):
            print(f"\nDifference from {next(iter(columns))}, 95 % interval over the runs")
            print(aligned(difference_rows(found)))
            if not any(map(has_interval, found.values())):
                print(f"{ONE_RUN.capitalize()}. Add --rounds 3.")
    if args.output_json:  # after printing: a full disk loses no figures
        write_report(args.output_json, report)
    failed = sum(figures["failed"] for figures in columns.values())
    if failed:
        error = next(figures["error"] for figures in columns.values() if figures["error"])
        print(f"inferdeck: {failed} requests failed: {error}", file=sys.stderr)
    return 1 if failed else 0


def _has_engines(args: argparse.Namespace) -> bool:
    return any(text.lstrip("-").startswith("engine=") for text in args.sweep)


Measured = tuple[dict[str, Any], dict[str, dict[str, Any]], str]
"""Report entries of the measurement, its figures, and the heading above them."""


def _measure_server(args: argparse.Namespace, plan: Plan) -> Measured:
    from app.bench.remote import RemoteBench, describe_probe
    from app.clients.target import Target

    status = StatusLine()
    keys = keys_of(args.api_key, [args.base_url])
    target = Target(args.base_url, keys.get(args.base_url))
    bench = RemoteBench(target, plan, args.served_model or "", status.counting)
    try:
        columns = bench.variants()
    finally:
        status.clear()
    for remark in bench.remarks:
        print(f"note: {remark}", file=sys.stderr)
    server = describe_probe(bench.probe, bench.model, bench.prompts)
    version = f" {server['version']}" if server["version"] else ""
    counted = ", ".join(dict.fromkeys(one["tokens_counted_by"] for one in columns.values()))
    return {"base_url": args.base_url, "target": server}, columns, (
        f"{bench.model} on {server['dialect']}{version} at {args.base_url}\n{work_line(plan)}\n"
        f"Prompt format: {bench.prompts}. Token count source: {counted}."
    )  # fmt: skip


def _measure_engine(
    config: EngineConfig, plan: Plan, comparison: tuple[str, list[Any]] | None
) -> Measured:
    from app.bench.runner import BenchRunner

    status = StatusLine()
    with open_engine(config) as engine:
        runner = BenchRunner(engine, plan, status.counting)
        columns = runner.compare(*comparison) if comparison else runner.variants()
        config, model = engine.config, engine.model_info
        status.clear()
    measured = {"config": config.as_dict(), "model": dataclasses.asdict(model)}
    return measured, columns, f"{model_line(config, model)}\n{work_line(plan)}"


def model_line(config: EngineConfig, model: ModelInfo) -> str:
    weights = " (random weights)" if model.is_dummy else ""
    at_most = "up to " * bool(config.adaptive_threads and (config.num_threads or 1) > 1)
    return f"{model.name}{weights}, {model.dtype}, {at_most}{config.num_threads} threads"


def _refuse_engine_options(args: argparse.Namespace) -> None:
    """A running server's settings cannot change."""
    if hasattr(args, "model"):
        raise ConfigError(
            "--model applies to the local engine only.", "Use --served-model with --base-url."
        )
    given = [SETTINGS[name].flag for name in SETTINGS if name != "seed" and hasattr(args, name)]
    if args.compare:
        given.append("--compare")
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot be changed on a running server.",
            "Omit these options with --base-url.",
        )


def _results(
    columns: Mapping[str, dict[str, Any]], comparison: tuple[str, list[Any]] | None
) -> dict[str, Any]:
    """The first run's figures at the top level; with several runs, all by name too."""
    first = next(iter(columns.values()))
    if comparison:
        from app.bench.differences import as_dict

        found = {name: as_dict(one) for name, one in _differences(columns, comparison).items()}
        return {"compare": comparison[0], "runs": dict(columns), "differences": found}
    return dict(first) if len(columns) == 1 else {**first, "variants": dict(columns)}


def _differences(
    columns: Mapping[str, dict[str, Any]], comparison: tuple[str, list[Any]] | None
) -> dict[str, list[Difference | None]]:
    """Of each value from the first one."""
    from app.bench.differences import differences
    from app.bench.sweep import Point

    if comparison is None:
        return {}
    points = {name: Point({}, one["rounds"], one) for name, one in columns.items()}
    (_, first), *others = points.items()
    return {name: differences(first, one) for name, one in others}


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options of `add_workload_options` ask for."""
    from app.bench.load import Pace
    from app.bench.runner import Plan

    workload = _workload(args)
    pace = Pace(args.concurrency, args.request_rate, args.burstiness)
    if args.burstiness != 1.0 and args.request_rate is None and not getattr(args, "sweep", ()):
        raise ConfigError("--burstiness needs --request-rate.", "Add --request-rate R.")
    if pace.concurrency is None and pace.request_rate is None:
        pace = pace._replace(concurrency=workload.concurrency)
    rounds = args.rounds or (DEFAULT_COMPARE_ROUNDS if args.compare else 1)
    return Plan(workload, pace, getattr(args, "seed", 0), args.num_warmups, rounds)


def plan_under_goals(args: argparse.Namespace) -> Plan:
    """Of a search, which has goals and the first variant of its workload."""
    if not args.goodput:
        raise ConfigError("No goal specified.", "Add --goodput itl:50, in milliseconds.")
    plan = plan_of(args)
    first = dict(list(plan.workload.variants.items())[:1])
    return dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, variants=first))


def _workload(args: argparse.Namespace) -> Workload:
    lengths = (args.input_len, args.output_len)
    if args.prompts is not None:
        if args.workload or args.variant or args.input_len:
            raise ConfigError(
                "--prompts sets the workload and its input lengths.",
                "Omit --workload, --variant and --input-len.",
            )
        return of_prompts(
            args.prompts, is_raw=args.raw_prompts, num_requests=args.num_requests,
            output_len=args.output_len,
        )  # fmt: skip
    if args.raw_prompts:
        raise ConfigError("--raw-prompts requires --prompts.", "Add --prompts FILE.")
    if args.workload is None:
        if args.variant:
            raise ConfigError("--variant requires --workload.", "Add --workload NAME.")
        if None in (*lengths, args.num_requests):
            raise ConfigError(
                "No workload specified.",
                "Set --workload or --prompts, or --input-len, --output-len and --num-requests.",
            )
        return fixed(*lengths, args.num_requests)
    if lengths != (None, None):
        raise ConfigError(
            f"{args.workload} already sets the input and output lengths.",
            "Use either --workload, or --input-len and --output-len.",
        )
    workload = preset(args.workload)
    if args.num_requests:
        workload = dataclasses.replace(workload, num_requests=args.num_requests)
    if args.variant is None:
        return workload
    if args.variant not in workload.variants:
        raise ConfigError(
            f"{workload.name} has no variant {args.variant!r}.",
            f"Choose one of {', '.join(workload.variants)}.",
        )
    chosen = {args.variant: workload.variants[args.variant]}
    return dataclasses.replace(workload, variants=chosen)


def comparison_of(text: str | None) -> tuple[str, list[Any]] | None:
    """The setting and values of "setting=v1,v2" or "setting=v1;v2"."""
    if text is None:
        return None
    name, _, listed = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    setting = SETTINGS.get(name)
    if setting is None or name == "model":
        known = ", ".join(n for n in SETTINGS if n != "model")
        raise ConfigError(f"--compare {text}: unknown setting {name!r}.", f"Settings: {known}.")
    words = listed.split(";" if ";" in listed else ",")
    parsed = [setting_value(setting, word.strip()) for word in words if word.strip()]
    if len(set(parsed)) < 2:
        raise ConfigError(
            f"--compare {text}: at least two values are required.",
            "Separate values with commas, as in batching=continuous,static.",
        )
    return name, list(dict.fromkeys(parsed))


def describe_plan(plan: Plan) -> dict[str, Any]:
    known = dataclasses.asdict(plan)
    workload = known.pop("workload")
    workload["prompts"] = len(workload["prompts"])
    return {**workload, **known.pop("pace")._asdict(), **known}


def machine() -> dict[str, Any]:
    from engine.hardware.machine import machine_info

    return dataclasses.asdict(machine_info())


def work_line(plan: Plan) -> str:
    work = plan.workload
    return (
        f"{work.title}: {work.num_requests} requests, prompts: {work.prompts_text}, "
        f"{work.output} output tokens, {plan.pace}"
    )
