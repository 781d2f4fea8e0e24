"""The tensors of a checkpoint that are quantized: the matrices of its decoder layers.

    on disk                                       in the model
    layers.0.mlp.experts.3.up_proj.weight   --->  layers.0.mlp.experts.gate_up_proj[3, I:]

A format stores tensors on disk, so those are quantized. The model multiplies with parameters, of
which such a tensor may be a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from engine.errors import ConfigError
from engine.formats.safetensors_file import TensorInfo
from engine.models.checkpoint import Checkpoint
from engine.models.layers.replacement import list_of_layers
from engine.models.weight_checks import is_turned
from engine.models.weight_files import few
from engine.models.weight_map import Index, Placement, WeightMap
from engine.numerics.experts import ExpertPart, is_experts, parts_of
from engine.quantize.recipe import Recipe, matches

_ROUTER_WORDS = ("gate", "router", "shared_expert_gate", "wg")
_CUTS_EXPERTS = ("awq", "gptq", "compressed-tensors")
"""Formats for which others write experts one by one; bitsandbytes leaves them as they are."""

_FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Bias:
    """The bias of a matrix that is cut from fused experts. `info`: on disk; `part`: the part of
    `parameter` that it fills."""

    disk_name: str
    info: TensorInfo
    parameter: str
    part: Index


@dataclass(frozen=True)
class Piece:
    """A matrix on disk, and the part of a parameter that it fills. `shape` is [N, K]: outputs,
    inputs; a GPT-2 Conv1D is transposed on disk.

    cut_from: the fused experts tensor on disk that the matrix is cut from; then `disk_name` is its
    new name, and `info` the location of its expert, with rows of other matrices. `bias` is cut with
    it.
    """

    disk_name: str
    info: TensorInfo
    parameter: str
    part: Index
    is_transposed: bool
    cut_from: str = ""
    bias: Bias | None = None

    @property
    def module(self) -> str:
        return self.disk_name.removesuffix(".weight")

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.info.shape
        rows, columns = (columns, rows) if self.is_transposed else (rows, columns)
        return (len(range(rows)[self.rows]) if self.cut_from else rows), columns

    @property
    def expert(self) -> int | None:
        return int(self.part[0]) if self.part and isinstance(self.part[0], int) else None

    def of_disk(self, tensor: Tensor) -> Tensor:
        """[N, K] of what `info` holds."""
        matrix = tensor.t() if self.is_transposed else tensor
        return matrix[self.rows] if self.cut_from else matrix

    @property
    def rows(self) -> slice:
        """Of the product (of its expert's, where it has one)."""
        last = self.part[-1] if self.part else None
        return last if isinstance(last, slice) else slice(None)


@dataclass(frozen=True)
class LayerTargets:
    """The targets of one decoder layer: its `path` in the model, the matrices to quantize, and the
    placements of all."""

    index: int
    path: str
    pieces: tuple[Piece, ...]
    placements: tuple[Placement, ...]


@dataclass
class Targets:
    """The targets of a model. `kept`: modules (names on disk) that readers must treat as
    unquantized. `reasons`: why matrices of layers are not quantized, by name."""

    layers: list[LayerTargets] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for layer in self.layers for piece in layer.pieces]


