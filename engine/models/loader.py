"""Loads a model: its structure first, then the weights directly into their final place.

source     a checkpoint (`disk_weights`), or random numbers (`dummy`)
prepare    the transformers class, with faster modules where these compute the same
targets    layers that are stored quantized: filled one after the other
slots      all other weights: allocated, then filled from the source
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from engine.attention.interface import NAME
from engine.attention.masks import bind_masks
from engine.errors import ConfigError, LoadCancelled, UnsupportedModelError
from engine.hardware.device_map import DeviceMap
from engine.hardware.devices import CPU, make_current
from engine.kernels.cpu.build import reporting
from engine.kernels.cpu.check import library, remedy
from engine.kernels.measure import Choice
from engine.kernels.packed_codes import WORDS
from engine.kernels.registry import linear_choices
from engine.models.architecture import build_on_meta, resolve_class
from engine.models.checkpoint import Checkpoint
from engine.models.disk_weights import DiskWeights
from engine.models.dummy import DummyWeights
from engine.models.layers.experts import EXPERTS
from engine.models.layers.offload import SplitForward
from engine.models.layers.positions import give_positions
from engine.models.layers.replacement import apply_all
from engine.models.layers.rotary import TABLE, table_swaps
from engine.models.materialise import (
    DtypePlan,
    allocate,
    compute_buffers,
    copy_tied,
    freeze_rotary,
    weight_bytes,
)
from engine.models.placement import place
from engine.models.plain_weights import arrange_weights
from engine.models.prepare import Prepared, kinds_that_agree, prepare
from engine.models.targets import find_head, outcome, targets
from engine.numerics.scheme import PLAIN, Scheme

Progress = Callable[[str, int, int], None]
WeightSource = DiskWeights | DummyWeights


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in eval mode, without gradients. `bytes_on`: measured bytes on each
    device. `kernels`: the implementations by operation, for people. `crossing`: for CPU offload.
    """

    model: nn.Module
    bytes_on: dict[str, int]
    device_map: DeviceMap
    notices: list[str] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    crossing: SplitForward | None = None

    @property
    def weights_bytes(self) -> int:
        return sum(self.bytes_on.values())


