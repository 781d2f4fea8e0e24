"""`inferdeck profile`: where the time of a step goes, by operation."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from app.cli import values
from app.cli.bench import machine, model_line
from app.cli.options import (
    add_engine_options,
    add_options,
    add_report_options,
    check_writable,
    engine_config,
    write_report,
)
from app.cli.session import StatusLine, open_engine
from engine.units import bandwidth_text, compute_text

NAME = "profile"
HELP = "Show where the time of a step goes."
DESCRIPTION = (
    "Profile the prompt and decode steps of random requests: time, bytes and operations of each "
    "operation of the model, against the machine's measured peaks."
)
EPILOG = """\
examples:
  inferdeck profile
  inferdeck profile --model DIR --quantization int4 --prompt-tokens 512 --concurrency 4
  inferdeck profile --model DIR --steps 16 --trace steps.json.gz

Open the trace in https://ui.perfetto.dev or chrome://tracing."""

PROMPT_TOKENS, CONCURRENCY, STEPS = 128, 1, 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        ("--prompt-tokens N", values.positive, f"Tokens per prompt. Default: {PROMPT_TOKENS}.",
         PROMPT_TOKENS),
        ("--concurrency N", values.positive,
         f"Number of concurrent requests. Default: {CONCURRENCY}.", CONCURRENCY),
        ("--steps N", values.positive, f"Decode steps to profile. Default: {STEPS}.", STEPS),
        ("--trace FILE", values.path,
         "Write a Chrome trace to FILE; compressed if its name ends in .gz."),
    )  # fmt: skip
    add_report_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    for file in filter(None, (args.trace, args.output_json)):
        check_writable(file)
    status = StatusLine()
    with open_engine(config) as engine:
        from app.bench.profile import heading, profile_load

        found = profile_load(
            engine, args.prompt_tokens, args.concurrency, args.steps, args.trace, status.show
        )
        config, model = engine.config, engine.model_info
        status.clear()
    report = {
        "config": config.as_dict(), "model": dataclasses.asdict(model), "machine": machine(),
        "prompt_tokens": args.prompt_tokens, "concurrency": args.concurrency, **found.as_dict(),
        "trace": None if args.trace is None else str(Path(args.trace)),
    }  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        from app.bench.report import aligned
        from engine.telemetry.profile import HEADINGS, cells

        peaks = found.peaks
        print(model_line(config, model))
        print(f"Peaks: {bandwidth_text(peaks.read_bytes_per_s)}, {compute_text(peaks.flops_per_s)}")
        for one in found.profiles:
            print(f"\n{heading(one, found.plain_s.get(one.kind))}")
            print(aligned([[title.lower() for title in HEADINGS], *map(list, cells(one, peaks))]))
    if args.output_json:
        write_report(args.output_json, report)
    return 0
