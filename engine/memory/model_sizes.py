"""The sizes of a model, known before its weights are read: for the model page and memory planning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from engine.config import EngineConfig
from engine.errors import InferdeckError
from engine.models.architecture import (
    Keyed,
    build_on_meta,
    count_parameters,
    embedding_names,
    kv_layout,
    resolve_class,
    ties_head,
)
from engine.models.checkpoint import Checkpoint
from engine.models.layers.rotary import bytes_of_tables, table_rows
from engine.models.materialise import DtypePlan
from engine.numerics.kv_dtype import PLAIN as PLAIN_KV
from engine.numerics.kv_dtype import KVDtype, KVWidths
from engine.numerics.scheme import PLAIN, Scheme, scheme_like, scheme_of, weights_to_hold
from engine.speculation.eagle3.shape import read_shape


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model that decide its memory. `kv`: KV of a token in all layers, which may
    differ in heads and head size. `table_rows`: bytes per position of each rotary table, which has
    one row per position of the context, at most `longest`. Of `weights`, `layer_weights` are each
    layer's and `embeddings` the input embeddings', which are the output head too where it
    `is_tied`. `layer_kv`: each layer's part of `kv`."""

    weights: int
    kv: KVWidths
    itemsize: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    table_rows: tuple[int, ...] = ()
    longest: int | None = None
    layer_weights: tuple[int, ...] = ()
    layer_kv: tuple[KVWidths, ...] = ()
    embeddings: int = 0
    is_tied: bool = False

    def loaded_bytes(self, max_model_len: int) -> int:
        """Bytes of the loaded model: weights and rotary tables."""
        length = min(max_model_len, self.longest or max_model_len)
        return self.weights + bytes_of_tables(self.table_rows, length)

    def kv_bytes_per_token(self, dtype: KVDtype) -> int:
        return self.kv.bytes_per_token(dtype, self.itemsize)

    def part(self, first: int, last: int) -> ModelSizes:
        """The part of a device that has the layers from `first` to before `last`: embeddings are
        beside the first layer, and all else beside the last. (A tied head has weights of its own
        where it is on another device.)"""
        weights = sum(self.layer_weights[first:last])
        is_last = last == len(self.layer_weights)
        if first == 0 or (self.is_tied and is_last):
            weights += self.embeddings
        if is_last:
            weights += self.weights - sum(self.layer_weights) - self.embeddings
        return replace(
            self,
            weights=weights,
            kv=KVWidths.sum(self.layer_kv[first:last]),
            layer_weights=self.layer_weights[first:last],
            layer_kv=self.layer_kv[first:last],
            table_rows=self.table_rows if first == 0 else (),
        )


def sizes_of(checkpoint: Checkpoint, config: EngineConfig) -> ModelSizes:
    """Sizes of a model with its weights quantized as in `config`."""
    scheme = scheme_of(config, checkpoint.quantization, checkpoint.name)
    return model_sizes(checkpoint, getattr(torch, config.dtype), scheme)


def model_sizes(checkpoint: Checkpoint, dtype: torch.dtype, scheme: Scheme = PLAIN) -> ModelSizes:
    """Count a checkpoint's sizes in `dtype` on its class, without reading weights; they are held as
    `scheme` says, or as they are stored. Raises UnsupportedModelError or CheckpointError."""
    settings = json.dumps(checkpoint.raw_config.get("quantization_config"), default=str)
    config = checkpoint.config.to_json_string(use_diff=False)
    # disk_bytes: files that have changed, or were not read (dummy), must not hit the cache
    key = (checkpoint.path, config, settings, checkpoint.disk_bytes)
    return _sizes(Keyed(key, checkpoint), dtype, scheme)


@lru_cache(maxsize=8)
def _sizes(keyed: Keyed, dtype: torch.dtype, scheme: Scheme) -> ModelSizes:
    checkpoint: Checkpoint = keyed.value
    resolve_class(checkpoint)
    config, model = checkpoint.config, build_on_meta(checkpoint.config)
    layout = kv_layout(model)
    weights = predicted_bytes(checkpoint, model, dtype, scheme)
    inputs = embedding_names(model, with_head=False)
    layers = [0] * config.num_hidden_layers
    for name, size in weights.items():
        # the layer is the first number in a name: "model.layers.3.self_attn.q_proj.weight"
        index = next((int(part) for part in name.split(".") if part.isdigit()), len(layers))
        if index < len(layers) and name not in inputs:
            layers[index] += size
    return ModelSizes(
        weights=sum(weights.values()),
        kv=KVWidths.sum(layer.widths for layer in layout),
        itemsize=dtype.itemsize,
        hidden_size=int(config.hidden_size),
        intermediate_size=_widest(getattr(config, "intermediate_size", 0))
        or 4 * int(config.hidden_size),
        num_heads=int(config.num_attention_heads),
        head_dim=layout[0].key_dim,
        vocab_size=int(config.vocab_size),
        table_rows=table_rows(model, dtype),
        longest=checkpoint.max_position_embeddings,
        layer_weights=tuple(layers),
        layer_kv=tuple(layer.widths for layer in layout),
        embeddings=sum(size for name, size in weights.items() if name in inputs),
        is_tied=ties_head(model),
    )


