"""Maps the tensors on disk to the parameters of the model.

transformers' own conversion table decides (renaming, and merging of per-expert tensors). Merged
parameters are split back into the part that each tensor fills, so that tensors can be streamed one
at a time.

    disk                                  model (transformers 5)
    ...experts.0.gate_proj.weight  --->   experts.gate_up_proj[0, :I]
    ...experts.0.up_proj.weight    --->   experts.gate_up_proj[0, I:]
    ...experts.1.down_proj.weight  --->   experts.down_proj[1]
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from engine.errors import CheckpointError, InferdeckError
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader
from engine.models.checkpoint import Checkpoint
from engine.models.weight_checks import (
    CODES,
    NO_MATCH,
    check_complete,
    check_count,
    check_dtypes,
    check_experts,
    check_shapes,
)
from engine.models.weight_files import few, tensor_count
from engine.numerics.experts import find_part

Index = tuple[int | slice, ...]

# Prefixes of the language model inside multimodal checkpoints, and what its own class calls it.
_TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.text_model.", "model."),
    ("text_model.model.", "model."),
    ("text_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
)
_LAST_NUMBER = re.compile(r".*\.([0-9]+)\.")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class Placement(NamedTuple):
    """A tensor on disk that fills `name`[part] of the model (all of it where part is empty). Where
    the class stores [in, out] (`is_turned`), the part is one of [out, in], and so is the tensor."""

    info: TensorInfo
    name: str
    part: Index = ()


@dataclass
class Conversion:
    """Tensors from which transformers' converter computes one or more parameters."""

    converter: Any  # transformers.core_model_loading.WeightConverter
    name: str
    members: list[tuple[str, str, TensorInfo]]  # name on disk, pattern that matched, where

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for _, _, info in self.members)

    @property
    def targets(self) -> set[str]:
        first, *others = self.converter.target_patterns
        return {self.name, *(self.name.replace(first, other) for other in others)}

    def compute(self, reference: nn.Module, reader: TensorReader) -> dict[str, Tensor]:
        """Read the members and convert them; name -> parameter."""
        converter = copy.deepcopy(self.converter)
        for disk_name, pattern, info in self.members:
            converter.add_tensor(self.name, disk_name, pattern, lambda i=info: reader.read(i))
        try:
            found = converter.convert(self.name, model=reference, config=reference.config)
        except InferdeckError:
            raise
        except Exception as error:  # whatever an operation raises, these tensors do not fit it
            shapes = [f"{n} in {i.file.name} is {list(i.shape)}" for n, _, i in self.members]
            raise CheckpointError(
                f"{self.name} cannot be built from {tensor_count(shapes)}: {few(shapes)}.", NO_MATCH
            ) from error
        return {n: v[0] if isinstance(v, list) else v for n, v in found.items()}


@dataclass
class WeightMap:
    placements: list[Placement] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)  # name -> the name whose tensor it shares
    filled: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # parts of a multimodal model not needed
    spare_biases: dict[str, TensorInfo] = field(default_factory=dict)
    """Biases on disk of quantized linears that have none: they have to be zero."""

    @property
    def total_bytes(self) -> int:
        return (
            sum(p.info.nbytes for p in self.placements)
            + sum(c.nbytes for c in self.conversions)
            + sum(info.nbytes for info in self.spare_biases.values())
        )

    @property
    def notices(self) -> list[str]:
        if not self.left_out:
            return []
        return [f"Multimodal checkpoint: {len(self.left_out)} non-text tensors are not loaded."]

    def placement(self, name: str) -> Placement | None:
        """The single tensor that fills all of `name`, if there is one."""
        return next((p for p in self.placements if p.name == name and not p.part), None)


def map_weights(checkpoint: Checkpoint, reference: nn.Module) -> WeightMap:
    """Plan how the checkpoint fills `reference`, the unmodified class on the meta device.

    Raises CheckpointError naming tensors that are missing, unexpected or misshapen.
    """
    from engine.lazy_transformers import get_model_conversion_mapping

    transforms = get_model_conversion_mapping(reference)  # type: ignore[arg-type]
    names, left_out = _language_model_names(checkpoint)
    result = WeightMap(left_out=left_out)
    check_count(names, reference, checkpoint)
    _assign(result, names, reference, transforms, checkpoint)
    _set_biases_aside(result, names)
    _resolve_tied(result, reference)
    check_complete(result, names, reference, checkpoint)
    check_shapes(result, reference, checkpoint)
    check_dtypes(result, reference)
    check_experts(result, reference)
    return result


def _language_model_names(checkpoint: Checkpoint) -> tuple[dict[str, TensorInfo], list[str]]:
    """Tensors by their name in the language model's class, and the names left out."""
    if not checkpoint.is_multimodal:
        return dict(checkpoint.tensors), []
    kept: dict[str, TensorInfo] = {}
    left_out: list[str] = []
    for name, info in checkpoint.tensors.items():
        for prefix, own in _TEXT_PREFIXES:
            if name.startswith(prefix):
                kept[own + name.removeprefix(prefix)] = info
                break
        else:
            left_out.append(name)
    if not kept:  # a text-only checkpoint under a multimodal config
        return dict(checkpoint.tensors), []
    return kept, left_out


