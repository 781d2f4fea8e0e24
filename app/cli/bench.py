"""`inferdeck bench`: run a workload and report throughput, latency and memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.bench.workload import Workload, fixed, preset, preset_names
from app.cli.options import (
    add_engine_options,
    add_report_options,
    check_writable,
    engine_config,
    parse_count,
    parse_positive,
    setting_value,
    write_report,
)
from app.cli.session import StatusLine, open_engine
from engine.config import SETTINGS
from engine.errors import ConfigError

# What follows needs numpy, which `--help` need not wait for.
if TYPE_CHECKING:
    from app.bench.load import Pace
    from app.bench.runner import Plan

NAME = "bench"
HELP = "Measure a model under load."
DESCRIPTION = "Run a workload and report throughput, latency and memory."
EPILOG = """\
examples:
  inferdeck bench --workload query-rewrite
  inferdeck bench --model DIR --workload voice-bot --output-json voice-bot.json
  inferdeck bench --model DIR --load-format dummy --input-len 128 --output-len 64 --num-requests 8
  inferdeck bench --workload mixed-lengths --request-rate 2
  inferdeck bench --workload mixed-lengths --compare kv_allocation=paged,contiguous
  inferdeck bench --base-url http://host:8000 --workload query-rewrite

Prompts are random tokens, and replies run to their full length. The speed is real, the text is
noise. TTFT: arrival to first token. ITL: gap between output events, pooled over all requests.
TPOT: (end to end - TTFT) / (tokens - 1), per request."""

DEFAULT_COMPARE_ROUNDS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("workload")
    work.add_argument("--workload", metavar="NAME", help=f"A preset: {', '.join(preset_names())}.")
    work.add_argument("--variant", metavar="NAME", help="One variant of the preset. Default: all.")
    work.add_argument("--input-len", type=parse_positive, metavar="N", help="Tokens per prompt.")
    work.add_argument("--output-len", type=parse_positive, metavar="N", help="Tokens per reply.")
    work.add_argument(
        "--num-requests", type=parse_positive, metavar="N", help="Number of requests."
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=parse_positive, metavar="N",
        help="Concurrent requests. Default: the preset's, else all.",
    )  # fmt: skip
    pace.add_argument(
        "--request-rate", type=_rate, metavar="R", help="Average requests per second (Poisson)."
    )
    parser.add_argument(
        "--num-warmups", type=parse_count, metavar="N", default=1,
        help="Requests before the measurement. Default: 1.",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=parse_positive, metavar="N",
        help=f"Repeat the run and pool the samples. Default: 1; {DEFAULT_COMPARE_ROUNDS} with "
        "--compare.",
    )  # fmt: skip
    parser.add_argument(
        "--compare", metavar="SETTING=V1,V2",
        help="Run each value of an engine setting, alternating. Separate values that contain "
        "commas by semicolons.",
    )  # fmt: skip
    there = parser.add_argument_group("a running server")
    there.add_argument("--base-url", metavar="URL", help="Measure this server as a client.")
    there.add_argument(
        "--api-key", metavar="K", help="Key of that server. Default: INFERDECK_API_KEY."
    )
    there.add_argument(
        "--served-model", metavar="NAME", help="Model on that server. Default: the first."
    )
    add_report_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.base_url is not None:
        return _run_elsewhere(args)
    if args.api_key is not None or args.served_model is not None:
        raise ConfigError(
            "--api-key and --served-model need a server.", "Give --base-url as well."
        )
    return _run_here(args)


def _run_elsewhere(args: argparse.Namespace) -> int:
    """As `_run_here`, on a running server."""
    from app.bench.load import Pace
    from app.bench.remote import RemoteBench, describe_probe
    from app.bench.report import NOT_REPORTED, beside_server, table
    from app.bench.runner import Plan
    from app.clients.target import Target
    from app.server.options import KEY_VARIABLE

    _refuse_engine_options(args)
    workload = _workload(args)
    pace = Pace(args.concurrency, args.request_rate)
    if pace == Pace():
        pace = Pace(workload.concurrency)
    if args.output_json:
        check_writable(args.output_json)
    status = StatusLine()
    plan = Plan(workload, pace, getattr(args, "seed", 0), args.num_warmups, args.rounds or 1)
    key = args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    bench = RemoteBench(
        Target(args.base_url, key), plan, args.served_model or "",
        lambda label, done, total: status.show_at_times(f"{label}: {done} of {total}"),
    )  # fmt: skip
    try:
        columns = bench.variants()
    finally:
        status.clear()
    for remark in bench.remarks:
        print(f"note: {remark}", file=sys.stderr)
    server = describe_probe(bench.probe, bench.model, bench.prompts)
    report = {
        "base_url": args.base_url,
        "target": server,
        "machine": _machine(),
        "workload": _describe(workload, pace, plan),
        **_results(columns, None),
    }
    if args.output_json:
        write_report(args.output_json, report)
    if args.json:
        print(json.dumps(report))
        return _report_failures(columns)
    version = f" {server['version']}" if server["version"] else ""
    print(f"{bench.model} on {server['dialect']}{version}, {args.base_url}")
    print(_work_line(workload, pace))
    print(f"Prompts sent as {bench.prompts}; tokens counted by {_counted(columns)}.")
    print()
    print(table(columns, NOT_REPORTED))
    for name, figures in columns.items():
        beside = beside_server(figures)
        if beside:
            print(f"\n{name}: server metrics\n{beside}")
    return _report_failures(columns)


def _counted(columns: Mapping[str, dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(figures["tokens_counted_by"] for figures in columns.values()))


def _refuse_engine_options(args: argparse.Namespace) -> None:
    """The server's own start sets them."""
    if hasattr(args, "model"):
        raise ConfigError(
            "--model is for this machine's engine.", "Give --served-model with --base-url."
        )
    given = [SETTINGS[name].flag for name in SETTINGS if name != "seed" and hasattr(args, name)]
    if args.compare:
        given.append("--compare")
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot change a running server.",
            "Leave them out with --base-url.",
        )


