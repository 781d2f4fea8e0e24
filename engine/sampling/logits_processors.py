"""Changes to the logits that a request's parameters ask for: logit_bias, min_tokens, penalties.

The first two change a few tokens per row, in one scatter over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch.transfer import upload, upload_places
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow

_LARGEST_BIAS = 1e30
"""Larger ones would overflow float32 when added; this much already decides or forbids."""


def apply_edits(work: Tensor, rows: Sequence[SamplingRow], vocab_size: int) -> None:
    """Add logit_bias, then mask the tokens that min_tokens forbids, in `work` [R, padded_vocab].

    Token ids outside the vocabulary have no logit and are skipped (adding such a request is
    refused before).
    """
    width = work.shape[1]
    biased: list[int] = []
    bias: list[float] = []
    masked: list[int] = []
    for i, row in enumerate(rows):
        for token_id, value in row.params.logit_bias.items():
            if token_id < vocab_size:
                biased.append(i * width + token_id)
                bias.append(min(max(value, -_LARGEST_BIAS), _LARGEST_BIAS))
        if len(row.output_token_ids) < row.params.min_tokens:
            # EOS too with ignore_eos, as in vLLM: a forced length should not fill with end markers
            ends = row.eos_token_ids.union(row.params.stop_token_ids)
            masked += [i * width + t for t in ends if 0 <= t < vocab_size]
    flat = work.view(-1)
    if biased:
        index = upload_places(biased, work.device)
        flat[index] += upload(bias, work.device, torch.float32)
    if masked:
        flat.index_fill_(0, upload_places(masked, work.device), -torch.inf)


class SeenTokens:
    """The distinct tokens of one request: occurrences in the output, and whether they are in the
    prompt. Token ids outside the vocabulary are ignored."""

    def __init__(self, prompt_token_ids: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        prompt = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        prompt = prompt[(prompt >= 0) & (prompt < vocab_size)]
        self._num_prompt_ids = len(prompt)  # these come first in the arrays
        self._ids = prompt
        self._counts = np.zeros(len(prompt), dtype=np.float32)
        self._slots = {int(token): slot for slot, token in enumerate(prompt)}
        self._outputs: list[int] = []

    def follow(self, output_token_ids: Sequence[int]) -> None:
        """Count exactly these output tokens: adds what is new, and takes back what is gone (the
        rejected tokens of a speculative step, or a sequence that started again)."""
        known = self._outputs
        # Comparing in C is microseconds for thousands of tokens, and makes the state always right.
        if list(output_token_ids[: len(known)]) != known:
            self._take_back(_common_length(known, output_token_ids))
        self._add(output_token_ids[len(self._outputs) :])

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens, [N]."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Occurrences in the output, [N]."""
        return self._counts[: len(self._slots)]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """In the prompt or in the output, [N]; False for tokens taken back."""
        seen = self.counts > 0
        seen[: self._num_prompt_ids] = True
        return seen

    def _add(self, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            self._outputs.append(token)
            if 0 <= token < self._vocab_size:
                slot = self._slot(token)  # may replace the arrays: before they are indexed
                self._counts[slot] += 1

    def _take_back(self, length: int) -> None:
        for token in self._outputs[length:]:
            if token in self._slots:
                self._counts[self._slots[token]] -= 1
        del self._outputs[length:]

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            room = max(64, slot)
            self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
        self._ids[slot] = token
        return slot


class PenalizedRow(NamedTuple):
    """A row of `work`, with copies of its request's state at that position."""

    row: int
    params: SamplingParams
    ids: NDArray[np.int64]
    counts: NDArray[np.float32]
    seen: NDArray[np.bool_]


def apply_penalties(
    work: Tensor, rows: Sequence[PenalizedRow], unread: Tensor | None = None
) -> None:
    """Penalize in place the rows of `work` [R, padded_vocab] that `rows` names, once each.

    unread: int64 [R], a token of each row's output that the device has drawn and nobody has read;
    it counts on top of what `rows` tell.
    """
    if not rows:
        return
    device, width = work.device, work.shape[1]
    sizes = [len(row.ids) for row in rows]
    extra = 0 if unread is None else len(rows)  # an entry per row behind all others

    def spread(values: Sequence[float]) -> Tensor:
        own = np.array(values, dtype=np.float32)
        return upload(np.concatenate([np.repeat(own, sizes), own[:extra]]), device)

    index = upload(np.concatenate([row.row * width + row.ids for row in rows]), device)
    counts = upload(np.concatenate([row.counts for row in rows]), device)
    seen = upload(np.concatenate([row.seen for row in rows]), device)
    if unread is not None:
        places = upload_places([row.row for row in rows], device)
        newest = places * width + unread[places].clamp(min=0)
        owners = upload(np.repeat(np.arange(len(rows)), sizes), device)
        index, counts, seen = _with_newest(index, counts, seen, newest, owners)
    repetition = spread([row.params.repetition_penalty for row in rows])
    flat = work.view(-1)
    x = flat[index]
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x -= spread([row.params.frequency_penalty for row in rows]) * counts
    x -= spread([row.params.presence_penalty for row in rows]) * (counts > 0)
    flat[index] = x


def _with_newest(
    index: Tensor, counts: Tensor, seen: Tensor, newest: Tensor, owners: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The entries with one more occurrence of newest[P], each in the row that owners[E] tells.

    Each gets an entry of its own at the end. Where the row has one for this token already, both
    carry the same count, so that whichever is written last does not matter.
    """
    again = index == newest[owners]
    counts = counts + again
    known = torch.zeros_like(newest, dtype=counts.dtype)
    known.index_add_(0, owners, counts * again)  # at most one entry of a row is not 0: exact
    return (
        torch.cat([index, newest]),
        torch.cat([counts, known.clamp(min=1)]),
        torch.cat([seen | again, torch.ones_like(newest, dtype=torch.bool)]),
    )


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
