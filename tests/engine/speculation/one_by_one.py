"""Rejection sampling as it reads in a book: a request at a time, a draft at a time, on the host.

The engine decides a step's requests together on the device; it must give these very tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.sampling.draw import block_masses, inverse_cdf, uniforms
from engine.sampling.sampler import Sampler, SamplingRow
from engine.speculation.proposer import Proposal
from engine.speculation.verify import Verification, Verified

_ACCEPT, _RESIDUAL = 0x5DEECE66D, 0x2545F4914F6CDD1D


def verify(*args: Any) -> list[Verified]:
    return Verification(*args).read()


def reject_one(
    sampler: Sampler, logits: Tensor, rows: Sequence[SamplingRow], proposal: Proposal
) -> list[int]:
    """What comes out of one request's drafts, from logits[len(drafts) + 1, V]."""
    p = sampler.distributions(logits, rows)
    token_ids: list[int] = []
    for i, row in enumerate(rows):
        if not p[i].any():  # its logits were bad
            break
        if i == len(proposal.token_ids):
            token_ids.append(_draw(p[i], row.seed, row.position))
            break
        draft, q = proposal.token_ids[i], proposal.probabilities[i]
        if _uniform(row.seed ^ _ACCEPT, row.position) * float(q[draft]) < float(p[i, draft]):
            token_ids.append(draft)
            continue
        token_ids.append(_draw(_residual(p[i], q), row.seed ^ _RESIDUAL, row.position))
        break
    return token_ids


def _uniform(seed: int, position: int) -> float:
    return float(uniforms([seed], [position])[0])


def _draw(weights: Tensor, seed: int, position: int) -> int:
    rows = weights.unsqueeze(0)
    u = torch.tensor([_uniform(seed, position)], dtype=torch.float64)
    return int(inverse_cdf(rows, block_masses(rows), u))


def _residual(p: Tensor, q: Tensor) -> Tensor:
    width = min(len(p), len(q))
    rest = p.clone()
    rest[:width] -= q[:width]
    rest.clamp_(min=0.0)
    return rest if rest.any() else p
