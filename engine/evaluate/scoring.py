"""Scores of single tokens from logits. Everything in float32 or wider.

The logits of a whole window are never in memory at once: 2,048 tokens over a vocabulary of 151,936
take 1.2 GB. They are computed and scored in tiles of `rows_per_tile` rows.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import NumericalError
from engine.evaluate.head import Head
from engine.evaluate.reading import EncodedText
from engine.evaluate.report import (
    FEWEST_FOR_P99,
    Alternative,
    Divergence,
    Loss,
    Similarity,
    Spread,
    WorstToken,
)
from engine.evaluate.task import Cancelled, check
from engine.text.tokenizer import Tokenizer

TILE_BYTES = 32 * 2**20
"""Of one tile of float32 logits. About nine of that size are alive at once: both models' logits and
log probabilities, their difference, the probabilities, and the terms of their divergence."""


_FAR = -20.0  # log(p / q)


def rows_per_tile(vocab_size: int) -> int:
    return max(1, TILE_BYTES // (4 * vocab_size))


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax in float32 of logits [R, vocab]. Raises NumericalError for NaN or infinity."""
    logits = logits.float()
    if not bool(torch.isfinite(logits).all()):
        raise NumericalError(
            "The model produced NaN or infinite logits.",
            "Try float32. If that fails too, the checkpoint is corrupt.",
        )
    return torch.log_softmax(logits, dim=-1)


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


Floats = npt.NDArray[np.float64]

NUM_ALTERNATIVES = 3
EXCERPT_TOKENS = 24
"""Tokens of the text that are shown before and after one of the worst."""

_LARGEST_EXPONENT = 700.0  # math.exp gives up above 709; a perplexity of 1e304 says enough


class _Worst(NamedTuple):
    """Sorted by kl, then by position: the earlier of two equal ones is kept."""

    kl: float
    order: int
    reference: tuple[Tensor, Tensor]  # log probabilities and ids of the most probable tokens
    candidate: tuple[Tensor, Tensor]


