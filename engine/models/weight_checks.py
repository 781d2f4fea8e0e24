"""Checks that a plan fills every parameter of the model with tensors of its shape and dtype.

Each check raises CheckpointError naming the tensors, their files and what was expected.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from engine.errors import CheckpointError
from engine.formats.safetensors_file import TensorInfo
from engine.models.checkpoint import DTYPE_NAMES, Checkpoint
from engine.models.weight_files import few, tensor_count

if TYPE_CHECKING:
    from engine.models.weight_map import WeightMap

NO_MATCH = "Check that config.json matches these weights."
CODES = "CODES"
"""The dtype of a quantized matrix: always [out, in]."""
FLOATS = (CODES, *DTYPE_NAMES)
# Buffers that older checkpoints saved and newer classes compute; and fixed scales for the KV cache,
# where ours are measured for each token and head.
_HARMLESS = re.compile(
    r"(rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached|\.masked_bias|(^|\.)position_ids"
    r"|(attn|attention)\.bias|_float_tensor|num_batches_tracked"
    r"|_attn\.(kv?|v|q)_scale|_attn\.[qkv]_proj\.output_scale)$"
)
_SPARE_TENSORS = 1000
"""Of old buffers and parts that are left out, beside twice as many as the model has."""


def check_count(
    names: Mapping[str, TensorInfo], reference: nn.Module, checkpoint: Checkpoint
) -> None:
    """That there are not far more tensors than parts of the model: to rename each takes 0.1 ms."""
    parts = sum(t.shape[0] if t.ndim == 3 else 1 for t in reference.state_dict().values())
    if len(names) > 2 * parts + _SPARE_TENSORS:
        files = Counter(info.file.name for info in names.values()).most_common()
        raise CheckpointError(
            f"{checkpoint.path} has {len(names):,} tensors in {few([n for n, _ in files])}; "
            f"its config.json ({type(reference).__name__}) needs {parts:,}.",
            NO_MATCH,
        )


def check_complete(
    result: WeightMap,
    names: Mapping[str, TensorInfo],
    reference: nn.Module,
    checkpoint: Checkpoint,
) -> None:
    tied_away = {name for name, source in result.tied.items() if source in result.filled}
    missing = _without_patterns(
        sorted(set(reference.state_dict()) - result.filled - tied_away),
        getattr(reference, "_keys_to_ignore_on_load_missing", None),
    )
    if missing:
        raise CheckpointError(
            f"{checkpoint.path} lacks {tensor_count(missing)} of {type(reference).__name__}: "
            f"{few(missing)}.",
            "Download the model again, or check that config.json matches these weights.",
        )
    unexpected = _without_patterns(
        result.unexpected, getattr(reference, "_keys_to_ignore_on_load_unexpected", None)
    )
    unexpected = [
        f"{name} in {names[name].file.name}" for name in unexpected if not _HARMLESS.search(name)
    ]
    if unexpected:
        raise CheckpointError(
            f"{checkpoint.path} has {tensor_count(unexpected)} that {type(reference).__name__} "
            f"does not use: {few(unexpected)}.",
            "Check that config.json matches these weights (number of layers, architecture).",
        )


def check_shapes(result: WeightMap, reference: nn.Module, checkpoint: Checkpoint) -> None:
    expected = reference.state_dict()
    wrong: list[str] = []
    for info, name, part in result.placements:
        whole = expected[name]
        if is_turned(reference, name) and (part or info.dtype == CODES):
            whole = whole.mT
        wanted = tuple(whole[part].shape if part else whole.shape)
        if wanted != info.shape:
            found = f"{name} in {info.file.name} is {list(info.shape)}"
            wrong.append(f"{found}, expected {list(wanted)}")
    if wrong:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'} implies other shapes for {tensor_count(wrong)}: "
            f"{few(wrong)}.",
            NO_MATCH,
        )


def check_dtypes(result: WeightMap, reference: nn.Module) -> None:
    """That numbers are floats where the class has floats: 16-bit integers of the right shape would
    be converted without a word."""
    expected = reference.state_dict()
    found = [(name, info) for info, name, _ in result.placements]
    found += [(c.name, info) for c in result.conversions for _, _, info in c.members]
    wrong = [
        f"{name} in {info.file.name} is {info.dtype}"
        for name, info in found
        if expected[name].is_floating_point() != (info.dtype in FLOATS)
    ]
    wrong += [
        f"{name} in {info.file.name} is {info.dtype}"
        for name, info in result.spare_biases.items()
        if info.dtype not in FLOATS
    ]
    if wrong:
        raise CheckpointError(
            f"Unsupported dtype of {tensor_count(wrong)}: {few(wrong)}; expected "
            f"{' or '.join(DTYPE_NAMES)}.",
            "Download the model again: its files are corrupt.",
        )


def check_experts(result: WeightMap, reference: nn.Module) -> None:
    """That experts which are cut into matrices are all there."""
    expected = reference.state_dict()
    found: dict[str, int] = defaultdict(int)
    for info, name, part in result.placements:
        if part:
            found[name] += math.prod(info.shape)
    for name, count in found.items():
        wanted = expected[name].numel()
        if count != wanted:
            raise CheckpointError(
                f"{name} needs {wanted:,} values; the experts in the checkpoint have {count:,}.",
                "Download the model again: it is incomplete.",
            )


def is_turned(model: nn.Module, name: str) -> bool:
    """Whether `model` keeps this weight as [in, out]: GPT-2's Conv1D, and some experts."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    if type(owner).__name__ == "Conv1D":
        return attribute == "weight"
    return attribute.endswith("_proj") and bool(getattr(owner, "is_transposed", False))


def _without_patterns(names: list[str], patterns: Any) -> list[str]:
    if not patterns:
        return names
    ignored = re.compile("|".join(f"({pattern})" for pattern in patterns))
    return [name for name in names if not ignored.search(name)]