@dataclass(frozen=True)
class LoadRequest:
    """A request to load `checkpoint` in `dtype` onto `device`.

    load_format: "auto" reads the safetensors, "dummy" fills with random weights of `seed`. scheme:
    how unquantized weights of the checkpoint are quantized. host_layers: number of first layers
    that go to the CPU, with what comes before them. progress(stage, done, total) counts bytes.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: str
    load_format: str
    seed: int
    max_model_len: int
    host_layers: int = 0
    scheme: Scheme = PLAIN
    progress: Progress = lambda stage, done, total: None
    cancelled: Callable[[], bool] = lambda: False

    @cached_property
    def device_map(self) -> DeviceMap:
        if not self.host_layers:
            return DeviceMap(self.device)
        reference = build_on_meta(self.checkpoint.config)
        return place(reference, self.device, self.host_layers)

    def check(self) -> None:
        """Raise LoadCancelled where the user cancelled."""
        if self.cancelled():
            raise LoadCancelled("Loading was cancelled.")


def load_model(request: LoadRequest) -> LoadedModel:
    """Raises UnsupportedModelError, CheckpointError, OutOfMemoryError, or LoadCancelled (nothing of
    the model is kept then)."""
    resolve_class(request.checkpoint)
    if request.load_format == "auto" and not request.checkpoint.tensors:
        raise ConfigError(
            f"{request.checkpoint.name} was opened without weights.", 'Use load format "dummy".'
        )
    try:
        return _load(request)
    finally:
        make_current(request.device)


def _compile_kernels(request: LoadRequest) -> None:
    """Before anything is measured with them: attention has one for every dtype. The first load on a
    machine takes longer by their 24 s of CPU time."""

    def report(done: int, total: int) -> None:
        stage = f"Compiling CPU kernels, once on this machine: {done} of {total} files"
        request.progress(stage, 0, 0)

    with reporting(report, request.check):
        library()


def _load(request: LoadRequest) -> LoadedModel:
    device_map, dtype, length = request.device_map, request.dtype, request.max_model_len
    request.check()
    if CPU in device_map.devices:
        _compile_kernels(request)
    is_dummy = request.load_format == "dummy"
    source: WeightSource = DummyWeights(request) if is_dummy else DiskWeights(request)
    request.progress("Checking", 0, 0)
    with_experts = any(len(shape) == 3 for shape in source.quantized.values())
    agreed, kernels = _agreed(request, with_experts)
    unfilled = build_on_meta(request.checkpoint.config)
    bind_masks(unfilled, length)
    give_positions(unfilled)
    prepared = prepare(
        unfilled,
        lambda kind: kind in agreed and (with_experts or kind != EXPERTS),
        device_map,
    )
    model = prepared.model
    if with_experts and EXPERTS not in agreed:
        raise UnsupportedModelError(
            f"The experts in {type(model).__name__} do not support quantized weights.",
            "Load it in 16-bit, or choose another model.",
        )
    _fill(prepared, source, request)
    compute_buffers(model, device_map)
    notices = [*source.notices, *_slow_kernels(request), *freeze_rotary(model, length)]
    crossing = SplitForward(model, device_map) if device_map.host_layers else None
    if TABLE in agreed:
        apply_all(list(table_swaps(model, length, dtype)))
    forms = arrange_weights(model, dtype, request.progress, request.cancelled)
    each = {name: _linear_outcome(dtype, name, forms) for name in device_map.devices}
    plain = "; ".join(f"{name}: {text}" if len(each) > 1 else text for name, text in each.items())
    quantized = outcome(model)
    kernels["linear"] = f"{quantized}; other layers: {plain}" if quantized else plain
    model.config._attn_implementation = NAME  # type: ignore[union-attr]
    model.eval().requires_grad_(False)
    bytes_on = weight_bytes(model, device_map)
    return LoadedModel(model, bytes_on, device_map, notices, kernels, crossing)


def _agreed(request: LoadRequest, with_experts: bool) -> tuple[frozenset[str], dict[str, str]]:
    """`kinds_that_agree`, of every device: those that one has, and none refuses."""
    found = []
    for name in request.device_map.devices:
        make_current(name)
        found.append(
            kinds_that_agree(
                request.checkpoint.config, request.max_model_len, request.dtype, name, with_experts
            )
        )
    refused = {k: text for stay, told in found for k, text in told.items() if k not in stay}
    outcomes = {kind: outcome for _, told in found for kind, outcome in told.items()} | refused
    return frozenset().union(*(stay for stay, _ in found)) - refused.keys(), outcomes


def _fill(prepared: Prepared, source: WeightSource, request: LoadRequest) -> None:
    """Give the model its memory and its values."""
    dtype, device_map = request.dtype, request.device_map
    wanted = targets(prepared, source.quantized)
    in_targets = {name for target in wanted for name in target.names}
    slots = {name: slot for name, slot in prepared.slots.items() if name not in in_targets}
    head = None
    if source.scheme.head != "none":
        found = find_head(prepared.model, device_map)
        if isinstance(found, str):
            source.notices.append(f"LM head and embeddings are not quantized: {found}.")
        elif found.head_name not in source.quantized:
            head = found
            for name in (head.head_name, head.embedding_name):
                slots.pop(name, None)
    with source.open(in_targets):
        tied = {name: other for name, other in source.tied.items() if name in slots}
        allocate(slots, tied, dtype, device_map, DtypePlan.of(prepared.model))
        source.fill(slots)
        copy_tied(slots, tied, device_map)
        if head is not None:
            head.quantize(prepared.model, source, dtype, device_map)
        for target in source.in_order(wanted):
            request.check()
            device = device_map.of(target.names[0])
            make_current(device)  # kernels are measured there
            target.fill(source, dtype, torch.device(device))


def _slow_kernels(request: LoadRequest) -> list[str]:
    """Notices of operations without a fast kernel."""
    notices = []
    devices, size = request.device_map.devices, request.scheme.group_size
    multiple = WORDS if any(name != CPU for name in devices) else 2
    if request.scheme.method == "int4" and size % multiple:
        notices.append(
            f"Group size {size} is slow: each matmul dequantizes the weights. The 4-bit kernels "
            f"support multiples of {multiple}."
        )
    if CPU in devices and (why := remedy()):
        notices.append(f"PyTorch replaces the CPU kernels, which is slower: {why}.")
    return notices


def _linear_outcome(dtype: torch.dtype, device: str, forms: Mapping[str, int]) -> str:
    """forms: number of layers whose unquantized weight has each form but the plain one."""
    if device != "cpu":
        return "torch"
    plain = _by_rows(linear_choices(dtype))
    if not forms:
        return plain
    others = "; ".join(f"{title} ({count})" for title, count in forms.items())
    return f"{others}; others: {plain}"


def _by_rows(choices: Sequence[Choice]) -> str:
    if len({c.implementation for c in choices}) == 1:
        return choices[0].implementation
    return ", ".join(f"{c.implementation} for inputs of {c.rows}+ rows" for c in choices)
