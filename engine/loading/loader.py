"""Loads a model: structure first, then its weights straight into their final place."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from engine.errors import CheckpointError, ConfigError, InferdeckError
from engine.kernels.select import Choice, blocked_choices, linear_choices
from engine.layers.rotary import TABLE, has_rotary, table_swaps
from engine.layers.swap import Swap
from engine.layers.verify import keep_what_agrees
from engine.loading.architecture import LayerKV, build_on_meta, kv_layout, resolve_class
from engine.loading.arrange import block_weights
from engine.loading.checkpoint import Checkpoint
from engine.loading.dummy import fill_dummy
from engine.loading.materialise import (
    DtypePlan,
    Slots,
    allocate,
    compute_buffers,
    freeze_rotary,
    weight_bytes,
)
from engine.loading.prepare import Prepared, prepare
from engine.loading.tensor_reader import TensorReader
from engine.loading.weight_map import Conversion, WeightMap, map_weights

ATTENTION_NAME = "inferdeck"  # engine.attention.NAME; a literal, so that loading needs no attention

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in eval mode, without gradients. `weights_bytes` is measured."""

    model: nn.Module
    weights_bytes: int
    notices: list[str] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    kv_layout: tuple[LayerKV, ...] = ()


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: str,
    load_format: str,
    seed: int,
    max_model_len: int,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Cancelled = lambda: False,
) -> LoadedModel:
    """Load `checkpoint` in `dtype` onto `device`.

    load_format: "auto" reads the safetensors, "dummy" fills with random weights of `seed`.
    progress(stage, done, total) counts bytes. Raises UnsupportedModelError, CheckpointError,
    OutOfMemoryError, or LoadCancelled (nothing of the model is kept then).
    """
    resolve_class(checkpoint)
    if load_format == "auto" and not checkpoint.tensors:
        raise ConfigError(
            f"{checkpoint.name} was opened without its weights.", 'Use load format "dummy".'
        )
    notices: list[str] = []
    # `reference` keeps the class's own names and shapes; `model` gets the replacements
    reference = build_on_meta(checkpoint.config)
    prepared = prepare(build_on_meta(checkpoint.config))
    model = prepared.model
    if load_format == "dummy":
        tied = dict(getattr(reference, "all_tied_weights_keys", {}))
        allocate(prepared.slots, tied, dtype, device, DtypePlan.of(model))
        std = getattr(checkpoint.config, "initializer_range", None) or 0.02
        fill_dummy(
            prepared.slots, frozenset(tied), seed=seed, std=float(std), dtype=dtype,
            progress=progress, cancelled=cancelled,
        )  # fmt: skip
    else:
        weights = map_weights(checkpoint, reference)
        notices += _notices(weights)
        with TensorReader(weights.total_bytes, progress, cancelled) as reader:
            notices += _untie_different(weights, reader)
            allocate(prepared.slots, weights.tied, dtype, device, DtypePlan.of(model))
            _stream(weights, prepared.slots, reference, reader)
    compute_buffers(model, device)
    notices += freeze_rotary(model, max_model_len)
    progress("Checking", 0, 0)
    kernels = _check(prepared, max_model_len, dtype, notices)
    del prepared  # with the originals, whose weights are views of those that may be arranged
    blocked = block_weights(model, dtype, device, progress, cancelled)
    kernels["linear"] = _linear_outcome(dtype, device, blocked)
    model.config._attn_implementation = ATTENTION_NAME  # type: ignore[union-attr]
    model.eval().requires_grad_(False)
    return LoadedModel(model, weight_bytes(model), notices, kernels, kv_layout(reference))


def _stream(weights: WeightMap, slots: Slots, reference: nn.Module, reader: TensorReader) -> None:
    """Every tensor on disk into the part of the model that it fills, one at a time."""
    # in the order in which they lie on disk: one pass over each file
    for info, name, part in sorted(
        weights.placements, key=lambda p: (str(p.info.file), p.info.offset)
    ):
        if name in weights.tied:
            continue  # the same bytes as the tensor that it shares
        view = slots[name].view()
        reader.copy_into(info, view[part] if part else view)
    for conversion in weights.conversions:
        for name, value in _convert(conversion, reference, reader).items():
            target = slots[name].view()
            if value.shape != target.shape:
                raise CheckpointError(
                    f"{name} is {list(value.shape)} and should be {list(target.shape)}.",
                    "Check that config.json belongs to these weights.",
                )
            target.copy_(value)


def _convert(
    conversion: Conversion, reference: nn.Module, reader: TensorReader
) -> dict[str, torch.Tensor]:
    """Parameters that transformers' converter computes from the tensors of one conversion."""
    converter = copy.deepcopy(conversion.converter)
    for disk_name, pattern, info in conversion.members:
        converter.add_tensor(conversion.name, disk_name, pattern, lambda i=info: reader.read(i))
    try:
        found = converter.convert(conversion.name, model=reference, config=reference.config)
    except InferdeckError:
        raise
    except Exception as error:  # whatever an operation raises, these tensors do not fit it
        raise CheckpointError(
            f"{conversion.name} could not be made from {len(conversion.members)} tensors of the "
            f"checkpoint: {error}",
            "Check that config.json belongs to these weights.",
        ) from error
    return {n: v[0] if isinstance(v, list) else v for n, v in found.items()}


def _untie_different(weights: WeightMap, reader: TensorReader) -> list[str]:
    """Tied names that are both on disk with different values are not tied, as in transformers."""
    notices = []
    for target, source in list(weights.tied.items()):
        first, second = weights.placement(target), weights.placement(source)
        if first and second and not reader.equal(first.info, second.info):
            del weights.tied[target]
            notices.append(
                f"config.json ties {target} to {source}, but the checkpoint holds different "
                "values for them: both are used."
            )
    return notices


def _notices(weights: WeightMap) -> list[str]:
    if not weights.left_out:
        return []
    return [
        f"The text part of a multimodal checkpoint: {len(weights.left_out)} tensors of other "
        "parts were left out."
    ]


def _check(
    prepared: Prepared, max_model_len: int, dtype: torch.dtype, notices: list[str]
) -> dict[str, str]:
    """Keep the replacements that agree with what they replace; kind -> outcome."""
    prepared.bind_originals()
    tables: list[Swap] = list(table_swaps(prepared.model, max_model_len, dtype))
    for swap in tables:
        swap.apply()
    began = time.perf_counter()
    _, kernels = keep_what_agrees(prepared.model, [*prepared.swaps, *tables], dtype)
    if time.perf_counter() - began > 30:
        notices.append("The check of fused layers took more than 30 seconds on this machine.")
    if not tables and has_rotary(prepared.model):
        kernels[TABLE] = "original (computed in each step)"
    return kernels


def _linear_outcome(dtype: torch.dtype, device: str, num_blocked: int) -> str:
    if device != "cpu":
        return "torch"
    plain = _by_rows(linear_choices(dtype))
    if not num_blocked:
        return plain
    return f"{_by_rows(blocked_choices(dtype))} (weights in blocks: {num_blocked}; others: {plain})"


def _by_rows(choices: Sequence[Choice]) -> str:
    if len({c.implementation for c in choices}) == 1:
        return choices[0].implementation
    return ", ".join(f"{c.implementation} from {c.rows} rows" for c in choices)