class Scores:
    """The scored tokens of one text, in the order of the text. With a reference: `add` takes both
    models' states; without, the candidate's alone."""

    def __init__(self, text: EncodedText, num_worst: int) -> None:
        self._text = text
        self._positions = text.scored
        targets = [text.token_ids[i] for i in self._positions]
        self._targets = torch.tensor(targets, dtype=torch.int64)
        self._num_worst = num_worst
        self._worst: list[_Worst] = []
        self._columns: dict[str, list[Tensor]] = {}
        self.count = 0

    def add(
        self,
        head: Head,
        states: Tensor,
        reference: tuple[Head, Tensor] | None,
        cancelled: Cancelled = lambda: False,
    ) -> None:
        """The next tokens: states [R, hidden] of the candidate, and (head, states) of the
        reference."""
        step = rows_per_tile(head.vocab_size)
        for begin in range(0, len(states), step):
            check(cancelled)
            tile = slice(begin, begin + step)
            other = None if reference is None else (reference[0], reference[1][tile])
            self._add_tile(head, states[tile], other)

    def _add_tile(self, head: Head, states: Tensor, reference: tuple[Head, Tensor] | None) -> None:
        targets = self._targets[self.count : self.count + len(states)]
        logprobs = log_probabilities(head.logits(states))
        at = targets.to(logprobs.device).unsqueeze(1)
        self._keep("candidate", logprobs.gather(1, at).squeeze(1))
        if reference is not None:
            # the two sides may be on two devices
            expected_logits = reference[0].logits(reference[1]).to(logprobs.device)
            expected_logprobs = log_probabilities(expected_logits)
            kl = divergence(expected_logprobs, logprobs)
            self._keep("reference", expected_logprobs.gather(1, at).squeeze(1))
            self._keep("agreement", logprobs.argmax(dim=-1) == expected_logprobs.argmax(dim=-1))
            self._keep("kl", kl)
            similarity = cosine(reference[1].to(states.device), states)
            if similarity is not None:
                self._keep("cosine", similarity)
            self._keep_worst(kl, expected_logprobs, logprobs)
        self.count += len(states)

    def _keep(self, name: str, values: Tensor) -> None:
        self._columns.setdefault(name, []).append(values.cpu().double())

    def _keep_worst(self, kl: Tensor, reference: Tensor, candidate: Tensor) -> None:
        for row in kl.topk(min(self._num_worst, len(kl))).indices.tolist():
            key = (float(kl[row]), -(self.count + row))
            if len(self._worst) == self._num_worst and key <= self._worst[0][:2]:
                break
            most = min(NUM_ALTERNATIVES, reference.shape[1])
            entry = _Worst(*key, reference[row].topk(most), candidate[row].topk(most))
            if len(self._worst) < self._num_worst:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heapreplace(self._worst, entry)

    def loss(self, side: str, num_bytes: int) -> Loss:
        """Of the "candidate" or the "reference"; `num_bytes`: UTF-8 bytes of the tokens."""
        nll = -self._column(side)
        mean = float(nll.mean())
        return Loss(
            mean_nll=mean,
            perplexity=math.exp(min(mean, _LARGEST_EXPONENT)),
            bits_per_byte=float(nll.sum()) / math.log(2) / max(1, num_bytes),
        )

    def divergence(self) -> Divergence:
        change = np.abs(self._column("candidate") - self._column("reference"))
        kl = self._column("kl")
        return Divergence(
            kl=spread(kl),
            top1_agreement=float(self._column("agreement").mean()),
            similarity=similarity(self._column("cosine")) if "cosine" in self._columns else None,
            mean_abs_logprob_change=float(change.mean()),
            kl_percentiles=tuple(np.percentile(kl, range(101)).tolist()),
        )

    def worst(self, tokenizer: Tokenizer) -> tuple[WorstToken, ...]:
        """The tokens with the largest divergence, largest first; those of 0 are left out."""
        logprobs = self._column("reference"), self._column("candidate")
        return tuple(
            self._describe(entry, logprobs, tokenizer)
            for entry in sorted(self._worst, key=lambda e: e[:2], reverse=True)
            if entry.kl > 0.0
        )

    def _column(self, name: str) -> Floats:
        return torch.cat(self._columns[name]).numpy()

    def _describe(
        self, entry: _Worst, logprobs: tuple[Floats, Floats], tokenizer: Tokenizer
    ) -> WorstToken:
        place = -entry.order
        ids, position = self._text.token_ids, self._positions[place]
        before = ids[max(0, position - EXCERPT_TOKENS) : position]
        return WorstToken(
            position=position,
            token_id=ids[position],
            token=tokenizer.token_text(ids[position]),
            before=tokenizer.decode(before),
            after=tokenizer.decode(ids[position + 1 : position + 1 + EXCERPT_TOKENS]),
            kl=entry.kl,
            reference_logprob=float(logprobs[0][place]),
            candidate_logprob=float(logprobs[1][place]),
            reference_top=_alternatives(entry.reference, tokenizer),
            candidate_top=_alternatives(entry.candidate, tokenizer),
        )


def spread(values: Floats) -> Spread:
    p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
    return Spread(
        mean=float(values.mean()),
        p50=p50,
        p90=p90,
        p99=p99 if len(values) >= FEWEST_FOR_P99 else None,
        max=float(values.max()),
        num_samples=len(values),
    )


def similarity(cosines: Floats) -> Similarity:
    enough = len(cosines) >= FEWEST_FOR_P99
    return Similarity(
        mean=float(cosines.mean()),
        p1=float(np.percentile(cosines, 1)) if enough else None,
        min=float(cosines.min()),
        num_samples=len(cosines),
    )


def _alternatives(top: tuple[Tensor, Tensor], tokenizer: Tokenizer) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(int(token_id), tokenizer.token_text(int(token_id)), float(value))
        for value, token_id in zip(*top, strict=True)
    )
