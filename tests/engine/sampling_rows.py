"""Rows to sample, and distributions written out, for the tests of the sampler."""

from __future__ import annotations

import numpy as np
import torch

from engine.sampling.draw import block_masses
from engine.sampling.filters import Filters
from engine.sampling.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams

VOCAB = 700  # not a multiple of the block size
EOS = frozenset({2, 5})


def row(
    params: SamplingParams, *, seed=0, position=0, prompt=(), output=(), request_id="r", eos=EOS
) -> SamplingRow:
    return SamplingRow(request_id, params, seed, position, list(prompt), list(output), eos)


def random_logits(seed: int, rows: int = 1, vocab: int = VOCAB, scale: float = 3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * scale


def sample_one(logits: torch.Tensor, r: SamplingRow) -> int:
    (token,) = Sampler(logits.shape[1]).sample(logits, [r]).token_ids
    return token


def reference_probs(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The distribution of one row in float64, written out."""
    x = logits.double().numpy() / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k > 0:
        p[order[params.top_k :]] = 0
    mass_before = np.cumsum(p[order] / p.sum()) - p[order] / p.sum()
    if params.top_p < 1:
        p[order[mass_before >= params.top_p]] = 0
    return p / p.sum()


def kept_tokens(logits: torch.Tensor, *params: SamplingParams) -> list[set[int]]:
    """What the filters keep of each row of temperature-scaled logits whose width is padded."""
    width = -(-logits.shape[1] // 256) * 256
    scaled = torch.full((len(params), width), -torch.inf)
    scaled[:, : logits.shape[1]] = logits
    scaled -= scaled.amax(1, keepdim=True)
    probs = torch.softmax(scaled, 1)
    masses = Filters(params, logits.shape[1]).apply(scaled, probs, lambda: torch.empty_like(probs))
    torch.testing.assert_close(masses, block_masses(probs))
    return [set(p.nonzero().flatten().tolist()) for p in probs]