def _assign(
    result: WeightMap,
    names: Mapping[str, TensorInfo],
    reference: nn.Module,
    transforms: list[Any],
    checkpoint: Checkpoint,
) -> None:
    from engine.lazy_transformers import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    expected = reference.state_dict()
    prefix = str(getattr(reference, "base_model_prefix", ""))
    merged: dict[str, list[tuple[str, str, TensorInfo]]] = defaultdict(list)
    for disk_name in sorted(names, key=dot_natural_key):
        name, pattern = rename_source_key(disk_name, renamings, converters, prefix, expected)
        if name not in expected and disk_name in expected:
            name, pattern = disk_name, None
        part = find_part(reference, name) if name not in expected else None
        if part is not None and part.name in expected:
            result.placements.append(Placement(names[disk_name], part.name, part.part))
            result.filled.add(part.name)
        elif name not in expected:
            result.unexpected.append(disk_name)
        elif pattern is None:
            result.placements.append(Placement(names[disk_name], name))
            result.filled.add(name)
        else:
            merged[name].append((disk_name, pattern, names[disk_name]))
    for name, members in merged.items():
        converter = by_pattern[members[0][1]]
        placements = _split_merge(converter, name, members, expected[name].shape, checkpoint)
        if placements is not None:
            result.placements += placements
            result.filled.add(name)
        else:
            conversion = Conversion(converter, name, members)
            result.conversions.append(conversion)
            result.filled |= conversion.targets & set(expected)


def _set_biases_aside(result: WeightMap, names: Mapping[str, TensorInfo]) -> None:
    """AutoGPTQ once wrote a bias of zeros for every linear that it quantized."""
    for name in result.unexpected:
        weight = names.get(f"{name.removesuffix('.bias')}.weight")
        if name.endswith(".bias") and weight is not None and weight.dtype == CODES:
            result.spare_biases[name] = names[name]
    result.unexpected = [n for n in result.unexpected if n not in result.spare_biases]


def _split_merge(
    converter: Any, name: str, members: list[tuple[str, str, TensorInfo]], shape: Any,
    checkpoint: Checkpoint,
) -> list[Placement] | None:  # fmt: skip
    """The part of parameter `name` [experts, ...] that each tensor fills, where the conversion
    only stacks experts along dim 0 and joins projections along dim 1; None for any other."""
    operations = [(type(op).__name__, getattr(op, "dim", None)) for op in converter.operations]
    stacked = operations == [("MergeModulelist", 0)]
    joined = operations == [("MergeModulelist", 0), ("Concatenate", 1)]
    if not stacked and not joined:
        return None
    patterns = converter.source_patterns
    groups = {p: [(n, info) for n, q, info in members if q == p] for p in patterns}
    if any(len(group) != shape[0] for group in groups.values()):
        counts = ", ".join(f"{p}: {len(g)}" for p, g in groups.items())
        raise CheckpointError(
            f"{name} needs {shape[0]} tensors of each kind; found {counts}. "
            f"{checkpoint.path / 'config.json'} has {_experts(checkpoint, shape[0])}.",
            "Download the model again: config.json does not match its weights.",
        )
    wrong = [f"{n} in {info.file.name}" for n, _, info in members if not info.shape]
    if wrong:
        raise CheckpointError(
            f"{name} has {tensor_count(wrong)} without dimensions: {few(wrong)}.", NO_MATCH
        )
    odd = [
        f"{n} in {info.file.name}"
        for group in groups.values()
        for i, (n, info) in enumerate(group)
        if (found := _LAST_NUMBER.match(n)) and found[1] != str(i)
    ]
    if odd:
        raise CheckpointError(
            f"{name} needs experts 0 to {shape[0] - 1}; {tensor_count(odd)} out of sequence: "
            f"{few(odd)}.",
            "Download the model again: it is incomplete.",
        )
    placements: list[Placement] = []
    offset = 0
    for pattern in patterns:
        rows = groups[pattern][0][1].shape[0]
        for expert, (_, info) in enumerate(groups[pattern]):
            part: Index = (expert,) if stacked else (expert, slice(offset, offset + rows))
            placements.append(Placement(info, name, part))
        offset += rows
    return placements


def _experts(checkpoint: Checkpoint, count: int) -> str:
    """The field of config.json that says `count`, as "num_experts = 8"."""
    raw = checkpoint.raw_config
    parts = (raw, raw.get("text_config") or {})
    found = [f"{n} = {count}" for n in _EXPERT_COUNTS for part in parts if part.get(n) == count]
    return found[0] if found else f"{count} experts"


def _resolve_tied(result: WeightMap, reference: nn.Module) -> None:
    """Decide which of two tied names is filled from disk: whichever is there."""
    tied: Mapping[str, str] = getattr(reference, "all_tied_weights_keys", {})
    for target, source in tied.items():
        if target in result.filled and source not in result.filled:
            target, source = source, target
        result.tied[target] = source
