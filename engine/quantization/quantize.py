"""A model of 16 bits in, a folder of few bits out: read, quantized and written layer by layer.

    disk -> [ layer i in float32 ] -> codes -> disk
              ^ inputs of the calibration text, as the quantized layers before make them

In memory at a time: one layer's weights in float32 (while AWQ searches also a copy of one group of
them, as stored), the text's hidden states, and what a method keeps of the inputs of one layer.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import ConfigError, LoadCancelled, UnsupportedModelError
from engine.loading.architecture import build_on_meta, resolve_class
from engine.loading.checkpoint import Checkpoint
from engine.loading.streaming import left_out_notices
from engine.loading.tensor_reader import TensorReader
from engine.loading.weight_map import WeightMap, few, map_weights
from engine.quantization.awq import awq_layer
from engine.quantization.calibration import Text, make_sequences
from engine.quantization.codes import Codes
from engine.quantization.decoder import Decoder
from engine.quantization.formats import Writer, writer
from engine.quantization.gptq_layer import gptq_layer
from engine.quantization.grid import Grid
from engine.quantization.output_folder import OutputFolder, output_folder
from engine.quantization.recipe import Recipe
from engine.quantization.results import RESULT_FILE, LayerResult, LinearResult, QuantizeResult
from engine.quantization.rounding import round_fp8, round_int8, round_nf4
from engine.quantization.targets import LayerTargets, Piece, Targets, find_targets
from engine.quantization.work import STORED, LayerWork
from engine.tokenization import Tokenizer

Progress = Callable[[str, int, int], None]
OnLayer = Callable[[LayerResult], None]

_CHECKED_SEQUENCES = 4  # of the text, from which a layer's error is told


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
            raise LoadCancelled("Quantizing was cancelled.")

    try:
        with torch.inference_mode():
            return _quantize(
                checkpoint_path, recipe, output, texts, progress, check, on_layer, began
            )
    except LoadCancelled:
        raise LoadCancelled("Quantizing was cancelled. Nothing was written.") from None


def _quantize(
    checkpoint_path: str | Path,
    recipe: Recipe,
    output: str | Path,
    texts: Sequence[Text],
    progress: Progress,
    check: Callable[[], None],
    on_layer: OnLayer,
    began: float,
) -> QuantizeResult:
    progress("Reading the model", 0, 0)
    checkpoint = _open(checkpoint_path)
    model = build_on_meta(checkpoint.config)
    weights = map_weights(checkpoint, model)
    targets = find_targets(checkpoint, model, weights, recipe)
    _check_readable(checkpoint, targets)
    check()
    sequences = _sequences(checkpoint, recipe, texts)
    expected = _expected_bytes(checkpoint, targets, recipe)
    with (
        output_folder(output, checkpoint, expected, check) as folder,
        TensorReader(1, lambda *_: None, lambda: _is_cancelled(check)) as reader,
    ):
        run = _Run(
            checkpoint, model, weights, targets, recipe, folder, reader, progress, check, on_layer
        )
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
            notes=(*left_out_notices(weights), *_notes(recipe, sequences)),
        )
        folder.write_json("config.json", run.config())
        folder.copy_companions(checkpoint.path)
        folder.write_json(RESULT_FILE, result.as_json())
        check()
    return result


@dataclass
class _Run:
    checkpoint: Checkpoint
    model: nn.Module
    weights: WeightMap
    targets: Targets
    recipe: Recipe
    folder: OutputFolder
    reader: TensorReader
    progress: Progress
    check: Callable[[], None]
    on_layer: OnLayer

    def __post_init__(self) -> None:
        self.writer: Writer = writer(self.recipe.facts.format)
        self.grid = Grid(
            self.recipe.chosen_bits, self.recipe.group_size, self.recipe.is_symmetric,
            _scale_dtype(self.recipe, self.checkpoint),
        )  # fmt: skip
        self._written: set[str] = set()

    def rounded(self) -> list[LayerResult]:
        """Without a text: one matrix in memory at a time."""
        results = []
        for layer in self.targets.layers:
            began = time.perf_counter()
            linears = []
            for piece in layer.pieces:
                self.check()
                self.progress("Rounding", layer.index, len(self.targets.layers))
                weight = self.reader.read(piece.info)
                linears.append(self._round(piece, weight.t() if piece.is_transposed else weight))
            results.append(
                LayerResult(layer.index, layer.path, time.perf_counter() - began, tuple(linears))
            )
            self.on_layer(results[-1])
        return results

    def calibrated(self, sequences: Sequence[Sequence[int]]) -> list[LayerResult]:
        self.progress("Embedding the text", 0, len(self.targets.layers))
        decoder = Decoder(self.checkpoint, self.model, self.weights, self.reader)
        decoder.start(sequences, lambda: _is_cancelled(self.check))
        results = []
        for layer in self.targets.layers:
            results.append(self._calibrated_layer(decoder, layer))
            self.on_layer(results[-1])
        return results

    def copy_rest(self) -> None:
        """Every tensor that was not quantized and not changed, as it is on disk."""
        for name, info in self.checkpoint.tensors.items():
            if name not in self._written:
                self.folder.tensors.copy(name, info)

    def config(self) -> dict[str, Any]:
        """config.json of the model, with what a reader needs to know of the quantization."""
        config = copy.deepcopy(dict(self.checkpoint.raw_config))
        facts = self.recipe.facts
        settings = self.writer.quantization_config(
            bits=self.recipe.chosen_bits,
            group_size=self.recipe.group_size if facts.is_grouped else -1,
            symmetric=self.recipe.is_symmetric,
            modules_to_not_convert=_to_name(self.targets, facts.format),
            desc_act=self.recipe.uses_desc_act,
        )
        return {**config, "quantization_config": settings}

    def store(self, piece: Piece, codes: Codes) -> None:
        for name, tensor in self.writer.tensors(piece.disk_name, codes).items():
            self.folder.tensors.add(name, tensor)
        self._written.add(piece.disk_name)

    def _calibrated_layer(self, decoder: Decoder, layer: LayerTargets) -> LayerResult:
        began = time.perf_counter()

        def stage(name: str) -> None:
            self.check()
            self.progress(name, layer.index, len(self.targets.layers))

        stage("Reading the layer")
        decoder.load_layer(layer.index)
        work = LayerWork(decoder, layer, self.recipe, self.grid, self.check, stage)
        stage("Rounding to compare with")
        wanted = _outputs(work)
        with _rounded_to_nearest(work):
            rounding_error = _error(work, wanted)
        method = awq_layer if self.recipe.method == "awq" else gptq_layer
        method(work, self.store)
        self._store_changed(work)
        stage("Carrying the text on")
        error = _error(work, wanted)
        decoder.advance(layer.index, self.check)
        decoder.drop_layer(layer.index)
        return LayerResult(
            layer.index, layer.path, time.perf_counter() - began, tuple(work.results), error,
            rounding_error,
        )  # fmt: skip

    def _store_changed(self, work: LayerWork) -> None:
        """Norms, routers and the like that took scales in."""
        quantized = {piece.info for piece in work.targets.pieces}
        names = {(i.file, i.offset): name for name, i in self.checkpoint.tensors.items()}
        for info, name, part in work.targets.placements:
            if work.local(name) in work.changed and info not in quantized:
                tensor = self.model.get_parameter(name).data
                value = (tensor[part] if part else tensor).to(STORED[info.dtype])
                disk_name = names[info.file, info.offset]
                self.folder.tensors.add(disk_name, value)
                self._written.add(disk_name)

    def _round(self, piece: Piece, weight: Tensor) -> LinearResult:
        weight = weight.float()
        method = self.recipe.method
        codes: Codes
        if method == "int8":
            codes = round_int8(weight)
        elif method == "fp8":
            codes = round_fp8(weight)
        elif method == "nf4":
            codes = round_nf4(weight)
        else:
            codes = self.grid.round(weight)
        size = float(weight.norm())
        error = float((codes.dequantize() - weight).norm()) / size if size else 0.0
        self.store(piece, codes)
        return LinearResult(piece.module, piece.shape, error)


def _outputs(work: LayerWork) -> list[Tensor]:
    """What the layer adds to its input, for a few sequences."""
    count = min(work.num_sequences, _CHECKED_SEQUENCES)
    found = []
    for sequence in range(count):
        work.check()
        found.append(work.run(sequence))
    return found


def _error(work: LayerWork, wanted: list[Tensor]) -> float:
    error = size = 0.0
    for sequence, output in enumerate(wanted):
        work.check()
        error += float((work.run(sequence) - output).square().sum())
        size += float((output - work.decoder.states[sequence]).square().sum())
    return float((error / size) ** 0.5) if size else 0.0


@contextmanager
def _rounded_to_nearest(work: LayerWork) -> Iterator[None]:
    """All matrices as plain rounding makes them, until the block ends: then from disk again."""
    for piece in work.targets.pieces:
        work.check()
        weight = work.matrix(piece)
        weight.copy_(work.grid.rounded(weight.contiguous()))
    yield
    for name in {piece.parameter for piece in work.targets.pieces}:
        work.decoder.reload(name, work.layer.get_parameter(work.local(name)).data)


def _open(path: str | Path) -> Checkpoint:
    checkpoint = Checkpoint.open(path)
    quantized = checkpoint.quantization
    if quantized is not None:
        raise UnsupportedModelError(
            f"{checkpoint.name} is quantized already ({quantized.title}).",
            "Choose the 16-bit model that it was made from.",
        )
    resolve_class(checkpoint)
    return checkpoint


def _check_readable(checkpoint: Checkpoint, targets: Targets) -> None:
    """Raise UnsupportedModelError for matrices that no reader would put in their place again."""
    transposed = [piece.module for piece in targets.pieces if piece.is_transposed]
    if transposed:
        raise UnsupportedModelError(
            f"{checkpoint.architecture} keeps {len(transposed)} matrices transposed "
            f"({few(transposed, 1)}), which quantized checkpoints have no sign for.",
            "Use it in 16 bits.",
        )


def _sequences(checkpoint: Checkpoint, recipe: Recipe, texts: Sequence[Text]) -> list[list[int]]:
    if not recipe.facts.is_calibrated:
        return []
    if not texts:
        raise ConfigError(
            f"{recipe.method} needs a text to read, and there is none.",
            "Give a calibration text, or choose rtn, int8, fp8 or nf4.",
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


def _notes(recipe: Recipe, sequences: list[list[int]]) -> Iterator[str]:
    if recipe.facts.is_calibrated and len(sequences) < recipe.num_sequences:
        tokens = sum(len(s) for s in sequences)
        wanted = recipe.num_sequences * recipe.sequence_length
        yield f"The text has {tokens:,} tokens; {wanted:,} would have been read."


def _scale_dtype(recipe: Recipe, checkpoint: Checkpoint) -> torch.dtype:
    """Readers of compressed-tensors keep scales in the model's number format."""
    is_bfloat16 = checkpoint.dtype == "bfloat16"
    own = recipe.facts.format == "compressed-tensors" and is_bfloat16
    return torch.bfloat16 if own else torch.float16


def _expected_bytes(checkpoint: Checkpoint, targets: Targets, recipe: Recipe) -> int:
    total = checkpoint.disk_bytes
    for piece in targets.pieces:
        rows, columns = piece.shape
        group = recipe.group_size if recipe.facts.is_grouped else 64
        total += rows * columns * recipe.chosen_bits // 8 + rows * -(-columns // group) * 4
        total -= piece.info.nbytes
    return total


def _to_name(targets: Targets, format_name: str) -> list[str]:
    """Modules that readers must leave alone. Those of AWQ compare by part of a name: one that is
    part of a quantized module's ("mlp.gate" of "mlp.gate_proj") would keep that one out too."""
    if format_name != "awq":
        return targets.kept
    quantized = [piece.module for piece in targets.pieces]
    return [name for name in targets.kept if not any(name in other for other in quantized)]


def _is_cancelled(check: Callable[[], None]) -> bool:
    try:
        check()
    except LoadCancelled:
        return True
    return False
