"""The sizes of a model that decide its memory, known before its weights are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import UnsupportedModelError
from engine.models.checkpoint import Checkpoint
from engine.models.description import describe_checkpoint
from engine.models.layers.rotary import bytes_of_tables
from engine.numerics.kv_dtype import KVDtype, KVWidths
from engine.numerics.scheme import PLAIN, Scheme, scheme_of
from engine.speculation.eagle3.shape import read_shape


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The numbers of a model that decide its memory. `kv`: what a token takes in all layers, which
    may differ in heads and head dimensions; `table_rows`: bytes per position of each rotary table,
    which has as many rows as the context that is served, at most `longest`. Of the weights,
    `layer_weights` are in each layer and `embeddings` in those of the input, which are the output
    head too where it `is_tied`; `layer_kv`: what each layer takes of `kv`."""

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
        """Weights with their rotary tables: what a loaded model takes."""
        length = min(max_model_len, self.longest or max_model_len)
        return self.weights + bytes_of_tables(self.table_rows, length)

    def kv_bytes_per_token(self, dtype: KVDtype) -> int:
        return self.kv.bytes_per_token(dtype, self.itemsize)

    def share(self, size: int) -> ModelSizes:
        """The part of one of `size` ranks (see `engine.parallel`). What each has whole, norms and
        routers, is too little to be counted; logits are all on the first one."""
        return replace(
            self,
            weights=-(-self.weights // size),
            kv=self.kv.share(size),
            intermediate_size=-(-self.intermediate_size // size),
            num_heads=-(-self.num_heads // size),
            layer_weights=tuple(-(-weights // size) for weights in self.layer_weights),
            layer_kv=tuple(kv.share(size) for kv in self.layer_kv),
            embeddings=-(-self.embeddings // size),
        )

    def stage(self, first: int, last: int) -> ModelSizes:
        """The part of one of several GPUs that has the layers from `first` to before `last`:
        embeddings are on that of the first layer, and all else on that of the last."""
        count = len(self.layer_weights)
        others = self.weights - sum(self.layer_weights) - (0 if self.is_tied else self.embeddings)
        if not self.is_tied:
            weights = self.embeddings if first == 0 else 0
        else:  # the head has weights of its own where it is on another GPU
            weights = self.embeddings if first == 0 or last == count else 0
            others -= self.embeddings
        weights += sum(self.layer_weights[first:last]) + (others if last == count else 0)
        return replace(
            self,
            weights=weights,
            kv=KVWidths.sum(self.layer_kv[first:last]),
            layer_weights=self.layer_weights[first:last],
            layer_kv=self.layer_kv[first:last],
            table_rows=self.table_rows if first == 0 else (),
        )

    def on_host(self, host_layers: int) -> ModelSizes:
        """The part of so many layers and what comes before them (see `DeviceMap`)."""
        weights = self.embeddings + sum(self.layer_weights[:host_layers])
        kv = KVWidths.sum(self.layer_kv[:host_layers])
        return replace(self, weights=weights, kv=kv, vocab_size=0)

    def on_gpu(self, host_layers: int) -> ModelSizes:
        """The part that is left. A tied head has weights of its own there."""
        elsewhere = sum(self.layer_weights[:host_layers])
        elsewhere += 0 if self.is_tied else self.embeddings
        kv = KVWidths.sum(self.layer_kv[host_layers:])
        return replace(self, weights=self.weights - elsewhere, kv=kv, table_rows=())


def sizes_of(checkpoint: Checkpoint, config: EngineConfig) -> ModelSizes:
    """Of a model as `config` holds its weights."""
    scheme = scheme_of(config, checkpoint.quantization, checkpoint.name)
    return model_sizes(checkpoint, getattr(torch, config.dtype), scheme)


def model_sizes(checkpoint: Checkpoint, dtype: torch.dtype, scheme: Scheme = PLAIN) -> ModelSizes:
    """Count a checkpoint's sizes in `dtype` on its class, without reading weights; they are held as
    `scheme` says, or as they are stored."""
    settings = json.dumps(checkpoint.raw_config.get("quantization_config"), default=str)
    key = (checkpoint.path, checkpoint.config.to_json_string(use_diff=False), settings)
    return _sizes(_Held(checkpoint, key), dtype, scheme)


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


class _Held:
    """A checkpoint as a cache key, equal where folder and config are."""

    def __init__(self, checkpoint: Checkpoint, key: tuple[Path, str, str]) -> None:
        self.checkpoint = checkpoint
        self._key = key

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._key == other._key


@lru_cache(maxsize=8)
def _sizes(held: _Held, dtype: torch.dtype, scheme: Scheme) -> ModelSizes:
    report = describe_checkpoint(held.checkpoint, dtype=dtype, scheme=scheme)
    if not report.supported:
        raise UnsupportedModelError(report.reason)
    return ModelSizes(
        weights=report.weights_bytes,
        kv=KVWidths.sum(layer.widths for layer in report.kv_layout),
        itemsize=dtype.itemsize,
        hidden_size=report.hidden_size,
        intermediate_size=report.intermediate_size,
        num_heads=report.num_heads,
        head_dim=report.head_dim,
        vocab_size=report.vocab_size,
        table_rows=report.table_rows,
        longest=report.context_length,
        layer_weights=report.layer_bytes,
        layer_kv=tuple(layer.widths for layer in report.kv_layout),
        embeddings=report.embedding_bytes,
        is_tied=report.is_tied,
    )
