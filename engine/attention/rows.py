"""Attention for the query rows of one sequence: causal, with window or chunks, logit softcapping
and sinks."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.interface import AttentionOptions
from engine.attention.pages import Gathered

# Rows of queries that attend together in prefill: the scores of a block of rows and all heads
# should stay in the last-level cache, and the triangle that is computed in vain stays small.
QUERY_BLOCK = 64

FEW_QUERIES = 32
"""From so many tokens of one request on its attention is limited by arithmetic."""


def attend_rows(
    q: Tensor,
    keys: Gathered,
    values: Gathered,
    options: AttentionOptions,
    output: Tensor,
    start: int = 0,
) -> None:
    """Causal attention of the last T tokens of one sequence, written to output[T, Hq, Dv].

    q[T, Hq, Dk], keys of [Hkv, L, Dk], values of [Hkv, L, Dv]; the first key stands at position
    `start`, query t at start + L - T + t. The query heads of a group are rows of one product with
    their key head.
    """
    num_tokens, num_heads, _ = q.shape
    num_kv_heads, length, _ = keys.elements.shape
    group = num_heads // num_kv_heads
    keys, values = keys.for_queries(num_tokens * group), values.for_queries(num_tokens * group)
    context = length - num_tokens
    folded = (q * options.scaling).view(num_tokens, num_kv_heads, group, -1).permute(1, 2, 0, 3)
    sinks = None if options.sinks is None else options.sinks.view(num_kv_heads, group, 1, 1)
    for begin in range(0, num_tokens, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, num_tokens)
        rows, visible = end - begin, context + end
        position = start + context + begin
        first = max(0, options.first_key(position) - start)
        block = folded[:, :, begin:end].reshape(num_kv_heads, group * rows, -1)
        scores = capped(score(block, keys.part(first, visible)), options)
        scores = scores.view(num_kv_heads, group, rows, -1)
        mask_block(scores, rows, start + first, position, options)
        probabilities = softmax_with_sinks(scores, sinks)
        result = weigh(
            probabilities.view(num_kv_heads, group * rows, -1), values.part(first, visible)
        )
        result = result.view(num_kv_heads, group, rows, -1).permute(2, 0, 1, 3)
        output[begin:end] = result.reshape(rows, num_heads, -1).to(output.dtype)


def is_plain(keys: Gathered, values: Gathered, options: AttentionOptions) -> bool:
    """Whether torch's own attention can compute it: no softcapping, no scales per token."""
    return (
        keys.scales is None
        and values.scales is None
        and options.softcap is None
        and options.sinks is None
        and keys.elements.shape[-1] == values.elements.shape[-1]
    )


def attend_plain(
    q: Tensor, keys: Gathered, values: Gathered, bias: Tensor | None, scaling: float
) -> Tensor:
    """q[B, Hkv, G, D] over keys and values of [B * Hkv, L, D], bias[B, 1, 1, L] added to the
    scores: [B, Hkv, G, D]. One operation for scores, softmax and sum: a third of the time of three
    for a single short request."""
    size, num_kv_heads, group, width = q.shape
    shape = (size, num_kv_heads, -1, width)
    if bias is not None:
        bias = bias.expand(size, 1, group, bias.shape[-1])
    return F.scaled_dot_product_attention(
        q, keys.elements.view(shape), values.elements.view(shape), attn_mask=bias, scale=scaling
    )


def score(queries: Tensor, keys: Gathered) -> Tensor:
    """queries[B, R, D] times the keys of B heads: [B, R, L]; in float32 where they are scaled, for
    a 16-bit score would be rounded twice."""
    scores = torch.bmm(queries, keys.elements.transpose(1, 2))
    return scores if keys.scales is None else scores * keys.scales


def weigh(probabilities: Tensor, values: Gathered) -> Tensor:
    """The sum [B, R, D] of the values of B heads by probabilities[B, R, L]."""
    if values.scales is not None:
        probabilities = probabilities * values.scales
    return torch.bmm(probabilities.to(values.elements.dtype), values.elements)


def mask_block(
    scores: Tensor, rows: int, first: int, position: int, options: AttentionOptions
) -> None:
    """Hide from scores[..., rows, keys] the keys after each query (only the last `rows` columns
    can be) and before its window or chunk. Key column c is at position first + c, row r at
    position + r."""
    scores[..., -rows:].masked_fill_(_later(rows, scores.device), float("-inf"))
    if options.first_key(position + rows - 1) > first:
        keys = torch.arange(first, first + scores.shape[-1], device=scores.device)
        places = torch.arange(position, position + rows, device=scores.device)
        scores.masked_fill_(keys < options.first_key(places).unsqueeze(1), float("-inf"))


@functools.cache
def _later(rows: int, device: torch.device) -> Tensor:
    """[rows, rows]: whether the key is after the query."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu_(1)


def capped(scores: Tensor, options: AttentionOptions) -> Tensor:
    if options.softcap is None:
        return scores
    return scores.div_(options.softcap).tanh_().mul_(options.softcap)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of `scores`. `sinks`, one value per head and broadcast over
    the rest, adds to the denominator alone."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    extra = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]
