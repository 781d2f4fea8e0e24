"""How a model is sharded for tensor parallelism (Shoeybi et al., "Megatron-LM", 2019).

    weight                     whole [out, in]      of each of N ranks
    q_proj, k_proj, v_proj     [heads * D, H]       [heads / N * D, H]      its own heads
    o_proj                     [H, heads * D]       [H, heads / N * D]      a part of the sum
    gate_proj, up_proj         [I, H]               [I / N, H]
    down_proj                  [H, I]               [H, I / N]              a part of the sum
    embeddings, output head    [V, H]               [V / N, H]              its own tokens
    norms, routers             [H]                  [H]                     each has all

A rank's model is the same class of transformers, built from a config with fewer heads and narrower
MLPs. So which weights are cut, and where, need not be listed for each class: it is seen where the
shapes of both differ. `engine.parallel.smoke_test` compares the results.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from engine.errors import UnsupportedModelError
from engine.models.architecture import build_on_meta, without_token
from engine.models.config_bounds import of_all_layers
from engine.models.layers.replacement import list_of_layers

_HEADS = ("num_attention_heads", "num_key_value_heads")
_WIDTHS = ("ffn_dim", "ffn_hidden_size", "intermediate_size_mlp")
"""Of MLPs, besides all whose name ends with intermediate_size."""

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a weight is sharded along dimension `dim` of `whole` elements. `segments`: sizes of the
    matrices stacked in it, each of which is sharded. `part`: elements per rank; if they do not
    divide evenly, the last ranks are padded with zeros."""

    dim: int
    whole: int
    part: int
    segments: tuple[int, ...]

    def ranges(self, rank: int, size: int) -> Ranges:
        """(start, end) of what a rank has of the dimension, one behind the other."""
        found = []
        start = 0
        for segment in self.segments:
            step = -(-segment // size)
            first, last = min(rank * step, segment), min((rank + 1) * step, segment)
            found.append((start + first, start + last))
            start += segment
        return tuple(found)


@dataclass(frozen=True)
class Shape:
    """The sharding of a model across `size` ranks. config: of each rank's model. cuts: by weight
    name. once: biases that only the first rank adds. sums: paths of the modules whose outputs are
    all-reduced. vocab_size: of the whole model. is_vocab_cut: whether embeddings and head are
    sharded."""

    size: int
    config: Any
    cuts: dict[str, Cut]
    once: frozenset[str]
    sums: tuple[str, ...]
    vocab_size: int
    is_vocab_cut: bool
    vocab_part: int = field(default=0)


def shape_of(config: Any, size: int) -> Shape:
    """How the model of `config` is divided among `size` ranks. Raises UnsupportedModelError with
    the reason where it cannot be."""
    own = rank_config(config, size)
    whole, part = build_on_meta(config), build_on_meta(own)
    names, parts = whole.state_dict(), part.state_dict()
    if set(names) != set(parts):
        raise _cannot(whole, "the shards and the model have different weights")
    _check_buffers(whole, part)
    cuts = {
        name: _cut(whole, name, tuple(names[name].shape), tuple(parts[name].shape), size)
        for name in names
        if names[name].shape != parts[name].shape
    }
    vocabulary = _vocabulary(whole)
    sums = _sums(whole, {name for name in cuts if name not in vocabulary})
    if not sums:
        raise _cannot(whole, "the layers have no heads or MLP dimensions to shard")
    cut_words = vocabulary & set(cuts)
    if cut_words and cut_words != vocabulary:
        raise _cannot(whole, "the embeddings and LM head differ in vocabulary size")
    return Shape(
        size=size,
        config=own,
        cuts=cuts,
        once=frozenset(
            bias for name in cuts for bias in _biases(name) if bias in names and bias not in cuts
        ),
        sums=sums,
        vocab_size=int(config.vocab_size),
        is_vocab_cut=bool(cut_words),
        vocab_part=int(own.vocab_size),
    )  # fmt: skip


def rank_config(config: Any, size: int) -> Any:
    """The config of a rank's model. Raises UnsupportedModelError where something does not come out
    even, with all numbers that do not."""
    own = copy.deepcopy(config)
    heads: int = config.num_attention_heads
    if of_all_layers(config, "head_dim", ...) is None:  # which follows from the number of heads
        own.head_dim = config.hidden_size // heads
    odd = []
    for name in vars(config):
        is_width = name.endswith("intermediate_size") or name in _WIDTHS
        if not (is_width or name in _HEADS):
            continue
        value = of_all_layers(config, name, ...)
        if value is ...:
            raise UnsupportedModelError(
                f"Layers differ in {name}; tensor parallelism needs identical layers.",
                "Set tensor_parallel_size to 1, or choose another model.",
            )
        if not isinstance(value, int) or not value:
            continue
        if value % size:
            odd.append(f"{name} {value:,}")
        else:
            setattr(own, name, value // size)
    if odd:
        raise UnsupportedModelError(
            f"tensor_parallel_size {size} does not divide {', '.join(odd)}.",
            "Choose a tensor_parallel_size that divides these values.",
        )
    own.vocab_size = -(-int(config.vocab_size) // size)
    without_token(own, "pad_token_id")  # embeddings look at it, and it may be another rank's
    return own


def _cut(
    model: nn.Module, name: str, whole: tuple[int, ...], part: tuple[int, ...], size: int
) -> Cut:
    differ = [d for d, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b]
    if len(whole) != len(part) or len(differ) != 1:
        raise _cannot(model, f"{name} has shape {list(whole)}; its shard has {list(part)}")
    (dim,) = differ
    if len(whole) == 1 and name.endswith(".weight"):
        why = f"{name} is a norm over all {whole[0]:,} elements and cannot be sharded"
        raise _cannot(model, why)
    segments = _segments(model, name, whole[dim])
    if sum(-(-segment // size) for segment in segments) != part[dim]:
        raise _cannot(model, f"{name} has shape {list(whole)}; its shard has {list(part)}")
    return Cut(dim, whole[dim], part[dim], segments)


def _segments(model: nn.Module, name: str, length: int) -> tuple[int, ...]:
    """The matrices stacked in one tensor: queries, keys and values; gate and up."""
    path, _, attribute = name.rpartition(".")
    leaf = attribute.removesuffix("_bias")
    if leaf in ("weight", "bias"):
        path, _, leaf = path.rpartition(".")
    owner, config = model.get_submodule(path), model.config
    if leaf == "gate_up_proj" and getattr(owner, "is_concatenated", True):
        return (length // 2, length // 2)
    if leaf == "qkv_proj":
        of_keys = int(config.num_key_value_heads * owner.head_dim)  # type: ignore[operator, union-attr]
        return (length - 2 * of_keys, of_keys, of_keys)
    return (length,)


def _biases(name: str) -> tuple[str, ...]:
    """What is added to the product with a weight."""
    return (f"{name.removesuffix('weight')}bias", f"{name}_bias")


def _vocabulary(model: nn.Module) -> set[str]:
    """Names of the tensors of embeddings and head."""
    modules = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    ids = {id(module) for module in modules if module is not None}
    paths = [path for path, module in model.named_modules() if id(module) in ids]
    return {f"{path}.{n}" for path in paths for n in model.get_submodule(path).state_dict()}


def _sums(model: nn.Module, names: set[str]) -> tuple[str, ...]:
    """Modules right inside a layer that have cut weights: attention and MLP."""
    path, layers = list_of_layers(model)
    children = [
        f"{path}.{index}.{child}"
        for index, layer in enumerate(layers)
        for child, _ in layer.named_children()
    ]
    found = tuple(c for c in children if any(n.startswith(f"{c}.") for n in names))
    others = sorted(n for n in names if not any(n.startswith(f"{c}.") for c in found))
    if others:
        raise _cannot(model, f"{others[0]} is in neither the attention nor the MLP of a layer")
    return found


def _check_buffers(whole: nn.Module, part: nn.Module) -> None:
    """Raise if buffers (rotary frequencies) depend on the sharding."""
    others = dict(part.named_buffers())
    for name, buffer in whole.named_buffers():
        if name not in others or others[name].shape != buffer.shape:
            raise _cannot(whole, f"{name} differs between shards")


def _cannot(model: nn.Module, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} does not support tensor parallelism: {why}.",
        "Set tensor_parallel_size to 1, or choose another model.",
    )
