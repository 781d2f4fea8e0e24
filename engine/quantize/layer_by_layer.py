"""Reads, rounds and writes a model layer by layer, then copies the remaining tensors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.formats import Writer, writer
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made
from engine.models.checkpoint import Checkpoint
from engine.models.weight_map import WeightMap
from engine.numerics.codes import Codes
from engine.numerics.rounding import round_fp8, round_int8, round_nf4
from engine.quantize.awq import awq_layer
from engine.quantize.decoder import Decoder
from engine.quantize.gptq import gptq_layer
from engine.quantize.grid import Grid
from engine.quantize.output_folder import OutputFolder
from engine.quantize.recipe import LayerResult, LinearResult, Recipe
from engine.quantize.targets import Bias, LayerTargets, Piece, Targets
from engine.quantize.work import STORED, LayerWork

_ROUND: dict[str, Callable[[Tensor], Codes]] = {
    "int8": round_int8, "fp8": round_fp8, "nf4": round_nf4
}  # fmt: skip
_CHECKED_SEQUENCES = 4  # of the text, for a layer's error


def outputs_of(work: LayerWork) -> list[Tensor]:
    """The layer's residual output, for a few sequences."""
    count = min(work.num_sequences, _CHECKED_SEQUENCES)
    return [run() for run in work.runs(range(count))]


def error_of(work: LayerWork, wanted: list[Tensor]) -> float:
    error = size = 0.0
    for sequence, output in enumerate(wanted):
        work.check()
        error += float((work.run(sequence) - output).square().sum())
        size += float((output - work.decoder.states[sequence]).square().sum())
    return float((error / size) ** 0.5) if size else 0.0


@contextmanager
def rounded_to_nearest(work: LayerWork) -> Iterator[None]:
    """Inside of it all matrices are rounded to nearest; afterwards they are read from disk again.
    """
    for piece in work.targets.pieces:
        work.check()
        weight = work.matrix(piece)
        weight.copy_(work.grid.rounded(weight.contiguous()))
    yield
    for name in {piece.parameter for piece in work.targets.pieces}:
        work.decoder.reload(name, work.layer.get_parameter(work.local(name)).data)


Progress = Callable[[str, int, int], None]
OnLayer = Callable[[LayerResult], None]


