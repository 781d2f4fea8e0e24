"""What a recipe makes of a model, in bytes and in seconds, before it is made. Imports no Qt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from app.quantize.source import Matrix, SourceFacts
from engine.quantization.recipe import Recipe

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
