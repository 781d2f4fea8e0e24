"""`inferdeck evaluate`: what a precision costs, measured."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from app.cli.options import add_engine_options, check_writable, engine_config, write_report
from app.cli.session import StatusLine, prepare_libraries
from app.features.quantize.texts import BUILTIN_TEXTS, builtin_text
from app.paths import evaluations_dir
from app.storage.report_export import report_text
from app.storage.report_store import ReportStore
from engine.config import SETTINGS, EngineConfig
from engine.evaluate import EvaluationTask, plain, read_prompts, read_text, to_json, unit_of
from engine.evaluate.task import DEFAULT_WORST, WITHOUT_MEANING
from engine.evaluate.windows import DEFAULT_CONTEXT

NAME = "evaluate"
HELP = "measure what a precision costs in quality"
DESCRIPTION = """\
Measure a model on a text: perplexity, and against a reference the KL divergence, top-1 agreement
and similarity of the final hidden states; with --prompts the answers of both, side by side."""
EPILOG = """\
examples:
  inferdeck evaluate --text starter
  inferdeck evaluate --text starter --dtype bfloat16 --reference-dtype float32
  inferdeck evaluate --model DIR-awq --reference DIR --text-file novel.txt --output-json awq.json
  inferdeck evaluate --model DIR-awq --reference DIR --prompts questions.jsonl --speed

The reference is by default the same model in the same dtype, unquantized and with a plain KV cache;
where that is the model itself, only its perplexity is measured. The two are loaded one after the
other. --prompts: JSON lines of {"prompt": TEXT}, which is raw text, or {"messages": [...]}, which
goes through the chat template; each with "max_tokens" if you like. KL: KL(reference || model) per
token, in nats."""

REFERENCE_OPTIONS = tuple(
    name for name in ("dtype", "quantization", "kv_cache_dtype") if name in SETTINGS
)
"""Settings of the reference that may differ from its defaults; a quantized KV cache may be measured
against the same quantized weights, for example."""

EXCLUDED = (
    *WITHOUT_MEANING, "num_speculative_tokens", "speculative_adaptive", "prompt_lookup_min",
    "prompt_lookup_max", "watermark", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("what is measured")
    text = work.add_mutually_exclusive_group()
    text.add_argument("--text-file", metavar="FILE", type=Path, help="a text in UTF-8")
    text.add_argument(
        "--text", metavar="NAME",
        help="a text that comes with the program: "
        + ", ".join(f"{text.key} ({text.title})" for text in BUILTIN_TEXTS),
    )  # fmt: skip
    work.add_argument(
        "--prompts", metavar="FILE", type=Path, help="prompts in JSON lines, answered by both"
    )
    work.add_argument(
        "--speed", action="store_true",
        help="also tokens per second of one request, for each of the two models",
    )  # fmt: skip
    cut = parser.add_argument_group("how the text is read")
    cut.add_argument(
        "--context-length", metavar="N", type=_count,
        help=f"tokens of a window (default: {DEFAULT_CONTEXT}, or the model's limit)",
    )  # fmt: skip
    cut.add_argument(
        "--stride", metavar="N", type=_count,
        help="tokens from one window to the next (default: a window less one)",
    )  # fmt: skip
    cut.add_argument("--max-tokens", metavar="N", type=_count, help="no more of the text than this")
    cut.add_argument(
        "--worst", metavar="N", type=_count_or_zero, default=DEFAULT_WORST,
        help=f"tokens with the largest divergence to report (default: {DEFAULT_WORST})",
    )  # fmt: skip
    reference = parser.add_argument_group("reference")
    reference.add_argument("--reference", metavar="DIR", help="folder of the reference model")
    for name in REFERENCE_OPTIONS:
        reference.add_argument(
            "--reference-" + name.replace("_", "-"), metavar="X", dest=f"reference_{name}",
            help=f"its {SETTINGS[name].label.lower()}, as {SETTINGS[name].flag}",
        )  # fmt: skip
    parser.add_argument("--output-json", metavar="FILE", type=Path, help="write the report there")
    parser.add_argument(
        "--keep", metavar="NAME", nargs="?", const="",
        help="keep the report among those of the window, under NAME if one is given",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print the report as one JSON object, and nothing else"
    )
    add_engine_options(parser, exclude=EXCLUDED)


def run(args: argparse.Namespace) -> int:
    task = task_of(args)
    if args.output_json:
        check_writable(args.output_json)
    if args.reference is None and task.reference is None:
        _note("there is no other model to compare with: see --reference, --reference-dtype.")
    report = _measure(task)
    for notice in report.notices:
        _note(notice)
    stored = to_json(report)
    if args.output_json:
        write_report(args.output_json, stored)
    if args.keep is not None:
        kept = ReportStore(evaluations_dir()).add(report, args.keep)
        _note(f"kept as {kept.name!r}.")
    print(json.dumps(stored) if args.json else report_text(report))
    return 0


def task_of(args: argparse.Namespace) -> EvaluationTask:
    """What the flags ask for. Raises ConfigError or TextError."""
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
    """(text, name, parts that count); empty where none is to be read."""
    if args.text_file:
        return read_text(args.text_file), args.text_file.name, ()
    if args.text:
        builtin = builtin_text(args.text)
        text = builtin.read()
        return text, builtin.key, builtin.scored(text)
    return "", "", ()


def _reference(args: argparse.Namespace, candidate: EngineConfig) -> EngineConfig | None:
    """The reference that the flags describe; None where it is the candidate and was not asked for
    by name."""
    asked = {name: getattr(args, f"reference_{name}") for name in REFERENCE_OPTIONS}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if args.reference is not None:
        changes["model"] = args.reference
    reference = plain(candidate, **changes)
    return reference if changes or reference != candidate else None


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _count(text: str) -> int:
    value = _count_or_zero(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; give at least 1")
    return value


def _count_or_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
