"""Describes a model folder without reading its weights: for the model page and memory planning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import InferdeckError
from engine.models.architecture import (
    LayerKV,
    build_on_meta,
    kv_layout,
    resolve_class,
    unique_parameters,
)
from engine.models.checkpoint import Checkpoint
from engine.models.layers.rotary import table_rows
from engine.models.weight_memory import predicted_bytes
from engine.numerics.kv_dtype import PLAIN, KVWidths
from engine.numerics.scheme import Scheme


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What is known of a model before its weights are loaded. Sizes are bytes.

    Of `weights_bytes`, `layer_bytes` are in each layer and `embedding_bytes` in the input
    embeddings, which are the output head too where it `is_tied`.
    `quantization` names the format of quantized weights ("" for plain ones). `reason` says why a
    model is not supported; where even the config could not be used, the
    numbers are 0.
    """

    name: str
    path: str
    architecture: str
    supported: bool
    reason: str = ""
    num_parameters: int = 0
    disk_bytes: int = 0
    stored_dtype: str = ""
    dtype: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    vocab_size: int = 0
    context_length: int | None = None
    weights_bytes: int = 0
    layer_bytes: tuple[int, ...] = ()
    embedding_bytes: int = 0
    is_tied: bool = False
    kv_bytes_per_token: int = 0
    kv_layout: tuple[LayerKV, ...] = ()
    table_rows: tuple[int, ...] = ()
    has_tokenizer: bool = False
    quantization: str = ""


def describe_model(
    path: str | Path,
    *,
    dummy: bool = False,
    dtype: torch.dtype | None = None,
    scheme: Scheme | None = None,
) -> ModelReport:
    """Describe a model folder without reading its weights; `weights_bytes` and
    `kv_bytes_per_token` are for `dtype` (None: the stored one), and weights held as `scheme` says
    (None: as they are stored).

    Never raises for a bad folder: the report then says why, and `supported` is False.
    """
    try:
        checkpoint = Checkpoint.open(path, dummy=dummy)
    except InferdeckError as error:
        return ModelReport(Path(path).name, str(path), "unknown", False, str(error))
    return describe_checkpoint(checkpoint, dtype=dtype, scheme=scheme)


def describe_checkpoint(
    checkpoint: Checkpoint, *, dtype: torch.dtype | None = None, scheme: Scheme | None = None
) -> ModelReport:
    """As `describe_model`, of a checkpoint that is open."""
    dtype = dtype or getattr(torch, checkpoint.dtype)
    basics: dict[str, Any] = {
        "name": checkpoint.name,
        "path": str(checkpoint.path),
        "architecture": checkpoint.architecture,
        "disk_bytes": checkpoint.disk_bytes,
        "stored_dtype": checkpoint.dtype,
        "has_tokenizer": checkpoint.has_tokenizer,
    }
    try:
        resolve_class(checkpoint)
        model = build_on_meta(checkpoint.config)
        stored = checkpoint.quantization
        weights = predicted_bytes(checkpoint, model, dtype, scheme or Scheme())
    except InferdeckError as error:
        return ModelReport(**basics, supported=False, reason=str(error))
    config, layout = checkpoint.config, kv_layout(model)
    parameters = unique_parameters(model)
    return ModelReport(
        **basics,
        supported=True,
        num_parameters=sum(p.numel() for p in parameters),
        dtype=str(dtype).removeprefix("torch."),
        num_layers=len(layout),
        hidden_size=int(config.hidden_size),
        intermediate_size=int(getattr(config, "intermediate_size", 0) or 4 * config.hidden_size),
        num_heads=int(config.num_attention_heads),
        num_kv_heads=layout[0].num_kv_heads,
        head_dim=layout[0].key_dim,
        vocab_size=int(config.vocab_size),
        context_length=checkpoint.max_position_embeddings,
        weights_bytes=weights.total,
        layer_bytes=weights.layers,
        embedding_bytes=weights.embeddings,
        is_tied=weights.is_tied,
        quantization="" if stored is None else stored.title,
        kv_bytes_per_token=KVWidths.sum(layer.widths for layer in layout).bytes_per_token(
            PLAIN, dtype.itemsize
        ),
        kv_layout=layout,
        table_rows=table_rows(model, dtype),
    )