def find_targets(
    checkpoint: Checkpoint, model: nn.Module, weights: WeightMap, recipe: Recipe
) -> Targets:
    """The matrices of `checkpoint` that `recipe` quantizes; `model` is its class on the meta
    device. Raises ConfigError for an exclusion that matches nothing, for a group size that does not
    divide the inputs of a matrix, and if nothing is left to quantize."""
    disk_names = {(i.file, i.offset, i.nbytes): name for name, i in checkpoint.tensors.items()}
    path, layers = list_of_layers(model)
    by_layer: dict[int, list[Placement]] = defaultdict(list)
    targets = Targets()
    candidates: list[Piece] = []
    for placement in weights.placements:
        index = _layer_of(placement.name, path)
        if index is not None:
            by_layer[index].append(placement)
        disk_name = disk_names[placement.info.file, placement.info.offset, placement.info.nbytes]
        experts = _experts(model, placement, disk_name, recipe) if index is not None else None
        if experts is not None:
            candidates += _cut(experts, placement, disk_name, weights)
            continue
        reason = _reason_to_keep(model, placement, disk_name, index)
        if reason is None:
            owner = model.get_submodule(placement.name.rpartition(".")[0])
            is_transposed = type(owner).__name__ == "Conv1D"
            candidates.append(Piece(disk_name, *placement, is_transposed))
        elif _is_matrix(model, placement, disk_name):
            targets.kept.append(disk_name.removesuffix(".weight"))
            if reason:
                targets.reasons[disk_name.removesuffix(".weight")] = reason
        elif reason:
            targets.reasons[disk_name] = reason
    head = model.get_output_embeddings()  # type: ignore[operator]
    # also where it is tied to the embedding and not on disk
    heads = [name for name, module in model.named_modules() if module is head]
    targets.kept += [name for name in heads if name not in targets.kept]
    for name in weights.left_out:  # the other parts of a multimodal checkpoint
        if name.endswith(".weight") and len(checkpoint.tensors[name].shape) == 2:
            targets.kept.append(name.removesuffix(".weight"))
    for name in (n for conversion in weights.conversions for n, _, _ in conversion.members):
        targets.reasons[name] = "computed from several tensors at load time"
    pieces = _whole_experts(_without_excluded(candidates, recipe, targets), candidates, targets)
    _check_groups(pieces, recipe)
    if not pieces:
        raise ConfigError(
            f"No modules left to quantize in {checkpoint.name}: {len(candidates)} matrices "
            f"found, {len(candidates)} excluded.",
            "Exclude fewer modules.",
        )
    for index in range(len(layers)):
        prefix = f"{path}.{index}"
        own = tuple(p for p in pieces if _layer_of(p.parameter, path) == index)
        targets.layers.append(LayerTargets(index, prefix, own, tuple(by_layer[index])))
    return targets


def _experts(
    model: nn.Module, placement: Placement, disk_name: str, recipe: Recipe
) -> nn.Module | None:
    """The experts of which a tensor on disk is a whole parameter, where the format has names for
    the matrices of each."""
    path, _, attribute = placement.name.rpartition(".")
    module = model.get_submodule(path)
    if placement.part or len(placement.info.shape) != 3 or placement.info.dtype not in _FLOATS:
        return None
    if not is_experts(module) or disk_name.rpartition(".")[2] != attribute:
        return None
    if recipe.facts.format not in _CUTS_EXPERTS:
        return None
    outputs = placement.info.shape[2 if is_turned(model, placement.name) else 1]
    matrices = sum(name == attribute for name, _, _ in parts_of(module))
    return module if outputs % (8 * matrices) == 0 else None


def _cut(
    experts: nn.Module, placement: Placement, disk_name: str, weights: WeightMap
) -> Iterator[Piece]:
    """The matrices of each expert in a fused tensor."""
    prefix, _, attribute = disk_name.rpartition(".")
    bias = weights.placement(f"{placement.name}_bias")
    info = placement.info
    size = info.nbytes // info.shape[0]
    for expert in range(info.shape[0]):
        own = info._replace(shape=info.shape[1:], nbytes=size, offset=info.offset + expert * size)
        for name, matrix, rows in parts_of(experts):
            if name != attribute:
                continue
            part = ExpertPart(placement.name, expert, rows).part
            module = f"{prefix}.{expert}.{matrix}"
            cut_bias = None
            if bias is not None:
                cut_bias = Bias(f"{disk_name}_bias", bias.info, bias.name, part)
            yield Piece(f"{module}.weight", own, placement.name, part,
                        is_turned(experts, attribute), disk_name, cut_bias)  # fmt: skip


