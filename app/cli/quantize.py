"""`inferdeck quantize`: make a 4-bit or 8-bit checkpoint."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from app.cli import values
from app.cli.options import add_json_option, add_options
from app.cli.session import StatusLine
from app.features.quantize.texts import calibration_texts
from app.paths import starter_model
from engine.errors import ConfigError
from engine.quantize.recipe import GROUP_SIZES, METHODS, MIN_LENGTH, Recipe
from engine.units import bytes_text, rough_duration

# What follows needs torch, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.quantize.recipe import QuantizeResult

NAME = "quantize"
HELP = "Create a 4-bit or 8-bit checkpoint."
DESCRIPTION = """\
Quantize a 16-bit or 32-bit model layer by layer and save a checkpoint that other engines can load.
awq and gptq need calibration text; rtn, int8, fp8 and nf4 do not."""
EPILOG = """\
examples:
  inferdeck quantize --method awq --output starter-awq
  inferdeck quantize --model DIR --method awq --calibration notes.txt --output DIR-awq
  inferdeck quantize --model DIR --method gptq --group-size 64 --exclude down_proj --output DIR-gptq
  inferdeck quantize --model DIR --method int8 --output DIR-int8 --json

--exclude: a module name, a part of one ("down_proj", "layers.0") or a pattern ("*.experts.*").
--calibration: a text file, or JSON Lines with "text", "prompt" or "messages".
If quantization is interrupted or the disk is full, the output is deleted."""

_WORST = 3  # layers named at the end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Recipe()
    methods = "; ".join(f"{name}: {facts.title}" for name, facts in METHODS.items())
    sizes = ", ".join(map(str, GROUP_SIZES))
    add_options(
        parser,
        ("--model DIR", values.folder, "Model folder. Default: the demo model.",
         str(starter_model())),
    )
    parser.add_argument("--method", choices=tuple(METHODS), required=True, help=f"{methods}.")
    parser.add_argument("--output", metavar="DIR", required=True, type=values.folder,
                        help="New output folder.")
    add_options(
        parser,
        ("--bits N", values.positive, "Bits per weight: 4 or 8. Default: depends on the method."),
        ("--group-size N", values.positive,
         f"Input channels per scale: {sizes}. Default: {default.group_size}."),
    )  # fmt: skip
    parser.add_argument(
        "--symmetric", action=argparse.BooleanOptionalAction, default=None,
        help="gptq and rtn: quantize without zero points. Default: on.",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", metavar="MODULE", nargs="+", action="extend", default=[], type=values.name,
        help="Modules to leave unquantized, besides the embeddings and the LM head.",
    )  # fmt: skip
    add_options(
        parser.add_argument_group("calibration (awq, gptq)"),
        ("--calibration FILE", values.folder, "Calibration text file. Default: a built-in text."),
        ("--num-sequences N", values.positive,
         f"Maximum number of calibration sequences. Default: {default.num_sequences}.",
         default.num_sequences),
        ("--sequence-length N", values.integer(MIN_LENGTH, 2**31 - 1, "tokens"),
         f"Tokens per sequence. Default: {default.sequence_length}.", default.sequence_length),
        ("--desc-act", None,
         "gptq only: use act-order. Slightly better quality, slower inference."),
        ("--seed N", values.seed, "Seed for sampling passages from a long text. Default: 0.",
         default.seed),
    )  # fmt: skip
    add_json_option(parser)


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
    print(json.dumps(result.as_json()) if args.json else summary(result))
    return 0


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Raises ConfigError for options that exclude each other."""
    facts = METHODS[args.method]
    for option, value, applies in (
        ("--group-size", args.group_size, facts.is_grouped),
        ("--calibration", args.calibration, facts.is_calibrated),
    ):
        if value is not None and not applies:
            raise ConfigError(
                f"{option} has no effect with --method {args.method}.", f"Omit {option}."
            )
    return Recipe(
        method=args.method,
        bits=args.bits,
        group_size=args.group_size or Recipe().group_size,
        symmetric=args.symmetric,
        exclude=tuple(args.exclude),
        num_sequences=args.num_sequences,
        sequence_length=args.sequence_length,
        desc_act=args.desc_act,
        static_groups=not args.desc_act,
        seed=args.seed,
    )


class _Progress(StatusLine):
    """One line: stage, layer and remaining time."""

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
            text += f", about {rough_duration(left)} left"
        self.show_at_times(text)


def summary(result: QuantizeResult) -> str:
    """The result in a few lines."""
    share = result.bytes_after / result.bytes_before
    count = sum(len(layer.linears) for layer in result.layers)
    lines = [
        f"{result.output}",
        f"{bytes_text(result.bytes_before)} -> {bytes_text(result.bytes_after)} "
        f"({share:.0%}), {count} linear layers at {result.recipe.chosen_bits} bits, "
        f"{rough_duration(result.seconds)}",
    ]
    if result.num_tokens:
        read = f"{result.num_tokens:,} tokens in {result.num_sequences} sequences"
        lines.append(f"calibrated on {read}")
    known = [layer for layer in result.layers if layer.output_error is not None]
    lines += [
        f"layer {layer.index}: output error {layer.output_error:.2%} "
        f"(round-to-nearest {layer.rounding_error:.2%})"
        for layer in sorted(known, key=lambda layer: -(layer.output_error or 0.0))[:_WORST]
    ]
    kept = list(result.kept.items())
    lines += [f"unquantized: {name} ({reason})" for name, reason in kept[:_WORST]]
    if len(kept) > _WORST:
        lines.append(f"unquantized: {len(kept) - _WORST} more modules")
    return "\n".join([*lines, *result.notes])
