"""Loads a model: structure first, then its weights straight into their final place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from engine.errors import ConfigError
from engine.formats.tensor_reader import TensorReader
from engine.hardware.device_map import DeviceMap
from engine.hardware.devices import CPU, make_current
from engine.kernels.cpu.between import FORMATS
from engine.kernels.cpu.library import library
from engine.kernels.registry import Choice, blocked_choices, linear_choices
from engine.models.architecture import LayerKV, build_on_meta, kv_layout, resolve_class
from engine.models.arrange import block_weights
from engine.models.checkpoint import Checkpoint
from engine.models.dummy import fill_dummy
from engine.models.layers.offload import Crossing, carry_between_gpus, crossing_of
from engine.models.layers.replacement import Swap, keep_what_agrees
from engine.models.layers.rotary import TABLE, has_rotary, table_swaps
from engine.models.load_request import Built, Cancelled, LoadRequest, Progress
from engine.models.materialise import (
    DtypePlan,
    allocate,
    compute_buffers,
    copy_tied,
    freeze_rotary,
    weight_bytes,
)
from engine.models.placement import place
from engine.models.prepare import Prepared, prepare
from engine.models.quantized_loader import build_few_bits
from engine.models.quantized_weights import outcome
from engine.models.streaming import bytes_to_read, left_out_notices, stream, untie_different
from engine.models.weight_map import map_weights
from engine.numerics.scheme import PLAIN, Scheme

if TYPE_CHECKING:
    from engine.parallel.ranks import Ranks
    from engine.parallel.share import Share

ATTENTION_NAME = "inferdeck"  # engine.attention.NAME; a literal, so that loading needs no attention


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in eval mode, without gradients. `bytes_on` each of its devices are
    measured. `crossing`: of a model whose first layers the CPU has. `ranks`: all of them, where
    there are several; `model` is then the first one's."""

    model: nn.Module
    bytes_on: dict[str, int]
    device_map: DeviceMap
    notices: list[str] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    crossing: Crossing | None = None
    kv_layout: tuple[LayerKV, ...] = ()
    ranks: Ranks | None = None

    @property
    def weights_bytes(self) -> int:
        return sum(self.bytes_on.values())


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: str,
    load_format: str,
    seed: int,
    max_model_len: int,
    host_layers: int = 0,
    starts: tuple[tuple[int, str], ...] = (),
    scheme: Scheme = PLAIN,
    share: Share | None = None,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Cancelled = lambda: False,
) -> LoadedModel:
    """Load `checkpoint` in `dtype` onto `device`, but for the first `host_layers` of its layers
    and what comes before them, which go to the CPU; from the layers of `starts` on onto the
    devices there; or the `share` that a rank has of it.

    load_format: "auto" reads the safetensors, "dummy" fills with random weights of `seed`.
    `scheme`: how weights that the checkpoint stores as plain numbers are held.
    progress(stage, done, total) counts bytes. Raises UnsupportedModelError, CheckpointError,
    OutOfMemoryError, or LoadCancelled (nothing of the model is kept then).
    """
    resolve_class(checkpoint)
    if load_format == "auto" and not checkpoint.tensors:
        raise ConfigError(
            f"{checkpoint.name} was opened without its weights.", 'Use load format "dummy".'
        )
    device_map = DeviceMap(device)
    if host_layers or starts:
        device_map = place(build_on_meta(checkpoint.config), device, host_layers, starts)
    request = LoadRequest(
        checkpoint, dtype, device_map, load_format, seed, max_model_len, progress, cancelled, share
    )
    stored = checkpoint.quantization
    try:
        if stored is None and scheme.is_plain:
            built = _build_plain(request)
        else:
            built = build_few_bits(request, scheme, stored)
    finally:
        make_current(device)
    model = built.model
    blocked = block_weights(model, dtype, progress, cancelled)
    each = {name: _linear_outcome(dtype, name, blocked) for name in device_map.devices}
    plain = "; ".join(f"{name}: {text}" if len(each) > 1 else text for name, text in each.items())
    few_bits = outcome(model)
    built.kernels["linear"] = f"{few_bits}; others: {plain}" if few_bits else plain
    model.config._attn_implementation = ATTENTION_NAME  # type: ignore[union-attr]
    model.eval().requires_grad_(False)
    return LoadedModel(
        model,
        weight_bytes(model, device_map),
        device_map,
        built.notices,
        built.kernels,
        built.crossing,
        kv_layout(build_on_meta(checkpoint.config)),
    )


def _build_plain(request: LoadRequest) -> Built:
    """The model with its weights as numbers of `request.dtype`."""
    checkpoint, dtype, device_map = request.checkpoint, request.dtype, request.device_map
    progress, cancelled = request.progress, request.cancelled
    notices: list[str] = []
    if CPU in device_map.devices and dtype in FORMATS:
        progress("Compiling", 0, 0)  # a few seconds, once on a machine
        library()
    # `reference` keeps the class's own names and shapes; `model` gets the replacements
    reference, share = build_on_meta(checkpoint.config), request.share
    prepared = prepare(build_on_meta(request.config), device_map=device_map)
    model = prepared.model
    if request.load_format == "dummy":
        tied = dict(getattr(reference, "all_tied_weights_keys", {}))
        allocate(prepared.slots, tied, dtype, device_map, DtypePlan.of(model))
        fill_dummy(
            prepared.slots, frozenset(tied), seed=request.seed, std=request.std, dtype=dtype,
            progress=progress, cancelled=cancelled, share=share,
        )  # fmt: skip
        copy_tied(prepared.slots, tied, device_map)
    else:
        weights = map_weights(checkpoint, reference)
        notices += left_out_notices(weights)
        with TensorReader(bytes_to_read(weights, reference, share), progress, cancelled) as reader:
            notices += untie_different(weights, reader)
            allocate(prepared.slots, weights.tied, dtype, device_map, DtypePlan.of(model))
            stream(weights, prepared.slots, reference, reader, share=share)
            copy_tied(prepared.slots, weights.tied, device_map)
    compute_buffers(model, device_map)
    notices += freeze_rotary(model, request.max_model_len)
    crossing = crossing_of(model, device_map)
    carry_between_gpus(model, device_map)
    progress("Checking", 0, 0)
    kernels = _check(prepared, request.max_model_len, dtype, notices)
    # with `prepared` go the originals, whose weights are views of those that may be arranged
    return Built(model, notices, kernels, crossing)


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
