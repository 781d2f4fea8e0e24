"""A model on the meta device, with its replacements in place, before it has memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from engine.hardware.device_map import DeviceMap
from engine.kernels.linear import Linear
from engine.kernels.ops import fuses_residual
from engine.models.architecture import build_on_meta, shrink_vocabulary
from engine.models.dummy import DummyFiller
from engine.models.layers.attention import KIND as ATTENTION
from engine.models.layers.attention import attention_swaps
from engine.models.layers.experts import EXPERTS, experts_swaps
from engine.models.layers.norm import NORM_KIND as RMS_NORM
from engine.models.layers.norm import RESIDUAL_KIND as RESIDUAL
from engine.models.layers.norm import norm_swaps, residual_swaps
from engine.models.layers.packing import GATE_UP, QKV, gate_up_swaps, qkv_swaps
from engine.models.layers.replacement import (
    ModuleSwap,
    Swap,
    apply_all,
    keep_what_agrees,
    restore_all,
    unchecked_layers,
)
from engine.models.layers.rotary import APPLY, TABLE, apply_swaps, has_rotary, table_swaps
from engine.models.materialise import (
    DtypePlan,
    Slot,
    Slots,
    allocate,
    compute_buffers,
    freeze_rotary,
    own_slots,
)

_CPU = DeviceMap("cpu")


@dataclass
class Prepared:
    """A model with its replacements. `slots`: where each parameter of the unmodified class is now.
    `homes`: where it is without the replacements."""

    model: nn.Module
    slots: Slots
    homes: Slots
    swaps: list[Swap] = field(default_factory=list)

    def bind(self, name: str) -> None:
        """Give the replaced module a weight as a view, without a copy."""
        slot, home = self.slots[name], self.homes[name]
        if slot.module is not home.module:
            view = slot.view()
            home.module._parameters[home.attribute] = nn.Parameter(view, requires_grad=False)


_KINDS: dict[str, Callable[[nn.Module], Iterable[Swap]]] = {
    QKV: qkv_swaps,
    GATE_UP: gate_up_swaps,
    RMS_NORM: norm_swaps,
    ATTENTION: attention_swaps,
    APPLY: apply_swaps,
    RESIDUAL: residual_swaps,
    EXPERTS: experts_swaps,
}


def prepare(
    model: nn.Module,
    wanted: Callable[[str], bool] = lambda kind: kind != EXPERTS,
    device_map: DeviceMap = _CPU,
) -> Prepared:
    """Apply the wanted kinds of replacements that are known to be faster on their device. All of
    them can be reverted, except the linears, which compute the same and choose among
    implementations."""
    slots = own_slots(model)
    _use_own_linears(model, slots)
    prepared = Prepared(model, slots, dict(slots))
    paths = {id(module): path for path, module in model.named_modules()}
    with_attention = set()
    for swap in [swap for kind, find in _KINDS.items() if wanted(kind) for swap in find(model)]:
        if isinstance(swap, ModuleSwap):
            path = f"{paths[id(swap.parent)]}.{swap.name}".removeprefix(".")
            slots.update({f"{path}.{name}": slot for name, slot in swap.slots.items()})
        elif swap.kind == ATTENTION:
            with_attention.add(id(swap.module))
        elif (swap.kind == APPLY and id(swap.module) in with_attention) or (
            swap.kind == RESIDUAL and not fuses_residual(device_map.of(paths[id(swap.module)]))
        ):
            continue
        prepared.swaps.append(swap)
    apply_all(prepared.swaps)
    return prepared


def _use_own_linears(model: nn.Module, slots: Slots) -> None:
    """Every nn.Linear, and GPT-2's transposed Conv1D, becomes a kernels.linear.Linear."""
    from engine.lazy_transformers import Conv1D

    for parent_path, parent in list(model.named_modules()):
        for name, module in list(parent._modules.items()):
            if module is None:
                continue
            path = f"{parent_path}.{name}".removeprefix(".")
            if type(module) is nn.Linear:
                shape = (module.in_features, module.out_features)
            elif type(module) is Conv1D:
                shape = (module.nx, module.nf)
            else:
                continue
            own = Linear(*shape, bias=module.bias is not None, dtype=module.weight.dtype)
            parent._modules[name] = own
            is_transposed = type(module) is Conv1D
            slots[f"{path}.weight"] = Slot(own, "weight", is_transposed=is_transposed)
            if own.bias is not None:
                slots[f"{path}.bias"] = Slot(own, "bias")


Agreed = tuple[frozenset[str], dict[str, str]]
_MOST_KNOWN = 32
_known: dict[Hashable, Agreed] = {}
"""What was found of configurations whose replacements all agree: a check that failed may have
lacked memory."""
_POOL_NUMBERS = 1 << 18  # a MiB: few against the weights of a layer


def kinds_that_agree(
    config: Any, max_model_len: int, dtype: torch.dtype, device: str, with_experts: bool
) -> Agreed:
    """(kinds of replacements that agree with what they replace, kind -> outcome in words), as
    `device` computes one layer of each structure with random weights. Where all agree, the next
    load of this configuration computes nothing."""
    key = type(config), repr(config.to_dict()), max_model_len, dtype, device, with_experts
    if (found := _known.get(key)) is None:
        found = _compare(config, max_model_len, dtype, device, with_experts)
        if found[0] == found[1].keys():
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = found
    return found


def _compare(
    config: Any, max_model_len: int, dtype: torch.dtype, device: str, with_experts: bool
) -> Agreed:
    with torch.random.fork_rng(devices=[]):
        small = copy.deepcopy(config)
        shrink_vocabulary(small)
        prepared = prepare(
            build_on_meta(small), lambda kind: with_experts or kind != EXPERTS, DeviceMap(device)
        )
        model = prepared.model
        unchecked = {id(layer) for layer in unchecked_layers(model)}
        paths = tuple(f"{path}." for path, m in model.named_modules() if id(m) in unchecked)
        slots = {n: slot for n, slot in prepared.slots.items() if not n.startswith(paths)}
        tied = getattr(model, "all_tied_weights_keys", {})
        own_tied = {n: s for n, s in tied.items() if n in slots}
        allocate(slots, own_tied, dtype, DeviceMap(device), DtypePlan.of(model))
        filler = DummyFiller(0, float(config.hidden_size) ** -0.5, dtype, _POOL_NUMBERS)
        for name, slot in slots.items():
            if name not in tied:
                filler.fill(name, slot.view())
        compute_buffers(model, DeviceMap(device))
        freeze_rotary(model, max_model_len)
        for name in slots:
            prepared.bind(name)
        tables: list[Swap] = list(table_swaps(model, max_model_len, dtype))
        swaps = [*prepared.swaps, *tables]
        apply_all(tables)
        stay, outcomes = keep_what_agrees(model, swaps, dtype)
        restore_all(stay)  # a module that holds its own method would keep its memory for a while
    if not tables and has_rotary(model):
        outcomes[TABLE] = "original (cos and sin are computed at each step)"
    return frozenset(swap.kind for swap in stay), outcomes