def _run_here(args: argparse.Namespace) -> int:
    from app.bench.load import Pace
    from app.bench.report import table
    from app.bench.runner import BenchRunner, Plan, describe_engine

    workload = _workload(args)
    comparison = _comparison(args.compare)
    pace = Pace(args.concurrency, args.request_rate)
    if pace == Pace():
        pace = Pace(workload.concurrency)
    rounds = args.rounds or (DEFAULT_COMPARE_ROUNDS if comparison else 1)
    config = engine_config(args)
    if args.output_json:
        check_writable(args.output_json)
    status = StatusLine()
    with open_engine(config) as engine:
        plan = Plan(workload, pace, config.seed, args.num_warmups, rounds)
        runner = BenchRunner(
            engine,
            plan,
            lambda label, done, total: status.show_at_times(f"{label}: {done} of {total}"),
        )
        if comparison:
            columns = runner.compare(*comparison)
        else:
            columns = runner.variants()
        report = {
            "config": engine.config.as_dict(),
            "model": describe_engine(engine),
            "machine": _machine(),
            "workload": _describe(workload, pace, plan),
            **_results(columns, comparison),
        }
        status.clear()
    if args.output_json:
        write_report(args.output_json, report)
    if args.json:
        print(json.dumps(report))
    else:
        print(_heading(report, workload, pace))
        print()
        print(table(columns))
    return _report_failures(columns)


def _report_failures(columns: Mapping[str, dict[str, Any]]) -> int:
    """The exit code: 1 after failed requests, with their cause on stderr."""
    failed = sum(figures["failed"] for figures in columns.values())
    if failed:
        error = next(figures["error"] for figures in columns.values() if figures["error"])
        print(f"inferdeck: {failed} requests failed: {error}", file=sys.stderr)
    return 1 if failed else 0


def _results(
    columns: Mapping[str, dict[str, Any]], comparison: tuple[str, list[Any]] | None
) -> dict[str, Any]:
    """The report has the first run's figures at its top; with several runs, all under their names
    too."""
    first = next(iter(columns.values()))
    if comparison:
        return {"compare": comparison[0], "runs": dict(columns)}
    return dict(first) if len(columns) == 1 else {**first, "variants": dict(columns)}


def _workload(args: argparse.Namespace) -> Workload:
    lengths = (args.input_len, args.output_len)
    if args.workload is None:
        if args.variant:
            raise ConfigError("--variant needs a preset.", "Give --workload as well.")
        if None in (*lengths, args.num_requests):
            raise ConfigError(
                "No workload.",
                "Give --workload NAME, or all of --input-len, --output-len and --num-requests.",
            )
        return fixed(*lengths, args.num_requests)
    if lengths != (None, None):
        raise ConfigError(
            f"{args.workload} sets the lengths itself.",
            "Give either --workload or --input-len and --output-len.",
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


def _comparison(text: str | None) -> tuple[str, list[Any]] | None:
    """The setting and its values out of "setting=v1,v2", or "setting=v1;v2"."""
    if text is None:
        return None
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    setting = SETTINGS.get(name)
    if setting is None or name == "model":
        known = ", ".join(n for n in SETTINGS if n != "model")
        raise ConfigError(f"--compare {text}: unknown setting {name!r}.", f"Known: {known}.")
    words = values.split(";" if ";" in values else ",")
    parsed = [setting_value(setting, word.strip()) for word in words if word.strip()]
    if len(set(parsed)) < 2:
        raise ConfigError(
            f"--compare {text}: fewer than two values.",
            "Give two or more, as in batching=continuous,static.",
        )
    return name, list(dict.fromkeys(parsed))


def _describe(workload: Workload, pace: Pace, plan: Plan) -> dict[str, Any]:
    return {
        **dataclasses.asdict(workload),
        "concurrency": pace.concurrency,
        "request_rate": pace.request_rate,
        "seed": plan.seed,
        "num_warmups": plan.num_warmups,
        "rounds": plan.rounds,
    }


def _machine() -> dict[str, Any]:
    from engine.hardware.machine import machine_info

    return dataclasses.asdict(machine_info())


def _heading(report: Mapping[str, Any], workload: Workload, pace: Pace) -> str:
    model, config = report["model"], report["config"]
    weights = " (random weights)" if model["is_dummy"] else ""
    at_most = "up to " * bool(config["adaptive_threads"] and config["num_threads"] > 1)
    counts = {"TP": model["num_ranks"], "PP": model["num_stages"]}
    several = "".join(f", {name} {count}" for name, count in counts.items() if count > 1)
    return (
        f"{model['name']}{weights}, {model['dtype']}, {at_most}{config['num_threads']} threads"
        f"{several}\n"
        f"{_work_line(workload, pace)}"
    )


def _work_line(workload: Workload, pace: Pace) -> str:
    return (
        f"{workload.title}: {workload.num_requests} requests, {workload.input} tokens in, "
        f"{workload.output} out, {pace}"
    )


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate above 0 in requests per second")
    return value