@dataclass
class LayerByLayer:
    """One quantization run. `check` raises if the user cancelled."""

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
        recipe = self.recipe
        layout = "float-quantized" if recipe.method == "fp8" else ""
        self.writer: Writer = writer(recipe.facts.format, layout)
        # readers of compressed-tensors keep scales in the model's number format
        is_bfloat16 = self.checkpoint.dtype == "bfloat16"
        own = recipe.facts.format == "compressed-tensors" and is_bfloat16
        scale_dtype = torch.bfloat16 if own else torch.float16
        self.grid = Grid(recipe.chosen_bits, recipe.group_size, recipe.is_symmetric, scale_dtype)
        self._written: set[str] = set()

    def rounded(self) -> list[LayerResult]:
        """Quantize without calibration: one matrix in memory at a time."""
        results = []
        for layer in self.targets.layers:
            began = time.perf_counter()
            linears = []
            for piece in layer.pieces:
                self.check()
                self.progress("Rounding", layer.index, len(self.targets.layers))
                weight = piece.of_disk(self.reader.read(piece.info))
                linears.append(self._round(piece, weight))
            results.append(
                LayerResult(layer.index, layer.path, time.perf_counter() - began, tuple(linears))
            )
            self.on_layer(results[-1])
        return results

    def calibrated(self, sequences: Sequence[Sequence[int]]) -> list[LayerResult]:
        self.progress("Embedding the calibration text", 0, len(self.targets.layers))
        decoder = Decoder(self.checkpoint, self.model, self.weights, self.reader)
        decoder.start(sequences, self.check)
        results = []
        for layer in self.targets.layers:
            results.append(self._calibrated_layer(decoder, layer))
            self.on_layer(results[-1])
        return results

    def copy_rest(self) -> None:
        """Copy every tensor that was not quantized and not changed."""
        for name, info in self.checkpoint.tensors.items():
            if name not in self._written:
                self.folder.tensors.copy(name, info)

    def config(self) -> dict[str, Any]:
        """config.json of the model, with what a reader needs to know of the quantization."""
        config = copy.deepcopy(dict(self.checkpoint.raw_config))
        facts = self.recipe.facts
        made = Made(
            bits=self.recipe.chosen_bits,
            group_size=self.recipe.group_size if facts.is_grouped else -1,
            symmetric=self.recipe.is_symmetric,
            left_out=_to_name(self.targets, facts.format),
            desc_act=self.recipe.uses_desc_act,
        )
        return {**config, "quantization_config": self.writer.quantization_config(made)}

    def store(self, piece: Piece, codes: Codes) -> None:
        for name, tensor in self.writer.tensors(piece.disk_name, codes).items():
            self.folder.tensors.add(name, tensor)
        self._written.add(piece.cut_from or piece.disk_name)
        if piece.bias is not None:
            self._store_bias(piece, piece.bias)

    def _store_bias(self, piece: Piece, bias: Bias) -> None:
        values = self.model.get_parameter(bias.parameter).data
        if values.is_meta:
            values = self.reader.read(bias.info)
        own = values[bias.part].to(STORED[bias.info.dtype]).contiguous()
        self.folder.tensors.add(f"{piece.module}.bias", own)
        self._written.add(bias.disk_name)

    def _calibrated_layer(self, decoder: Decoder, layer: LayerTargets) -> LayerResult:
        began = time.perf_counter()

        def stage(name: str) -> None:
            self.check()
            self.progress(name, layer.index, len(self.targets.layers))

        stage("Loading the layer")
        decoder.load_layer(layer.index)
        work = LayerWork(decoder, layer, self.recipe, self.grid, self.check, stage)
        stage("Computing the round-to-nearest baseline")
        wanted = outputs_of(work)
        with rounded_to_nearest(work):
            rounding_error = error_of(work, wanted)
        method = awq_layer if self.recipe.method == "awq" else gptq_layer
        method(work, self.store)
        self._store_changed(work)
        stage("Computing inputs for the next layer")
        error = error_of(work, wanted)
        decoder.advance(layer.index, self.check)
        decoder.drop_layer(layer.index)
        return LayerResult(
            layer.index, layer.path, time.perf_counter() - began, tuple(work.results), error,
            rounding_error,
        )  # fmt: skip

    def _store_changed(self, work: LayerWork) -> None:
        """Write norms, routers and other parameters that scales were folded into."""
        names = {(i.file, i.offset): name for name, i in self.checkpoint.tensors.items()}
        for info, name, part in work.targets.placements:
            disk_name = names[info.file, info.offset]
            if work.local(name) in work.changed and disk_name not in self._written:
                tensor = self.model.get_parameter(name).data
                value = (tensor[part] if part else tensor).to(STORED[info.dtype])
                self.folder.tensors.add(disk_name, value)
                self._written.add(disk_name)

    def _round(self, piece: Piece, weight: Tensor) -> LinearResult:
        weight = weight.float()
        round_: Callable[[Tensor], Codes] = _ROUND.get(self.recipe.method, self.grid.round)
        codes = round_(weight)
        size = float(weight.norm())
        error = float((codes.dequantize() - weight).norm()) / size if size else 0.0
        self.store(piece, codes)
        return LinearResult(piece.module, piece.shape, error)


def _to_name(targets: Targets, format_name: str) -> list[str]:
    """Modules that readers must leave alone. Those of AWQ compare by part of a name: one that is
    part of a quantized module's ("mlp.gate" of "mlp.gate_proj") would keep that one out too."""
    if format_name != "awq":
        return targets.kept
    quantized = [piece.module for piece in targets.pieces]
    return [name for name in targets.kept if not any(name in other for other in quantized)]
