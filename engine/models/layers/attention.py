"""Attention modules with fewer and larger operations around the attention itself.

A decode step of few tokens spends much of its time between matmuls: after a matmul that streamed
weights through the caches every small operation takes 3 to 5 microseconds. transformers' forward
normalizes, rotates and transposes queries and keys separately. Here both go through each operation
together, without transposes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.interface import NAME, AttentionOptions, attend, visible_to
from engine.kernels.ops import HeadNorms, rotate_heads
from engine.models.layers.norm import FusedRMSNorm
from engine.models.layers.packing import PackedLinear
from engine.models.layers.replacement import ForwardSwap

KIND = "attention"

_WINDOW_OF = {
    "LlamaAttention": "",
    "MistralAttention": "config",
    "MixtralAttention": "config",
    "Qwen2Attention": "module",
    "Qwen3Attention": "module",
    "Qwen3MoeAttention": "module",
}
"""Classes whose forward is: q, k, v; q_norm and k_norm where there are such modules; halves turned;
attention with `scaling` and a sliding window; o_proj. And who has the window. By name, since the
check on a few tokens could not detect a window of 4,096."""


def attention_swaps(model: nn.Module) -> Iterator[ForwardSwap]:
    """For each attention module of a known class whose parts are as expected."""
    for module in model.modules():
        if type(module).__name__ in _WINDOW_OF and _is_known(module):
            yield ForwardSwap(KIND, module, forward)


def _is_known(module: nn.Module) -> bool:
    names = set(module._modules)
    norms = names & {"q_norm", "k_norm"}
    return (
        names - norms == {"q_proj", "k_proj", "v_proj", "o_proj"}
        and len(norms) in (0, 2)
        and isinstance(getattr(module, "head_dim", None), int)
        and isinstance(getattr(module, "scaling", None), float)
        and not list(module.parameters(recurse=False))
    )


def forward(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """As the class's own, for hidden_states [1, T, H]; a call of another kind is left to that."""
    # past_key_values until transformers 5.23, cache since
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    if cache is not None or position_embeddings is None or len(hidden_states) != 1:
        own = type(self).forward
        return own(
            self, hidden_states, position_embeddings=position_embeddings,
            attention_mask=attention_mask, **kwargs,
        )  # fmt: skip
    width = self.head_dim
    heads, values = _projected(self, hidden_states[0])
    heads = heads.view(len(heads), -1, width)
    values = values.view(len(values), -1, width)
    num_queries = heads.shape[1] - values.shape[1]
    cos, sin = position_embeddings
    heads = _turned(self, heads, num_queries, cos[0], sin[0])
    queries, keys = heads[:, :num_queries], heads[:, num_queries:]
    window = visible_to(self, _window(self)).window
    if self.config._attn_implementation == NAME:
        output = attend(
            self.layer_idx, queries, keys, values, AttentionOptions(self.scaling, window)
        )
    else:
        output = _by_transformers(self, queries, keys, values, attention_mask, window)
    return self.o_proj(output.reshape(1, len(heads), -1)), None


def _window(module: Any) -> int | None:
    match _WINDOW_OF[type(module).__name__]:
        case "module":
            return module.sliding_window
        case "config":
            return getattr(module.config, "sliding_window", None)
    return None


def _projected(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H] -> queries and keys beside each other [T, (Hq + Hkv) D], values [T, Hkv D]."""
    first = module.q_proj
    if type(first) is PackedLinear and len(first.bounds) == 4:
        both, end = first.bounds[2:]
        queries_and_keys, values = first.product(x).split((both, end - both), dim=-1)
        return queries_and_keys, values
    return torch.cat((first(x), module.k_proj(x)), dim=-1), module.v_proj(x)


def _turned(module: Any, heads: Tensor, num_queries: int, cos: Tensor, sin: Tensor) -> Tensor:
    """heads [T, Hq + Hkv, D], each normed by the module for its kind where there are such, and
    turned."""
    if "q_norm" not in module._modules:
        return rotate_heads(heads, cos, sin)
    first, second = module.q_norm, module.k_norm
    if (
        isinstance(first, FusedRMSNorm)
        and isinstance(second, FusedRMSNorm)
        and (first.eps, first.offset) == (second.eps, second.offset)
    ):
        norms = HeadNorms(first.weight, second.weight, num_queries, first.eps, first.offset)
        return rotate_heads(heads, cos, sin, norms)
    queries, keys = first(heads[:, :num_queries]), second(heads[:, num_queries:])
    return rotate_heads(torch.cat((queries, keys), dim=1), cos, sin)


def _by_transformers(
    module: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None,
    window: int | None,
) -> Tensor:  # fmt: skip
    """By the attention that the configuration names: [1, T, Hq, D]."""
    from engine.lazy_transformers import ALL_ATTENTION_FUNCTIONS

    eager = sys.modules[type(module).__module__].eager_attention_forward
    chosen = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager)
    by_head = (each.transpose(0, 1).unsqueeze(0) for each in (queries, keys, values))
    output: Tensor = chosen(
        module, *by_head, mask, dropout=0.0, scaling=module.scaling, sliding_window=window
    )[0]
    return output
