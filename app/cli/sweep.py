"""`inferdeck bench --sweep` and `inferdeck tune`: the workload at several loads or settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.cli import values
from app.cli.keys import keys_of
from app.cli.options import add_options, check_writable, engine_config, write_report
from app.cli.session import StatusLine, open_engine
from engine.errors import ConfigError
from engine.units import counted, precision_name

if TYPE_CHECKING:
    from app.bench.engines import EnginesBench
    from app.bench.goals import Goals
    from app.bench.ladder_record import LadderResult
    from app.bench.progress import Progress
    from app.bench.record import BenchResult
    from app.bench.remote import RemoteBench
    from app.bench.runner import BenchRunner, Plan
    from app.bench.sweep import Axis, Point
    from app.bench.tuner import Tuner
    from engine.config import EngineConfig


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser.add_argument_group("sweep"),
        ("--sweep NAME=V1,V2", values.name, "Measure at each value of concurrency, request_rate or "
         "an engine setting; repeat for every combination. engine=Inferdeck,URL compares engines. "
         "The result is kept as a run.", []),
    )  # fmt: skip
    add_goal_options(parser)


def goals_of(args: argparse.Namespace) -> Goals:
    """Of the options of `add_goal_options`; their files can be written. Raises ConfigError."""
    from app.bench.export import SUFFIXES
    from app.bench.goals import PERCENTILES, parse_goals

    if args.percentile not in PERCENTILES:
        raise ConfigError(f"--percentile is {args.percentile}.", "Use 50, 90 or 99.")
    if args.output is not None and args.output.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--output {args.output.name}: unknown format.", f"Use {', '.join(SUFFIXES)}."
        )
    for file in filter(None, (args.output, args.output_json)):
        check_writable(file)
    return parse_goals(args.goodput, args.percentile)


def add_goal_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("goals")
    add_options(
        group,
        ("--percentile P", values.integer(50, 99), "Percentile of the goals: 50, 90 or 99. "
         "Default: 99.", 99),
        ("--output FILE", values.path, "Write all points to FILE: .html, .json, .csv or .png."),
    )  # fmt: skip
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", default=[], type=values.checked(values.name),
        help="Latency goals in milliseconds: ttft, tpot, itl or e2el, as ttft:500 itl:50.",
    )  # fmt: skip


MakeSearch = Callable[
    ["BenchRunner", Sequence["Axis"], "Goals", Callable[["Progress"], None]], "Tuner"
]


def run_sweep(args: argparse.Namespace, plan: Plan, make_search: MakeSearch | None = None) -> int:
    """Run, print and store the points of `args.sweep`: all, or those that a search chooses; 1
    if one failed."""
    from app.bench.axes import parse_axes
    from app.bench.engines import OWN, EnginesBench, Reached
    from app.bench.point_table import as_dict, as_text, export
    from app.bench.ranking import Objective
    from app.bench.record import BenchResult, to_run
    from app.bench.remote import RemoteBench
    from app.bench.sweep import ENGINE, LOADS, NO_SETTINGS, Sweep
    from app.clients.target import Target
    from app.paths import runs_dir
    from app.storage.run_records import State
    from app.storage.run_store import RunStore
    from engine.hardware.machine import machine_info

    axes = parse_axes(args.sweep)
    if args.compare:
        raise ConfigError("--compare and --sweep exclude each other.", "Omit --compare.")
    settings = [axis.name for axis in axes if axis.name not in NO_SETTINGS]
    engines = next((axis.values for axis in axes if axis.name == ENGINE), ())
    if engines and (args.base_url is not None or make_search is not None):
        raise ConfigError(
            "The engine axis works with bench only, without --base-url.",
            "Put the address in the axis: engine=Inferdeck,URL.",
        )
    if args.base_url is not None and settings:
        raise ConfigError(
            f"{', '.join(settings)} cannot be changed on a running server.",
            "Sweep concurrency or request_rate with --base-url.",
        )
    servers = [one for one in engines if one != OWN] or [args.base_url]
    keys = keys_of(args.api_key, servers) if engines or args.base_url is not None else {}
    goals = goals_of(args)
    status = StatusLine()
    measured: dict[str, Any]

    def measure(
        bench: BenchRunner | RemoteBench | EnginesBench, model: str, precision: str,
        search: Tuner | None = None,
    ) -> BenchResult:  # fmt: skip
        sweep = Sweep(
            bench, axes, plan.pace, plan.workload.num_requests, plan.rounds, status.follow,
            search, search.most if search else 0,
        )  # fmt: skip
        bench.progress = sweep.on_request
        points = sweep.run()
        if search is not None:
            points = [point for point in points if point.figures or point.error]
        state = State.STOPPED if sweep.was_cancelled else State.DONE
        status.clear()
        pace = "" if {axis.name for axis in axes} & set(LOADS) else f", {plan.pace}"
        return BenchResult(
            model, precision, f"{plan.workload.title}{pace}", tuple(points), goals, state,
            rounds=plan.rounds, objective=Objective(getattr(args, "objective", "throughput")),
        )  # fmt: skip

    def reach(url: str) -> Reached:
        return Reached(Target(url, keys.get(url)), args.served_model or "")

    if engines and OWN not in engines:
        result = measure(EnginesBench(None, reach, plan), ", ".join(engines), "")
        measured = {}
    elif args.base_url is not None:
        server = reach(args.base_url)
        remote = RemoteBench(server.target, plan, server.model)
        result = measure(remote, remote.model, "")
        measured = {"base_url": args.base_url}
    else:
        from app.bench.runner import BenchRunner

        with open_engine(engine_config(args, settings[0] if settings else "")) as engine:
            model = engine.model_info
            runner = BenchRunner(engine, plan, bandwidth=False)
            tell = lambda progress: status.show(str(progress))  # of each point of a prediction
            search = make_search(runner, axes, goals, tell) if make_search else None
            bench: BenchRunner | EnginesBench = runner
            if engines:
                bench = compared = EnginesBench(runner, reach, plan)
                runner.progress = lambda *counts: compared.progress(*counts)  # set by `measure`
            result = measure(bench, model.name, precision_name(model.dtype), search)
            config = engine.config
            measured = {"config": engine.config.as_dict(), "model": asdict(model)}
    report = {**measured, "machine": asdict(machine_info()), **as_dict(result)}
    if args.json:
        print(json.dumps(report))
    else:
        print(as_text(result))
        if make_search is not None and (best := result.best):
            print(f"\n{commands_of(config.replace(**_settings(best)))}")
    RunStore(runs_dir()).add(to_run(result))
    if args.output_json:
        write_report(args.output_json, report)
    if args.output is not None:
        write_output(args.output, result, export)
    return exit_status(result, sum(bool(point.error) for point in result.points), "point")


def exit_status(result: BenchResult | LadderResult, failed: int, noun: str) -> int:
    """Of a measurement whose results are written. Raises KeyboardInterrupt where Ctrl+C ended
    it."""
    if failed:
        print(f"inferdeck: {counted(failed, noun)} failed", file=sys.stderr)
    if result.state == "stopped":
        raise KeyboardInterrupt
    return 1 if failed else 0


R = TypeVar("R", "BenchResult", "LadderResult")


def write_output(file: Path, result: R, export: Callable[[R, Path], None]) -> None:
    """Raises ReportError."""
    if file.suffix.lower() != ".png":
        export(result, file)
        return
    from app.features.bench.picture import save_picture

    save_picture(result, file)


def _settings(point: Point) -> dict[str, Any]:
    from app.bench.sweep import NO_SETTINGS

    return {name: value for name, value in point.settings.items() if name not in NO_SETTINGS}


def commands_of(config: EngineConfig) -> str:
    """Command lines of other servers with these settings."""
    from app.features.tune.servers import sglang_command, tensorrt_llm_command, vllm_command

    made = (make(config) for make in (vllm_command, sglang_command, tensorrt_llm_command))
    return "\n".join(command.as_script for command in made)
