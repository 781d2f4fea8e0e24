"""From logits to figures of single tokens. Everything in float32 or wider.

All logits of a window never lie in memory at once: of 2,048 tokens over 151,936 entries they are
1.2 GB. They are made and measured in tiles of `rows_per_tile` rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import NumericalError

TILE_BYTES = 32 * 2**20
"""Of one tile of float32 logits. About nine of that size are alive at once: both models' logits and
log probabilities, their difference, the probabilities, and the terms of their divergence."""


_FAR = -20.0  # log(p / q)


class TokenScores(NamedTuple):
    """Of one model, for R tokens: log p of the true token [R], the most probable token [R]."""

    logprob: Tensor
    top: Tensor


class Distances(NamedTuple):
    """Of two models, for R tokens, as float64: KL(reference || candidate) in nats [R], and the
    cosine of the hidden states [R] (None: they differ in width)."""

    kl: Tensor
    cosine: Tensor | None


def rows_per_tile(vocab_size: int) -> int:
    return max(1, TILE_BYTES // (4 * vocab_size))


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax in float32 of logits [R, vocab]. Raises NumericalError for NaN or infinity."""
    logits = logits.float()
    if not bool(torch.isfinite(logits).all()):
        raise NumericalError(
            "The model produced NaN or infinite logits while the text was read.",
            "Try float32 in place of a 16-bit precision; if it stays, the checkpoint is damaged.",
        )
    return torch.log_softmax(logits, dim=-1)


def score(logprobs: Tensor, targets: Tensor) -> TokenScores:
    """logprobs [R, vocab], targets [R]."""
    targets = targets.to(logprobs.device)
    chosen = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)
    return TokenScores(chosen, logprobs.argmax(dim=-1))


def divergence(reference: Tensor, candidate: Tensor) -> Tensor:
    """KL(reference || candidate) [R] in float64 of log probabilities [R, vocab] each.

    The sum of p log(p / q) + q - p, whose last two come to nothing together: no term is negative,
    and one of almost equal probabilities is as small as the square of their difference. The first
    alone leaves what rounding the logarithms left, 1e-7, of two models that say the same."""
    p, q, gap = reference.exp(), candidate.exp(), reference - candidate
    near = torch.expm1(-gap).add_(gap).mul_(p)  # e^-gap, which is q / p, may be infinite far away
    terms = torch.where(gap > _FAR, near, p.mul_(gap - 1).add_(q))
    return terms.sum(dim=-1, dtype=torch.float64).clamp_(min=0.0)


def cosine(reference: Tensor, candidate: Tensor) -> Tensor | None:
    """Of states [R, hidden] each; None where their widths differ."""
    if reference.shape[1] != candidate.shape[1]:
        return None
    similarity = F.cosine_similarity(reference.double(), candidate.double(), dim=-1)
    return similarity.clamp_(-1.0, 1.0)
