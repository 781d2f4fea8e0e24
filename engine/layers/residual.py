"""Decoder layers that add the attention's output and norm the sum in one operation.

Where that operation is a kernel of its own (on a GPU) it saves a launch and a pass over the
activations in every layer; elsewhere nothing, so that the layers are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from engine.kernels.ops import add_rms_norm
from engine.layers.norm import FusedRMSNorm
from engine.layers.swap import ForwardSwap

KIND = "residual norm"

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
            yield ForwardSwap(KIND, module, forward)


def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """As the class's own, for hidden_states [1, T, H]."""
    norm = self.post_attention_layernorm
    if not isinstance(norm, FusedRMSNorm):
        own: Tensor = type(self).forward(self, hidden_states, **kwargs)
        return own
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, total = add_rms_norm(attended, hidden_states, norm.weight, norm.eps, norm.offset)
    return total + self.mlp(normed)
