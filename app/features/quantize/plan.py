"""What a recipe makes of a model, in bytes and in seconds, before it is made. Imports no Qt."""

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
from app.units import format_bytes
from engine.quantize.recipe import Recipe

NF4_BLOCK = 64
_SEARCH_PASSES = 20  # ratios that AWQ tries
_PASSES = 4  # of the whole text through a layer: before, rounded, after, and on

_LAYER_S = 0.5  # what a layer takes however small it is

DEFAULT_RATES: Mapping[str, float] = {
    "awq": 1.2e10, "gptq": 1.0e10, "rtn": 4.0e7, "int8": 6.0e7, "fp8": 5.0e7, "nf4": 2.0e7,
}  # fmt: skip
"""Units of `work_of` per second of a machine with few cores, used until this one was measured."""


class Prediction(NamedTuple):
    """`num_bytes` of all tensors that are written. `quantized_share`: of the parameters of the
    decoder layers' matrices."""

    num_bytes: int
    quantized_share: float


def predict_size(facts: SourceFacts, recipe: Recipe) -> Prediction:
    """To the byte for all that a format stores but the padding of a file."""
    quantized = recipe_matrices(facts, recipe)
    before = sum(matrix.num_bytes for matrix in quantized)
    after = sum(_stored_bytes(matrix, recipe, facts.dtype) for matrix in quantized)
    total = sum(matrix.count for matrix in facts.matrices)
    share = sum(matrix.count for matrix in quantized) / total if total else 0.0
    return Prediction(round(facts.num_bytes - before + after), share)


def recipe_matrices(facts: SourceFacts, recipe: Recipe) -> list[Matrix]:
    return facts.quantized(recipe.exclude)


def _stored_bytes(matrix: Matrix, recipe: Recipe, dtype: str) -> float:
    """Codes and what belongs to them, as the format of the method has them."""
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
    """How much there is to do, in units that take the same time on one machine for one method:
    parameters to be rounded, or multiplications of the calibration text."""
    count = sum(matrix.count for matrix in recipe_matrices(facts, recipe))
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
    """`rates`: units of `work_of` per second, measured on this machine; where a method has none
    yet a guess stands in."""
    if recipe.method in rates:
        return work_of(facts, recipe, num_tokens) / rates[recipe.method]
    seconds = work_of(facts, recipe, num_tokens) / DEFAULT_RATES[recipe.method]
    return seconds + (_LAYER_S * len(facts.layers) if recipe.facts.is_calibrated else 0.0)


SOURCE, METHOD, GROUP_SIZE = "source", "method", "group_size"
MODULES, TEXT, OUTPUT = "modules", "text", "output"


class Problem(NamedTuple):
    """Why it cannot be started; `field` is where that is said."""

    field: str
    cause: str
    remedy: str = ""

    @property
    def text(self) -> str:
        return f"{self.cause} {self.remedy}".strip()


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """`source` is the folder of a model, `text` what methods with calibration read."""

    source: str
    recipe: Recipe
    output: str
    text: TextChoice = field(default_factory=lambda: TextChoice(PROGRAM))

    @property
    def title(self) -> str:
        return f"{model_name(self.source)}, {recipe_words(self.recipe)}"


def model_name(path: str) -> str:
    """How people call the model in a folder: without the hash of the Hugging Face cache."""
    cached = cache_folder(path)
    return cached.name.split("--")[-1] if cached is not None else model_title(path)


def recipe_words(recipe: Recipe) -> str:
    """ "AWQ, 4 bits, groups of 128"."""
    name = recipe.method if recipe.method in ("int8", "fp8") else recipe.method.upper()
    parts = [name]
    if len(recipe.facts.bits) > 1 or recipe.facts.is_grouped:
        parts.append(f"{recipe.chosen_bits} bits")
    if recipe.facts.is_grouped:
        parts.append(f"groups of {recipe.group_size}")
    if recipe.uses_desc_act:
        parts.append("columns by importance")
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
    """A folder in `folder` that is not there yet."""
    first = folder / suggested_name(source, recipe)
    found, number = first, 2
    while found.exists():
        found, number = first.with_name(f"{first.name}-{number}"), number + 1
    return found


