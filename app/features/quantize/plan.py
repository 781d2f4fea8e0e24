"""Quantization plan: predicted size and time, problems, names. Imports no Qt."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.features.quantize.source import Matrix, SourceFacts
from app.features.quantize.texts import PROGRAM, TextChoice
from app.storage.model_sources import cache_folder, is_starter, model_title
from engine.quantize.recipe import Recipe
from engine.units import bytes_text

NF4_BLOCK = 64
_SEARCH_PASSES = 20  # ratios that AWQ tries
_PASSES = 4  # of the text through a layer: original, rounded, quantized, next input

_LAYER_S = 0.5  # minimum per layer

DEFAULT_RATES: Mapping[str, float] = {
    "awq": 1.2e10, "gptq": 1.0e10, "rtn": 4.0e7, "int8": 6.0e7, "fp8": 5.0e7, "nf4": 2.0e7,
}  # fmt: skip
"""Units of `work_of` per second on a machine with few cores, until measured here."""


class Prediction(NamedTuple):
    """Predicted result. `num_bytes`: all written tensors; `quantized_share`: of the parameters in
    the decoder layers' matrices."""

    num_bytes: int
    quantized_share: float


def predict_size(facts: SourceFacts, recipe: Recipe) -> Prediction:
    """Exact but for the padding of a file."""
    quantized = facts.quantized(recipe.exclude)
    before = sum(matrix.num_bytes for matrix in quantized)
    after = sum(_stored_bytes(matrix, recipe, facts.dtype) for matrix in quantized)
    total = sum(matrix.count for matrix in facts.matrices)
    share = sum(matrix.count for matrix in quantized) / total if total else 0.0
    return Prediction(round(facts.num_bytes - before + after), share)


