"""Reversible replacements of parts of a model, and the check whether they compute the same.

Before the weights are read, each kind of replacement is compared with the original on layers of the
model's shape with random weights. Kinds that agree are applied, so that the weights are written
directly to where the replacement needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn

from engine.errors import UnsupportedModelError
from engine.models.materialise import Slots
from engine.numerics.rounding import TOLERANCE


@dataclass(frozen=True)
class ModuleSwap:
    """Replaces the module parent.<name>, `original`, with `replacement`. Swaps of one `kind` are
    checked and reverted together. `slots`: where the original's parameters are in the replacement.
    """

    kind: str
    parent: nn.Module
    name: str
    original: nn.Module
    replacement: nn.Module
    slots: Slots = field(default_factory=dict)

    def apply(self) -> None:
        self.parent._modules[self.name] = self.replacement

    def restore(self) -> None:
        self.parent._modules[self.name] = self.original


@dataclass(frozen=True)
class ForwardSwap:
    """Replaces the forward of one module; its class is not changed."""

    kind: str
    module: nn.Module
    forward: Any  # a function whose first argument is the module

    def apply(self) -> None:
        self.module.forward = MethodType(self.forward, self.module)

    def restore(self) -> None:
        self.module.__dict__.pop("forward", None)


Swap = ModuleSwap | ForwardSwap


def apply_all(swaps: Iterable[Swap]) -> None:
    for swap in swaps:
        swap.apply()


def restore_all(swaps: Iterable[Swap]) -> None:
    """In reverse order: a later replacement may be inside an earlier one."""
    for swap in reversed(list(swaps)):
        swap.restore()


_NUM_TOKENS = 6
_MAX_LAYERS = 3
_lock = threading.Lock()


def keep_what_agrees(
    model: nn.Module, swaps: Sequence[Swap], dtype: torch.dtype
) -> tuple[list[Swap], dict[str, str]]:
    """Compare each kind of replacement with the originals and take out those that differ.

    All swaps are applied when this is called; the originals must see the same weights. Runs the
    body of `model` on a few tokens through one layer of each structure.
    Returns the swaps that stay applied, and kind -> outcome in words.
    """
    kinds = list(dict.fromkeys(swap.kind for swap in swaps))
    restore_all(swaps)
    stay: list[Swap] = []
    outcomes: dict[str, str] = {}
    with _short_body(model) as body, torch.inference_mode():
        try:
            expected = _run(body)
        except Exception as error:  # without a reference nothing can be checked: nothing stays
            return [], {k: f"original (check failed: {type(error).__name__})" for k in kinds}
        for kind in kinds:
            group = [swap for swap in swaps if swap.kind == kind]
            apply_all(group)
            try:
                difference = _relative_difference(_run(body), expected)
                reason = f"relative error {difference:.1e}"
            except Exception as error:  # any failure means that the pattern did not fit
                difference, reason = float("inf"), f"failed: {type(error).__name__}"
            if difference <= TOLERANCE[dtype]:
                stay += group
                # a packed linear is in the place of three
                count = sum(getattr(s, "name", "") not in ("k_proj", "v_proj") for s in group)
                places = f"{count} {'place' if count == 1 else 'places'}"
                outcomes[kind] = f"fused in {places}, relative error {difference:.0e}"
            else:
                restore_all(group)
                outcomes[kind] = f"original ({reason})"
    return stay, outcomes


def _run(body: nn.Module) -> torch.Tensor:
    """Hidden states [1, T, H] of a few fixed tokens."""
    parameter = next(body.parameters())
    vocabulary = body.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens = torch.arange(1, _NUM_TOKENS + 1, device=parameter.device) * 7919 % vocabulary
    positions = torch.arange(_NUM_TOKENS, device=parameter.device)
    output = body(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    hidden: torch.Tensor = output[0]
    return hidden


def _relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    scale = expected.float().norm().clamp_min(1e-20)
    difference = float((found.float() - expected.float()).norm() / scale)
    return difference if difference == difference else float("inf")


@contextmanager
def _short_body(model: nn.Module) -> Iterator[nn.Module]:
    """The model without its head, cut to one layer of each structure, with plain attention."""
    body: nn.Module = model.base_model  # type: ignore[assignment]
    config: Any = model.config
    path, layers = list_of_layers(body)
    parent, name = body.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    before = config._attn_implementation
    with _lock:
        parent._modules[name] = nn.ModuleList(_distinct(layers))
        config._attn_implementation = "eager"
        try:
            yield body
        finally:
            config._attn_implementation = before
            parent._modules[name] = layers


def list_of_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Path and list of the decoder layers. Raises UnsupportedModelError where there is none."""
    config: Any = model.config
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return path, module
    raise UnsupportedModelError(
        f"{type(model).__name__} has no module list with {config.num_hidden_layers} layers.",
        "Choose a decoder-only model with standard attention (Llama, Qwen3, Mistral, Gemma...).",
    )


def unchecked_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that the check does not run, because others have their structure."""
    _, layers = list_of_layers(model)
    checked = {id(layer) for layer in _distinct(layers)}
    return [layer for layer in layers if id(layer) not in checked]


def _distinct(layers: nn.ModuleList) -> list[nn.Module]:
    """The first layer of each structure (classes of its modules) on each device, in order; where
    some have memory, of these."""
    devices = [next(layer.parameters()).device for layer in layers]
    some_have = any(device.type != "meta" for device in devices)
    found: dict[torch.device, dict[tuple[str, ...], nn.Module]] = {}
    for layer, device in zip(layers, devices, strict=True):
        if device.type == "meta" and some_have:
            continue
        structure = tuple(f"{n}:{type(m).__name__}" for n, m in layer.named_modules())
        found.setdefault(device, {}).setdefault(structure, layer)
    return [layer for kinds in found.values() for layer in list(kinds.values())[:_MAX_LAYERS]]
