"""Which replacements agree with what they replace, tried before the weights are read.

Weights in few bits cannot be seen through views by the modules that were replaced, so that kinds of
replacements are compared on random weights: one layer of each structure at its real shape, with a
small vocabulary. Memory of those layers is taken, and given back before loading begins.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from engine.device_map import DeviceMap
from engine.layers.rotary import TABLE, has_rotary, table_swaps
from engine.layers.swap import Swap, restore_all
from engine.layers.verify import keep_what_agrees, unchecked_layers
from engine.loading.architecture import build_on_meta
from engine.loading.dummy import DummyFiller
from engine.loading.materialise import DtypePlan, Slots, allocate, compute_buffers
from engine.loading.prepare import Prepared, prepare

_VOCAB_SIZE = 128
_POOL_NUMBERS = 1 << 18  # a MiB: few against the weights of a layer


def kinds_that_agree(
    config: Any, max_model_len: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[frozenset[str], dict[str, str]]:
    """(kinds of replacements that may stay, kind -> outcome in words), as `device` computes."""
    with torch.random.fork_rng(devices=[]):
        small = build_on_meta(_with_small_vocabulary(config))
        prepared = prepare(small, lambda kind: True, DeviceMap(device))
        model = prepared.model
        slots = _of_checked_layers(prepared)
        tied = getattr(model, "all_tied_weights_keys", {})
        own_tied = {n: s for n, s in tied.items() if n in slots}
        allocate(slots, own_tied, dtype, DeviceMap(device), DtypePlan.of(model))
        filler = DummyFiller(0, float(config.hidden_size) ** -0.5, dtype, _POOL_NUMBERS)
        for name, slot in slots.items():
            if name not in tied:
                filler.fill(name, slot.view())
        compute_buffers(model, DeviceMap(device))
        for name in slots:
            prepared.bind(name)
        tables: list[Swap] = list(table_swaps(model, max_model_len, dtype))
        swaps = [*prepared.swaps, *tables]
        for swap in swaps:
            swap.apply()
        stay, outcomes = keep_what_agrees(model, swaps, dtype)
        restore_all(stay)  # a module that holds its own method would keep its memory for a while
    if not tables and has_rotary(model):
        outcomes[TABLE] = "original (computed in each step)"
    return frozenset(swap.kind for swap in stay), outcomes


def _of_checked_layers(prepared: Prepared) -> Slots:
    unchecked = {id(layer) for layer in unchecked_layers(prepared.model)}
    paths = tuple(f"{p}." for p, m in prepared.model.named_modules() if id(m) in unchecked)
    return {name: slot for name, slot in prepared.slots.items() if not name.startswith(paths)}


def _with_small_vocabulary(config: Any) -> Any:
    small = copy.deepcopy(config)
    small.vocab_size = _VOCAB_SIZE
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    return small