def _stored_bytes(matrix: Matrix, recipe: Recipe, dtype: str) -> float:
    """Bytes of codes, scales, zero points and indices in the method's format."""
    bits, method = recipe.chosen_bits, recipe.method
    rows, columns = matrix.rows, matrix.columns
    codes = matrix.count * bits / 8
    scale = 4 if dtype == "float32" and recipe.facts.format == "compressed-tensors" else 2
    if method == "nf4":
        return codes + 4 * matrix.count / NF4_BLOCK
    if not recipe.facts.is_grouped:
        return codes + scale * rows
    groups = -(-columns // recipe.group_size)
    zeros = 0.0 if method == "rtn" and recipe.is_symmetric else rows * groups * bits / 8
    index = 4 * columns if method == "gptq" else 0
    return codes + zeros + scale * rows * groups + index


def work_of(facts: SourceFacts, recipe: Recipe, num_tokens: int) -> float:
    """Work in units of equal time per machine and method: parameters to round, or multiplications
    over the calibration text."""
    count = sum(matrix.count for matrix in facts.quantized(recipe.exclude))
    if not recipe.facts.is_calibrated:
        return float(count)
    tokens = min(num_tokens, recipe.num_sequences * recipe.sequence_length)
    work = float(count * tokens * _PASSES)
    if recipe.method == "awq":
        searched = min(tokens, recipe.num_search_sequences * recipe.sequence_length)
        work += float(count * searched * _SEARCH_PASSES)
    return work


def predict_seconds(
    facts: SourceFacts, recipe: Recipe, num_tokens: int, rates: Mapping[str, float]
) -> float:
    """`rates`: measured units of `work_of` per second on this machine; DEFAULT_RATES where none."""
    if recipe.method in rates:
        return work_of(facts, recipe, num_tokens) / rates[recipe.method]
    seconds = work_of(facts, recipe, num_tokens) / DEFAULT_RATES[recipe.method]
    return seconds + (_LAYER_S * len(facts.layers) if recipe.facts.is_calibrated else 0.0)


SOURCE, METHOD, GROUP_SIZE = "source", "method", "group_size"
MODULES, TEXT, OUTPUT = "modules", "text", "output"


class Problem(NamedTuple):
    """Why a plan cannot start, and what to do; `field`: the form field at fault."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """`source`: model folder; `text`: calibration text."""

    source: str
    recipe: Recipe
    output: str
    text: TextChoice = field(default_factory=lambda: TextChoice(PROGRAM))

    @property
    def title(self) -> str:
        return f"{model_name(self.source)}, {recipe_label(self.recipe)}"


def model_name(path: str) -> str:
    """Name of the model in a folder, without the hash of the Hugging Face cache."""
    cached = cache_folder(path)
    return cached.name.split("--")[-1] if cached is not None else model_title(path)


def recipe_label(recipe: Recipe) -> str:
    """ "AWQ, 4-bit, groups of 128"."""
    parts = [recipe.method.upper()]
    if len(recipe.facts.bits) > 1 or recipe.facts.is_grouped:
        parts.append(f"{recipe.chosen_bits}-bit")
    if recipe.facts.is_grouped:
        parts.append(f"groups of {recipe.group_size}")
    if recipe.uses_desc_act:
        parts.append("act-order")
    return ", ".join(parts)


def suggested_name(source: str, recipe: Recipe) -> str:
    """ "Qwen3-0.6B-AWQ-4bit-g128"."""
    name = "starter" if is_starter(source) else model_name(source)
    parts = [name, recipe.method if recipe.method in ("int8", "fp8") else recipe.method.upper()]
    if len(recipe.facts.bits) > 1 or recipe.facts.is_grouped:
        parts.append(f"{recipe.chosen_bits}bit")
    if recipe.facts.is_grouped:
        parts.append(f"g{recipe.group_size}")
    return "-".join(parts)


def suggested_output(folder: Path, source: str, recipe: Recipe) -> Path:
    """A new folder in `folder`."""
    first = folder / suggested_name(source, recipe)
    found, number = first, 2
    while found.exists():
        found, number = first.with_name(f"{first.name}-{number}"), number + 1
    return found


def free_bytes(folder: Path) -> int:
    """Free space on the disk of `folder`, which may not exist; 0 if unknown."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def needed_bytes(size: int) -> int:
    """Disk space during writing: one shard exists twice while it is assembled."""
    # imports torch, which reading the model's size has loaded already
    from engine.quantize.output_folder import SHARD_BYTES

    return size + min(size, SHARD_BYTES)


def check_plan(
    plan: QuantizePlan, facts: SourceFacts, free: Callable[[Path], int] = free_bytes
) -> list[Problem]:
    """Problems of a plan, except those of its text, which takes longer to read."""
    if facts.refusal is not None:
        return [Problem(SOURCE, f"{facts.refusal.cause} {facts.refusal.remedy}")]
    modules = _modules_problem(plan.recipe, facts)
    found = {
        MODULES: modules,
        GROUP_SIZE: "" if modules else _groups_problem(plan.recipe, facts),
        OUTPUT: _output_problem(plan, facts, free),
    }
    return [Problem(field, text) for field, text in found.items() if text]


def _modules_problem(recipe: Recipe, facts: SourceFacts) -> str:
    unknown = facts.unknown(recipe.exclude)
    if unknown:
        known = ", ".join(dict.fromkeys(m.kind for m in facts.matrices[:3]))
        return f"No module matches {unknown[0]!r}. Examples: {known}."
    if not facts.quantized(recipe.exclude):
        return "All modules are excluded. Exclude fewer modules."
    return ""


def _groups_problem(recipe: Recipe, facts: SourceFacts) -> str:
    size = recipe.group_size
    wrong = [m for m in facts.quantized(recipe.exclude) if m.columns % size]
    if not recipe.facts.is_grouped or not wrong:
        return ""
    widths = sorted({matrix.columns for matrix in wrong})
    fitting = [g for g in (256, 128, 64, 32) if not any(width % g for width in widths)]
    remedy = "Exclude these modules, or choose INT8, FP8 or NF4."
    return (
        f"Group size {size} does not divide the input size ({', '.join(map(str, widths))}) of "
        f"{len(wrong)} matrices ({wrong[0].kind}). "
        f"{f'Choose {fitting[0]}.' if fitting else remedy}"
    )


def _output_problem(plan: QuantizePlan, facts: SourceFacts, free: Callable[[Path], int]) -> str:
    if not plan.output.strip():
        return "No output folder. Choose one."
    target = Path(plan.output).expanduser().absolute()
    if target == Path(plan.source).absolute():
        return "The output folder is the model folder. Choose another folder."
    if target.is_file():
        return "The output is a file. Choose a folder."
    try:
        if target.is_dir() and any(target.iterdir()):
            return "The folder is not empty. Choose another: existing files are never overwritten."
    except OSError as error:
        return f"Cannot read the folder: {error.strerror or error}."
    parent = target.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        return f"Cannot write to {parent}. Choose another folder."
    needed, there = needed_bytes(predict_size(facts, plan.recipe).num_bytes), free(target)
    if there < needed:
        return (
            f"Not enough disk space: {bytes_text(needed)} needed, {bytes_text(there)} free. "
            "Choose a folder on another disk, or free some space."
        )
    return ""
