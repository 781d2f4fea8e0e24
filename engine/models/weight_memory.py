"""Weight memory: predicted from shapes before loading, measured afterwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.kernels.embedding import QuantizedEmbedding
from engine.models.checkpoint import Checkpoint
from engine.models.layers.experts import HeldExperts
from engine.models.materialise import DtypePlan
from engine.numerics.scheme import Scheme, scheme_like, weights_to_hold


class Parts(NamedTuple):
    """Bytes of the output head; of an input embedding that is not the head too; of experts; and
    how many parameters experts have."""

    output: int
    lookup: int
    experts: int
    expert_parameters: int


class Predicted(NamedTuple):
    """Bytes of weights before they are loaded: of each layer, of the input embeddings, and of all
    else. is_tied: whether the output head is those embeddings."""

    layers: tuple[int, ...]
    embeddings: int
    others: int
    is_tied: bool

    @property
    def total(self) -> int:
        return sum(self.layers) + self.embeddings + self.others


def predicted_bytes(
    checkpoint: Checkpoint, reference: nn.Module, dtype: torch.dtype, scheme: Scheme
) -> Predicted:
    """Weights of `reference`, the unmodified class on the meta device, held as `scheme` says (or as
    the checkpoint stores them)."""
    plan = DtypePlan.of(reference)
    tied = getattr(reference, "all_tied_weights_keys", {})
    named = {n: p for n, p in reference.named_parameters() if n not in tied}
    found = {n: p.numel() * plan.dtype_of(n, dtype).itemsize for n, p in named.items()}
    shapes, like = _held(checkpoint, reference, scheme)
    for name, shape in shapes.items():
        outputs, inputs = shape[-2:]
        each = like.bytes_of(outputs, inputs, dtype) - outputs * inputs * dtype.itemsize
        found[name] = found.get(name, 0) + math.prod(shape[:-2]) * each
    if scheme.head == "int8":
        for name in _head_names(reference) & set(named):
            rows, width = named[name].shape
            found[name] += rows * (width + 4) - rows * width * dtype.itemsize
    return _by_place(found, reference)


def _by_place(found: Mapping[str, int], reference: nn.Module) -> Predicted:
    config: Any = reference.config
    layers = [0] * config.num_hidden_layers
    ends = _head_names(reference, outputs=False)
    embeddings = others = 0
    for name, size in found.items():
        index = layer_of(name)
        if name in ends:
            embeddings += size
        elif index is not None and index < len(layers):
            layers[index] += size
        else:
            others += size
    return Predicted(tuple(layers), embeddings, others, ties_head(reference))


def ties_head(model: nn.Module) -> bool:
    """Whether the output head has the parameters of the input embeddings."""
    return bool(_head_names(model) & set(getattr(model, "all_tied_weights_keys", {})))


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to, by its name: the first number in it, as in
    "model.layers.3.self_attn.q_proj.weight"."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def measured_parts(model: nn.Module) -> Parts:
    """Of a loaded model."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    output = head.packed_bytes or head.weight.nbytes
    if isinstance(embedding, QuantizedEmbedding):
        lookup = embedding.packed_bytes
    else:
        is_tied = not head.packed_bytes and head.weight.data_ptr() == embedding.weight.data_ptr()
        lookup = 0 if is_tied else embedding.weight.nbytes
    experts, parameters = _experts(model)
    return Parts(output, lookup, experts, parameters)


def _held(
    checkpoint: Checkpoint, reference: nn.Module, scheme: Scheme
) -> tuple[Mapping[str, tuple[int, ...]], Scheme]:
    """Shapes of the quantized weights by name (as on disk, for a quantized checkpoint), and the
    scheme whose bytes they take."""
    stored = checkpoint.quantization
    if stored is None:
        shapes = weights_to_hold(reference) if scheme.method != "none" else {}
        return shapes, scheme
    if not checkpoint.tensors:  # random weights of a quantized model's shape
        return weights_to_hold(reference), scheme_like(stored)
    _, matrices = stored.split(checkpoint.tensors)
    return {name: matrix.shape for name, matrix in matrices.items()}, scheme_like(stored)


def _head_names(reference: nn.Module, outputs: bool = True) -> set[str]:
    """Of the weights of input embeddings, and of the output head."""
    modules = {id(reference.get_input_embeddings())}  # type: ignore[operator]
    if outputs:
        modules.add(id(reference.get_output_embeddings()))  # type: ignore[operator]
    return {f"{path}.weight" for path, m in reference.named_modules() if id(m) in modules}


def _experts(model: nn.Module) -> tuple[int, int]:
    """(bytes, parameters) below modules called "experts"."""
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    plain = [tensor for name, tensor in named if ".experts." in name]
    size, count = sum(t.nbytes for t in plain), sum(t.numel() for t in plain)
    for module in model.modules():
        if isinstance(module, HeldExperts):
            size += module.packed_bytes
            count += module.num_weights
    return size, count