def _whole_experts(pieces: list[Piece], all_pieces: list[Piece], targets: Targets) -> list[Piece]:
    """Fused experts are quantized all or none: excluding one excludes the layer's others."""
    left = {piece.module for piece in pieces}
    kept = {_experts_of(p) for p in all_pieces if p.cut_from and p.module not in left}
    gone = [p.module for p in pieces if p.cut_from and _experts_of(p) in kept]
    targets.kept += gone
    for piece in all_pieces:
        if piece.cut_from and _experts_of(piece) in kept:
            targets.reasons.pop(piece.module, None)
            targets.reasons[piece.cut_from] = "excluded: another expert of this layer is excluded"
    return [p for p in pieces if not p.cut_from or _experts_of(p) not in kept]


def _experts_of(piece: Piece) -> str:
    return piece.cut_from.rpartition(".")[0]


def _is_matrix(model: nn.Module, placement: Placement, disk_name: str) -> bool:
    owner = model.get_submodule(placement.name.rpartition(".")[0])
    is_weight = disk_name.endswith(".weight") and len(placement.info.shape) == 2
    return is_weight and not isinstance(owner, nn.Embedding)


def _layer_of(name: str, path: str) -> int | None:
    if not name.startswith(path + "."):
        return None
    return int(name[len(path) + 1 :].split(".", 1)[0])


def _reason_to_keep(
    model: nn.Module, placement: Placement, disk_name: str, layer: int | None
) -> str | None:
    """None: it is quantized. Empty: it is kept for an obvious reason."""
    info = placement.info
    owner_path, _, attribute = placement.name.rpartition(".")
    owner = model.get_submodule(owner_path)
    if layer is None or info.dtype not in _FLOATS or not len(info.shape) >= 2:
        return ""
    if "Experts" in type(owner).__name__ and placement.part:
        if is_turned(model, placement.name):
            return "transposed in the model class, but not in the file"
        return None
    if len(info.shape) == 3:
        return "fused experts in one tensor, which the format does not support"
    is_linear = type(owner) is nn.Linear or type(owner).__name__ == "Conv1D"
    if attribute != "weight" or not is_linear or not disk_name.endswith(".weight"):
        return ""
    rows = info.shape[0]
    if owner_path.rpartition(".")[2] in _ROUTER_WORDS and rows in _expert_counts(model.config):
        return ""  # a router
    return None if rows % 8 == 0 else f"output size {rows} is not a multiple of 8"


def _expert_counts(config: Any) -> set[int]:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return {1, *(int(getattr(config, n)) for n in names if getattr(config, n, None))}


def _without_excluded(pieces: list[Piece], recipe: Recipe, targets: Targets) -> list[Piece]:
    names = [piece.module for piece in pieces] + targets.kept
    unused = [x for x in recipe.exclude if not any(matches(name, x) for name in names)]
    if unused:
        raise ConfigError(
            f"Cannot exclude {unused[0]!r}: no module has this name.",
            f"Module names look like {few([piece.module for piece in pieces], 2)}.",
        )
    excluded = [piece.module for piece in pieces if recipe.excludes(piece.module)]
    targets.kept += excluded
    targets.reasons |= dict.fromkeys(excluded, "excluded")
    return [piece for piece in pieces if not recipe.excludes(piece.module)]


def _check_groups(pieces: list[Piece], recipe: Recipe) -> None:
    if not recipe.facts.is_grouped:
        return
    size = recipe.group_size
    wrong = [piece for piece in pieces if piece.shape[1] % size]
    if wrong:
        widths = sorted({piece.shape[1] for piece in wrong})
        dividing = [g for g in (32, 64, 128, 256) if not any(w % g for w in widths)]
        raise ConfigError(
            f"Group size {size} does not divide the input size of {len(wrong)} matrices "
            f"({', '.join(map(str, widths))}): {few([piece.module for piece in wrong], 2)}.",
            f"Choose a group size of {dividing[-1]}, or exclude these modules."
            if dividing
            else "Exclude these modules, or choose int8, fp8 or nf4.",
        )
