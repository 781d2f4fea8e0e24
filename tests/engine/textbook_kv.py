"""What a model says when its keys and values are rounded to 8 bits: the plainest statement of it.

Every token is computed from the whole sequence without a cache; each vector of K and V is replaced
by what 8 bits leave of it before the textbook's attention.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.attention.interface import NAME, AttentionOptions, active, register
from engine.numerics.kv_dtype import parse_kv_dtype
from engine.runner.model_runner import forward
from tests.engine.tiny_models import Reference


def attention(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """One sequence, every score of it: q[T, Hq, D] are the last T of k[L, Hkv, D]."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,lhd->htl", q, keys) * options.scaling
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    length, tokens = k.shape[0], q.shape[0]
    ages = torch.arange(length - tokens, length).unsqueeze(1) - torch.arange(length)
    hidden = ages < 0
    if options.window is not None:
        hidden |= ages >= options.window
    if options.chunk is not None:
        places = torch.arange(length) // options.chunk
        hidden |= places[length - tokens :].unsqueeze(1) != places
    weights = scores.masked_fill(hidden, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)
    if options.sinks is not None:
        total = total + options.sinks.exp().view(-1, 1, 1)
    return torch.einsum("htl,lhd->thd", weights / total, values)


def rounded(vectors: Tensor, name: str) -> Tensor:
    """vectors[..., D] as they come back from 8 bits and a bfloat16 scale."""
    if name == "auto":
        return vectors
    largest = vectors.abs().amax(-1, keepdim=True)
    scale = (largest / (127 if name == "int8" else 448)).bfloat16().float()
    codes = torch.nan_to_num(vectors / scale)
    codes = codes.round() if name == "int8" else codes.to(torch.float8_e4m3fn).float()
    return codes * scale


class _Rounding:
    """Stands where the paged cache does."""

    def __init__(self, kv_dtype: str) -> None:
        self.kv_dtype = parse_kv_dtype(kv_dtype)

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        keys, values = self.kv_dtype
        return attention(q, rounded(k, keys), rounded(v, values), options)


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], max_tokens: int, kv_dtype: str) -> Reference:
    """Greedy continuation, and the log probability of each chosen token."""
    register()
    model = copy.deepcopy(model)
    model.set_attn_implementation(NAME)
    tokens, logprobs = list(prompt), []
    for _ in range(max_tokens):
        with active(_Rounding(kv_dtype)):
            positions = torch.arange(len(tokens))
            logits = forward(model, torch.tensor(tokens), positions, positions[-1:])
        row = logits[0].log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
    return Reference(tokens[len(prompt) :], logprobs)
