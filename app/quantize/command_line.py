"""The command lines that do what the page does. No Qt."""

from __future__ import annotations

import shlex
from typing import Any

from app.quantize.evaluation import EvaluationPlan
from app.quantize.plan import QuantizePlan
from engine.config import SETTINGS
from engine.quantization.recipe import Recipe

PROGRAM = "inferdeck"


def quantize_command(plan: QuantizePlan) -> str:
    """Every option that is not the command's own default."""
    recipe, default = plan.recipe, Recipe(plan.recipe.method)
    words = [PROGRAM, "quantize", "--model", plan.source, "--method", recipe.method]
    words += ["--output", plan.output]
    if len(recipe.facts.bits) > 1:
        words += ["--bits", str(recipe.chosen_bits)]
    if recipe.facts.is_grouped:
        words += ["--group-size", str(recipe.group_size)]
    if recipe.is_symmetric != default.is_symmetric:
        words.append("--symmetric" if recipe.is_symmetric else "--no-symmetric")
    for pattern in recipe.exclude:
        words += ["--exclude", pattern]
    if recipe.facts.is_calibrated:
        if plan.text.file:
            words += ["--calibration", plan.text.file]
        words += ["--num-sequences", str(recipe.num_sequences)]
        words += ["--sequence-length", str(recipe.sequence_length)]
    if recipe.uses_desc_act:
        words.append("--desc-act")
    return shlex.join(words)


def evaluate_command(plan: EvaluationPlan) -> str:
    """Measures the same to the last digit on the same machine."""
    words = [PROGRAM, "evaluate", "--model", plan.candidate.path]
    words += _flags(plan.candidate.settings, "--")
    if plan.reference.path and plan.reference.path != plan.candidate.path:
        words += ["--reference", plan.reference.path]
    words += _flags(plan.reference.settings, "--reference-")
    if plan.text is not None:
        builtin, file = ["--text", plan.text.builtin], ["--text-file", plan.text.file]
        words += builtin if plan.text.builtin else file
    for flag, value in (
        ("--prompts", plan.prompts or None),
        ("--context-length", plan.context_length),
        ("--max-tokens", plan.max_tokens),
        ("--num-threads", plan.num_threads),
    ):
        if value is not None:
            words += [flag, str(value)]
    if plan.measure_speed:
        words.append("--speed")
    return shlex.join(words)


def _flags(settings: Any, prefix: str) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        words += [prefix + SETTINGS[name].flag.removeprefix("--"), str(value)]
    return words
