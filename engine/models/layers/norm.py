"""RMSNorm in fewer passes over the activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engine.kernels.ops import add_rms_norm, rms_norm
from engine.models.layers.replacement import ForwardSwap, ModuleSwap
from engine.models.materialise import Slot

NORM_KIND = "rms norm"


class FusedRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (offset + weight), over the last dimension, in float32 inside.

    `weight` [width] is what the checkpoint holds; `offset` is 1 for the families that store the
    distance from one (gemma), else 0.
    """

    weight: nn.Parameter

    def __init__(self, eps: float, offset: float, like: torch.Tensor) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(torch.empty_like(like), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)


def norm_swaps(model: nn.Module) -> Iterator[ModuleSwap]:
    """A replacement for every RMSNorm whose class behaves as one of the two known forms."""
    known: dict[type[nn.Module], float | None] = {}
    for parent in list(model.modules()):
        for name, module in list(parent._modules.items()):
            if module is None or not _looks_like_rms_norm(module):
                continue
            kind = type(module)
            if kind not in known:
                known[kind] = _offset_of(module)
            offset = known[kind]
            if offset is not None:
                fused = FusedRMSNorm(_eps(module), offset, module.get_parameter("weight"))
                slots = {"weight": Slot(fused, "weight")}
                yield ModuleSwap(NORM_KIND, parent, name, module, fused, slots)


def _looks_like_rms_norm(module: nn.Module) -> bool:
    parameters = dict(module.named_parameters())
    return (
        "RMSNorm" in type(module).__name__
        and not isinstance(module, FusedRMSNorm)
        and set(parameters) == {"weight"}
        and parameters["weight"].dim() == 1
        and not list(module.children())
        and not list(module.buffers())
        and _eps(module) is not None
    )


def _eps(module: nn.Module) -> Any:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def _offset_of(module: nn.Module) -> float | None:
    """0 or 1 as the class adds it to the weight, found by computing; None if neither fits."""
    generator = torch.Generator().manual_seed(0)
    width = module.get_parameter("weight").shape[0]
    x = torch.randn(3, width, generator=generator)
    weight = torch.rand(width, generator=generator) + 0.5
    # on a probe with real memory: the module itself is still on the meta device
    probe = object.__new__(type(module))
    probe.__dict__.update(module.__dict__)
    probe._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    try:
        expected = probe(x)
    except Exception:  # whatever its forward wants, it is not the known pattern
        return None
    for offset in (0.0, 1.0):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + _eps(module))
        if isinstance(expected, torch.Tensor) and torch.allclose(
            expected, x * scale * (offset + weight), rtol=1e-5, atol=1e-6
        ):
            return offset
    return None


RESIDUAL_KIND = "residual norm"

_KNOWN = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "MixtralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3MoeDecoderLayer",
}
"""Classes whose forward is: norm, attention, addition, norm, MLP, addition."""

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def residual_swaps(model: nn.Module) -> Iterator[ForwardSwap]:
    """For each decoder layer of a known class that has the expected parts and no others."""
    for module in model.modules():
        if type(module).__name__ in _KNOWN and set(module._modules) == _PARTS:
            yield ForwardSwap(RESIDUAL_KIND, module, forward)


def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """As the class's own, for hidden_states [1, T, H]."""
    norm = self.post_attention_layernorm
    if not isinstance(norm, FusedRMSNorm):
        own: Tensor = type(self).forward(self, hidden_states, **kwargs)
        return own
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, total = add_rms_norm(attended, hidden_states, norm.weight, norm.eps, norm.offset)
    return total + self.mlp(normed)