def free_bytes(folder: Path) -> int:
    """Free space of the disk that `folder` is, or would be, on. 0 where that cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def needed_bytes(size: int) -> int:
    """Of the disk while it is written: a shard lies there twice as it is put together."""
    # imported here: torch comes with it, which whoever knows a model's size has already
    from engine.quantize.output_folder import SHARD_BYTES

    return size + min(size, SHARD_BYTES)


def check_plan(
    plan: QuantizePlan, facts: SourceFacts, free: Callable[[Path], int] = free_bytes
) -> list[Problem]:
    """What stands in the way, of all but the text, which takes longer to look at."""
    if facts.refusal is not None:
        return [Problem(SOURCE, facts.refusal.cause, facts.refusal.remedy)]
    problems = _check_modules(plan, facts)
    if not problems:
        problems = _check_groups(plan, facts)
    return [*problems, *_check_output(plan, facts, free)]


def _check_modules(plan: QuantizePlan, facts: SourceFacts) -> list[Problem]:
    unknown = facts.unknown(plan.recipe.exclude)
    if unknown:
        known = ", ".join(dict.fromkeys(m.kind for m in facts.matrices[:3]))
        return [Problem(MODULES, f"No module is named {unknown[0]!r}.", f"Names are: {known}.")]
    if not facts.quantized(plan.recipe.exclude):
        return [Problem(MODULES, "Nothing is left to quantize.", "Leave fewer modules out.")]
    return []


def _check_groups(plan: QuantizePlan, facts: SourceFacts) -> list[Problem]:
    size = plan.recipe.group_size
    if not plan.recipe.facts.is_grouped:
        return []
    wrong = [m for m in facts.quantized(plan.recipe.exclude) if m.columns % size]
    if not wrong:
        return []
    widths = sorted({matrix.columns for matrix in wrong})
    fitting = [g for g in (256, 128, 64, 32) if not any(width % g for width in widths)]
    remedy = (
        f"Choose {fitting[0]}." if fitting
        else "Leave these modules out, or choose int8, fp8 or NF4."
    )  # fmt: skip
    return [
        Problem(
            GROUP_SIZE,
            f"Groups of {size} do not divide the {', '.join(map(str, widths))} inputs of "
            f"{len(wrong)} matrices ({wrong[0].kind}).",
            remedy,
        )
    ]


def _check_output(
    plan: QuantizePlan, facts: SourceFacts, free: Callable[[Path], int]
) -> list[Problem]:
    if not plan.output.strip():
        return [Problem(OUTPUT, "No folder is named.", "Choose where the model is written.")]
    target = Path(plan.output).expanduser().absolute()
    if target == Path(plan.source).absolute():
        return [Problem(OUTPUT, "That is the model itself.", "Choose another folder.")]
    if target.is_file():
        return [Problem(OUTPUT, "That is a file.", "Choose a folder.")]
    try:
        if target.is_dir() and any(target.iterdir()):
            return [Problem(OUTPUT, "It exists and is not empty.", "Nothing is overwritten.")]
    except OSError as error:
        return [Problem(OUTPUT, f"It cannot be read: {error.strerror or error}.")]
    parent = target.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        return [Problem(OUTPUT, f"{parent} cannot be written to.", "Choose another folder.")]
    needed, there = needed_bytes(predict_size(facts, plan.recipe).num_bytes), free(target)
    if there < needed:
        return [
            Problem(
                OUTPUT,
                f"{format_bytes(needed)} are needed while it is written, "
                f"{format_bytes(there)} are free.",
                "Choose a folder on another disk.",
            )
        ]
    return []
