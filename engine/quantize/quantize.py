"""Quantizes a 16-bit model into a low-bit folder: read, quantized and written layer by layer.

    disk -> [ layer i in float32 ] -> codes -> disk
              ^ inputs of the calibration text, as the quantized layers before make them

In memory at a time: one layer's weights in float32 (during AWQ's search also a copy of one group of
them, as stored), the text's hidden states, and the method's statistics of one layer's inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from engine.errors import ConfigError, LoadCancelled, UnsupportedModelError
from engine.formats.tensor_reader import TensorReader
from engine.models.architecture import build_on_meta, resolve_class
from engine.models.checkpoint import Checkpoint
from engine.models.weight_map import map_weights
from engine.quantize.calibration import Text, make_sequences
from engine.quantize.layer_by_layer import LayerByLayer, OnLayer, Progress
from engine.quantize.output_folder import output_folder
from engine.quantize.recipe import RESULT_FILE, QuantizeResult, Recipe
from engine.quantize.targets import Targets, find_targets
from engine.quantize.work import STORED
from engine.text.tokenizer import Tokenizer

_READ_TURNED = ("gptq", "bitsandbytes")


def quantize(
    checkpoint_path: str | Path,
    recipe: Recipe,
    output: str | Path,
    texts: Sequence[Text] = (),
    progress: Progress = lambda stage, layer, layers: None,
    cancelled: Callable[[], bool] = lambda: False,
    on_layer: OnLayer = lambda layer: None,
) -> QuantizeResult:
    """Quantize the model in a folder, and write a Hugging Face folder to `output`.

    texts: what methods with calibration read. progress(stage, layer, layers): `layer` of `layers`
    is being worked on; on_layer(result) when it is done. Safe in a thread of its own.
    Raises ConfigError (a recipe that does not fit the model, a text that is too short, an output
    that is taken), CheckpointError, UnsupportedModelError (also for a model that is quantized
    already), DiskFullError, or LoadCancelled: nothing is left of the output then.
    """
    began = time.perf_counter()

    def check() -> None:
        if cancelled():
            raise LoadCancelled("Quantization was cancelled. Nothing was written.")

    def never_true() -> bool:
        check()
        return False

    with torch.inference_mode():
        progress("Reading the model config", 0, 0)
        checkpoint = _open(checkpoint_path)
        model = build_on_meta(checkpoint.config)
        weights = map_weights(checkpoint, model)
        targets = find_targets(checkpoint, model, weights, recipe)
        check()
        sequences = _sequences(checkpoint, recipe, texts)
        expected = _expected_bytes(checkpoint, targets, recipe)
        with (
            output_folder(output, checkpoint, expected, check) as folder,
            TensorReader(1, lambda *_: None, never_true) as reader,
        ):
            run = LayerByLayer(
                checkpoint, model, weights, targets, recipe, folder, reader, progress, check,
                on_layer,
            )  # fmt: skip
            layers = run.calibrated(sequences) if recipe.facts.is_calibrated else run.rounded()
            progress("Writing", len(targets.layers), len(targets.layers))
            run.copy_rest()
            result = QuantizeResult(
                output=folder.output,
                source=checkpoint.name,
                recipe=recipe,
                bytes_before=checkpoint.disk_bytes,
                bytes_after=folder.tensors.total_bytes,
                seconds=time.perf_counter() - began,
                num_sequences=len(sequences),
                num_tokens=sum(len(s) for s in sequences),
                layers=tuple(layers),
                kept=dict(sorted(targets.reasons.items())),
                notes=(*weights.notices, *_notes(recipe, sequences, targets)),
            )
            folder.write_json("config.json", run.config())
            folder.copy_companions(checkpoint.path)
            folder.write_json(RESULT_FILE, result.as_json())
            check()
    return result


def _open(path: str | Path) -> Checkpoint:
    checkpoint = Checkpoint.open(path)
    quantized = checkpoint.quantization
    if quantized is not None:
        raise UnsupportedModelError(
            f"{checkpoint.name} is already quantized ({quantized.title}).",
            "Choose the original 16-bit model.",
        )
    resolve_class(checkpoint)
    return checkpoint


def _sequences(checkpoint: Checkpoint, recipe: Recipe, texts: Sequence[Text]) -> list[list[int]]:
    if not recipe.facts.is_calibrated:
        return []
    if not texts:
        raise ConfigError(
            f"{recipe.method} requires calibration text.",
            "Provide calibration text, or choose rtn, int8, fp8 or nf4.",
        )
    tokenizer = Tokenizer.from_folder(checkpoint.path, allow_missing=False)
    longest = checkpoint.max_position_embeddings or recipe.sequence_length
    return make_sequences(
        texts,
        tokenizer,
        length=min(recipe.sequence_length, longest),
        count=recipe.num_sequences,
        seed=recipe.seed,
    )


def _notes(recipe: Recipe, sequences: list[list[int]], targets: Targets) -> Iterator[str]:
    is_turned = any(piece.is_transposed and not piece.cut_from for piece in targets.pieces)
    if is_turned and recipe.facts.format not in _READ_TURNED:
        yield (
            f"Only Inferdeck can load this {recipe.method} output: the weights are transposed "
            "(Conv1D). For other programs, choose gptq or nf4."
        )
    if recipe.method == "rtn" and not recipe.is_symmetric:
        yield (
            "transformers loads zero points of compressed-tensors only with "
            "CompressedTensorsConfig(dequantize=True). vLLM needs no option."
        )
    if recipe.facts.is_calibrated and len(sequences) < recipe.num_sequences:
        tokens = sum(len(s) for s in sequences)
        wanted = recipe.num_sequences * recipe.sequence_length
        yield f"The calibration text has only {tokens:,} of the {wanted:,} requested tokens."


def _expected_bytes(checkpoint: Checkpoint, targets: Targets, recipe: Recipe) -> int:
    total = checkpoint.disk_bytes
    for piece in targets.pieces:
        rows, columns = piece.shape
        group = recipe.group_size if recipe.facts.is_grouped else 64
        total += rows * columns * recipe.chosen_bits // 8 + rows * -(-columns // group) * 4
        total -= rows * columns * STORED[piece.info.dtype].itemsize
    return total