def _widest(size: int | list[int] | None) -> int:
    """Of a setting that may have a number for each layer."""
    return max(size) if isinstance(size, list) else int(size or 0)


def predicted_bytes(
    checkpoint: Checkpoint, reference: nn.Module, dtype: torch.dtype, scheme: Scheme
) -> dict[str, int]:
    """Weights of `reference`, the unmodified class on the meta device, by name, held as `scheme`
    says (or as the checkpoint stores them)."""
    plan = DtypePlan.of(reference)
    tied = getattr(reference, "all_tied_weights_keys", {})
    named = {n: p for n, p in reference.named_parameters() if n not in tied}
    found = {n: p.numel() * plan.dtype_of(n, dtype).itemsize for n, p in named.items()}
    shapes, like = _quantized(checkpoint, reference, scheme)
    for name, shape in shapes.items():
        outputs, inputs = shape[-2:]
        each = like.bytes_of(outputs, inputs, dtype) - outputs * inputs * dtype.itemsize
        found[name] = found.get(name, 0) + math.prod(shape[:-2]) * each
    if scheme.head == "int8":
        for name in embedding_names(reference) & set(named):
            rows, width = named[name].shape
            found[name] += rows * (width + 4) - rows * width * dtype.itemsize
    return found


def _quantized(
    checkpoint: Checkpoint, reference: nn.Module, scheme: Scheme
) -> tuple[Mapping[str, tuple[int, ...]], Scheme]:
    """Shapes of the quantized weights by name (as on disk, for a quantized checkpoint), and the
    scheme whose bytes they take."""
    stored = checkpoint.quantization
    if stored is None:
        return weights_to_hold(reference) if scheme.method != "none" else {}, scheme
    if not checkpoint.tensors:  # random weights of a quantized model's shape
        return weights_to_hold(reference), scheme_like(stored)
    _, matrices = stored.split(checkpoint.tensors)
    return {name: matrix.shape for name, matrix in matrices.items()}, scheme_like(stored)


def head_sizes(head: Checkpoint, target: Checkpoint, dtype: torch.dtype) -> ModelSizes:
    """The sizes of an EAGLE-3 head, which computes in the dtype of its model."""
    shape = read_shape(head, target)
    return ModelSizes(
        weights=shape.num_parameters * dtype.itemsize,
        kv=KVWidths(shape.kv_width, shape.kv_width, shape.num_kv_heads),
        itemsize=dtype.itemsize,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.draft_vocab_size,
    )


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The description of a model folder for the model page. `reason`: why a model is not supported;
    the numbers are 0 then."""

    name: str
    architecture: str
    supported: bool
    reason: str = ""
    num_parameters: int = 0
    disk_bytes: int = 0
    num_layers: int = 0
    hidden_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    context_length: int | None = None
    kv_bytes_per_token: int = 0


def describe_model(path: str | Path, *, dummy: bool = False) -> ModelReport:
    """Describe a model folder without reading its weights. Never raises for a bad folder: the
    report then says why, and `supported` is False."""
    name, architecture, disk_bytes = Path(path).name, "unknown", 0
    try:
        checkpoint = Checkpoint.open(path, dummy=dummy)
        name, architecture = checkpoint.name, checkpoint.architecture
        disk_bytes = checkpoint.disk_bytes
        sizes = model_sizes(checkpoint, getattr(torch, checkpoint.dtype))
        num_parameters = count_parameters(checkpoint.config)
    except InferdeckError as error:
        return ModelReport(name, architecture, False, str(error), disk_bytes=disk_bytes)
    return ModelReport(
        name=name,
        architecture=architecture,
        supported=True,
        num_parameters=num_parameters,
        disk_bytes=disk_bytes,
        num_layers=len(sizes.layer_kv),
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.layer_kv[0].heads,
        context_length=sizes.longest,
        kv_bytes_per_token=sizes.kv_bytes_per_token(PLAIN_KV),
    )
