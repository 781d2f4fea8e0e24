"""`inferdeck quantize`: a model of 16 bits in, a folder of few bits out."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from app.cli.session import StatusLine
from app.features.quantize.texts import calibration_texts
from app.paths import starter_model
from app.units import format_bytes
from engine.quantize.recipe import GROUP_SIZES, METHODS, Recipe

# What follows needs torch, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.quantize.recipe import LayerResult, QuantizeResult

NAME = "quantize"
HELP = "make a model of 4 or 8 bits"
DESCRIPTION = """\
Quantize a model of 16 or 32 bits, layer by layer, and save it as a folder that this program and
others read. awq and gptq read a text to learn which errors matter; rtn, int8, fp8 and nf4 round."""
EPILOG = """\
examples:
  inferdeck quantize --method awq --output starter-awq
  inferdeck quantize --model DIR --method awq --calibration notes.txt --output DIR-awq
  inferdeck quantize --model DIR --method gptq --group-size 64 --exclude down_proj --output DIR-gptq
  inferdeck quantize --model DIR --method int8 --output DIR-int8 --json

--exclude: a module's name, a part of it ("down_proj", "layers.0") or a pattern ("*.experts.*").
--calibration: a text file, or JSON lines with a "text", a "prompt" or "messages" each.
Nothing is left of the output when the command is interrupted or the disk is full."""

_WORST = 3  # layers named at the end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Recipe()
    parser.add_argument(
        "--model", metavar="DIR", default=str(starter_model()),
        help="folder of the model (default: the starter model)",
    )  # fmt: skip
    methods = "; ".join(f"{name}: {facts.title}" for name, facts in METHODS.items())
    parser.add_argument("--method", choices=tuple(METHODS), required=True, help=methods)
    parser.add_argument("--output", metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--bits", metavar="N", type=int, help="4 or 8 (default: the method's)")
    parser.add_argument(
        "--group-size", metavar="N", type=int, default=default.group_size,
        help=f"inputs that share a scale: {', '.join(map(str, GROUP_SIZES))} "
        f"(default: {default.group_size})",
    )  # fmt: skip
    parser.add_argument(
        "--symmetric", action=argparse.BooleanOptionalAction, default=None,
        help="without or with zero points, for gptq and rtn (default: gptq without, rtn with)",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", metavar="MODULE", nargs="+", action="extend", default=[],
        help="modules that stay as they are; embeddings and the head always do",
    )  # fmt: skip
    text = parser.add_argument_group("calibration (awq, gptq)")
    text.add_argument(
        "--calibration", metavar="FILE", help="the text to read (default: one of the program's)"
    )
    text.add_argument(
        "--num-sequences", metavar="N", type=int, default=default.num_sequences,
        help=f"sequences that are read at most (default: {default.num_sequences})",
    )  # fmt: skip
    text.add_argument(
        "--sequence-length", metavar="N", type=int, default=default.sequence_length,
        help=f"tokens of each (default: {default.sequence_length})",
    )  # fmt: skip
    text.add_argument(
        "--desc-act", action="store_true",
        help="gptq: groups of columns in the order of their importance, not as they lie; a little "
        "better, and slower to compute with",
    )  # fmt: skip
    text.add_argument(
        "--seed", metavar="N", type=int, default=default.seed,
        help="which parts of a long text are read (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object at the end, and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    recipe = recipe_of(args)
    status = _Progress()
    status.show("Starting")
    from engine.quantize.quantize import quantize

    try:
        texts = calibration_texts(args.model, args.calibration)
        result = quantize(
            args.model,
            recipe,
            args.output,
            texts if recipe.facts.is_calibrated else (),
            progress=status.working,
        )
    finally:
        status.clear()
    if args.json:
        print(json.dumps(result.as_json()))
        return 0
    print(summary(result))
    return 0


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Raises ConfigError for settings that do not fit each other."""
    return Recipe(
        method=args.method,
        bits=args.bits,
        group_size=args.group_size,
        symmetric=args.symmetric,
        exclude=tuple(args.exclude),
        num_sequences=args.num_sequences,
        sequence_length=args.sequence_length,
        desc_act=args.desc_act,
        static_groups=not args.desc_act,
        seed=args.seed,
    )


class _Progress(StatusLine):
    """One line: what is done to which layer, and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._began: float | None = None

    def working(self, stage: str, layer: int, layers: int) -> None:
        if not layers:
            self.show_at_times(stage)
            return
        now = time.monotonic()
        self._began = self._began or now
        text = f"{stage}: layer {min(layer + 1, layers)} of {layers}"
        if layer:
            left = (now - self._began) * (layers - layer) / layer
            text += f", about {_duration(left)} left"
        self.show_at_times(text)


def summary(result: QuantizeResult) -> str:
    """What was made, in a few lines."""
    share = result.bytes_after / result.bytes_before
    count = sum(len(layer.linears) for layer in result.layers)
    lines = [
        f"{result.output}",
        f"{format_bytes(result.bytes_before)} -> {format_bytes(result.bytes_after)} "
        f"({share:.0%}), {count} matrices in {result.recipe.chosen_bits} bits, "
        f"{_duration(result.seconds)}",
    ]
    if result.num_tokens:
        lines.append(f"read {result.num_tokens:,} tokens in {result.num_sequences} sequences")
    lines += _errors(result.layers)
    lines += [f"kept: {name} ({reason})" for name, reason in list(result.kept.items())[:_WORST]]
    if len(result.kept) > _WORST:
        lines.append(f"kept: {len(result.kept) - _WORST} more")
    return "\n".join([*lines, *result.notes])


def _errors(layers: tuple[LayerResult, ...]) -> list[str]:
    known = [layer for layer in layers if layer.output_error is not None]
    worst = sorted(known, key=lambda layer: -(layer.output_error or 0.0))[:_WORST]
    return [
        f"layer {layer.index}: output error {layer.output_error:.2%} "
        f"(rounding alone {layer.rounding_error:.2%})"
        for layer in worst
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
