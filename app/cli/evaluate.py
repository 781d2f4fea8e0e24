"""`inferdeck evaluate`: measure quality loss from lower precision."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from app.cli import values
from app.cli.options import (
    add_engine_options,
    add_options,
    add_report_options,
    check_writable,
    engine_config,
    write_report,
)
from app.cli.session import StatusLine, prepare_libraries
from app.features.quantize.texts import BUILTIN_TEXTS, builtin_text
from app.paths import evaluations_dir
from app.storage.report_export import report_text
from app.storage.report_store import ReportStore
from app.units import setting_value
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.evaluate import EvaluationTask, plain, read_prompts, read_text, to_json, unit_of
from engine.evaluate.task import DEFAULT_WORST, WITHOUT_MEANING
from engine.evaluate.windows import DEFAULT_CONTEXT

NAME = "evaluate"
HELP = "Measure quality loss from lower precision."
DESCRIPTION = """\
Measure a model's perplexity on a text. With a reference, also measure KL divergence, top-1
agreement and final hidden state similarity. With --prompts, compare the replies of both models."""
EPILOG = """\
examples:
  inferdeck evaluate --text starter
  inferdeck evaluate --text starter --dtype bfloat16 --reference-dtype float32
  inferdeck evaluate --model DIR-awq --reference DIR --text-file novel.txt --output-json awq.json
  inferdeck evaluate --model DIR-awq --reference DIR --prompts questions.jsonl --speed

Default reference: the same model and dtype, unquantized, with an unquantized KV cache. If this
equals the model itself, only perplexity is measured. The models are loaded one at a time.
--prompts: JSON Lines with "prompt" or "messages", and optionally "max_tokens"; CSV; or text.
KL: KL(reference || model) per token, in nats."""

REFERENCE_OPTIONS = ("dtype", "quantization", "kv_cache_dtype")
"""Settings of the reference that may differ from its defaults."""

EXCLUDED = (
    *WITHOUT_MEANING, "num_speculative_tokens", "speculative_adaptive", "prompt_lookup_min",
    "prompt_lookup_max", "watermark", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("measurements")
    built_in = ", ".join(f"{text.key} ({text.title})" for text in BUILTIN_TEXTS)
    add_options(
        work.add_mutually_exclusive_group(),
        ("--text-file FILE", values.path, "UTF-8 text file."),
        ("--text NAME", values.name, f"Built-in text: {built_in}."),
    )
    add_options(
        work,
        ("--prompts FILE", values.path, "Prompts for both models: JSON Lines, CSV or text."),
        ("--raw-prompts", None, "Send text prompts as they are. Default: apply the model's chat "
         "template, if it has one."),
        ("--speed", None, "Also measure single-request tokens per second for each model."),
    )  # fmt: skip
    add_options(
        parser.add_argument_group("text windows"),
        ("--context-length N", values.positive,
         f"Tokens per window. Default: {DEFAULT_CONTEXT}, capped at the context length."),
        ("--stride N", values.positive,
         "Window stride in tokens. Default: the window length minus 1."),
        ("--max-tokens N", values.positive,
         "Maximum text length in tokens. Default: the whole text."),
        ("--worst N", values.count,
         f"Report the N tokens with the highest KL divergence. Default: {DEFAULT_WORST}.",
         DEFAULT_WORST),
    )  # fmt: skip
    add_options(
        parser.add_argument_group("reference"),
        ("--reference DIR", values.folder, "Reference model folder."),
        *(
            (f"--reference-{setting.flag[2:]} X", partial(setting_value, setting),
             f"{setting.flag} for the reference model.")
            for setting in (SETTINGS[name] for name in REFERENCE_OPTIONS)
        ),
    )
    parser.add_argument(
        "--keep", metavar="NAME", nargs="?", const="", type=values.text,
        help="Save the report for viewing in the window, optionally as NAME.",
    )  # fmt: skip
    add_report_options(parser)
    add_engine_options(parser, exclude=EXCLUDED)


def run(args: argparse.Namespace) -> int:
    task = task_of(args)
    if args.output_json:
        check_writable(args.output_json)
    if args.reference is None and task.reference is None:
        _note("no reference: perplexity only. To compare, set --reference or --reference-dtype.")
    report = _measure(task)
    for notice in report.notices:
        _note(notice)
    stored = to_json(report)
    print(json.dumps(stored) if args.json else report_text(report), flush=True)
    if args.output_json:  # after printing: a full disk loses no figures
        write_report(args.output_json, stored)
    if args.keep is not None:
        kept = ReportStore(evaluations_dir()).add(report, args.keep)
        _note(f"report saved as {kept.name!r}.")
    return 0


def task_of(args: argparse.Namespace) -> EvaluationTask:
    """The evaluation that the flags describe. Raises ConfigError or TextError."""
    if args.raw_prompts and not args.prompts:
        raise ConfigError("--raw-prompts requires --prompts.", "Add --prompts FILE.")
    candidate = engine_config(args)
    text, text_name, scored = _text(args)
    return EvaluationTask(
        candidate,
        reference=_reference(args, candidate),
        text=text,
        text_name=text_name,
        scored=scored,
        prompts=read_prompts(args.prompts) if args.prompts else (),
        prompts_name=str(args.prompts or ""),
        raw_prompts=args.raw_prompts,
        context_length=args.context_length,
        stride=args.stride,
        max_tokens=args.max_tokens,
        num_worst=args.worst,
        measure_speed=args.speed,
    )


def _measure(task: EvaluationTask) -> Any:
    prepare_libraries()
    status = StatusLine()
    status.show("Starting")
    # Imported here: torch and transformers take seconds, which `--help` need not wait for.
    from engine.evaluate import run as evaluate

    def progress(stage: str, done: int, total: int) -> None:
        unit = unit_of(stage)
        if unit == "bytes" or not total:
            status.loading(stage, done, total)
        else:
            status.show_at_times(f"{stage}: {done:,} of {total:,} {unit}")

    try:
        return evaluate(task, progress)
    finally:
        status.clear()


def _text(args: argparse.Namespace) -> tuple[str, str, tuple[tuple[int, int], ...]]:
    """(text, name, scored parts); empty without a text."""
    if args.text_file:
        return read_text(args.text_file), args.text_file.name, ()
    if args.text:
        builtin = builtin_text(args.text)
        text = builtin.read()
        return text, builtin.key, builtin.scored(text)
    return "", "", ()


def _reference(args: argparse.Namespace, candidate: EngineConfig) -> EngineConfig | None:
    """The reference that the flags describe; None if it would be the candidate itself."""
    asked = {name: getattr(args, f"reference_{name}") for name in REFERENCE_OPTIONS}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if args.reference is not None:
        changes["model"] = args.reference
    reference = plain(candidate, **changes)
    return reference if changes or reference != candidate else None


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)

