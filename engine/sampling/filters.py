"""min_p, top_k and top_p, in vLLM's order (min_p before the other two, all after temperature).

Each keeps the most probable tokens down to some logit, so all three together are one cut per row:
kept tokens are those whose logit is at least the cut. Tokens of equal logits are therefore kept or
dropped together (transformers keeps ties for top_k and drops arbitrary ones for top_p).

    min_p   p >= min_p * max p
    top_k   logit >= the k-th largest
    top_p   of what the two above left: the fewest tokens whose mass reaches top_p of it

No row is ever sorted: top_k and most top_p cuts are among a row's few largest logits, and where
the mass of those falls short of top_p, the cut is found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.batch.transfer import reads_freely, upload, upload_places
from engine.sampling.draw import block_masses
from engine.sampling_params import SamplingParams

_NUM_CANDIDATES = 256

_NO_MASS = 104.0
"""exp(-104) is 0 in float32."""

_MOST_BISECTIONS = 31
"""Of the bits between two positive floats."""


class _Candidates(NamedTuple):
    """The largest logits of some rows, in descending order."""

    rows: list[int]
    values: Tensor  # [len(rows), K]
    columns: Tensor  # int64 [len(rows), K]

    def only(self, rows: Sequence[int]) -> _Candidates:
        wanted = set(rows)
        keep = [i for i, row in enumerate(self.rows) if row in wanted]
        if len(keep) == len(self.rows):
            return self
        index = upload_places(keep, self.values.device)
        return _Candidates([self.rows[i] for i in keep], self.values[index], self.columns[index])


class Filters:
    """The filters of one batch of rows, all of them sampled (not greedy)."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int) -> None:
        self._params = params
        self._vocab_size = vocab_size
        self._min_p = [i for i, p in enumerate(params) if p.min_p > 0]
        self._top_k = [i for i, p in enumerate(params) if 0 < p.top_k < vocab_size]
        self._top_p = [i for i, p in enumerate(params) if p.top_p < 1]

    @property
    def need_scratch(self) -> bool:
        return bool(self._min_p or self._top_k or self._top_p)

    def apply(self, scaled: Tensor, probs: Tensor, scratch: Callable[[], Tensor]) -> Tensor:
        """Zero the dropped tokens of `probs`; returns its block masses (float64).

        scaled: logits / temperature less their row's maximum, float32 [R, padded_vocab];
        probs: their softmax; scratch: gives a tensor of that shape, called where it is needed.
        """
        if not self.need_scratch:
            return block_masses(probs)
        cuts = torch.full((len(self._params), 1), -torch.inf, device=scaled.device)
        candidates = self._candidates(scaled)
        self._cut_min_p(cuts)
        self._cut_top_k(cuts, candidates)
        if self._min_p or self._top_k:
            _drop(probs, scaled, cuts, scratch())
        masses = block_masses(probs)
        if not self._top_p:
            return masses
        self._cut_top_p(cuts, scaled, probs, masses.sum(1, keepdim=True), candidates)
        _drop(probs, scaled, cuts, scratch())
        return block_masses(probs)

    def _candidates(self, scaled: Tensor) -> list[_Candidates]:
        """Enough of the largest logits of every row that needs them. Rows are grouped by their
        own parameters only, so that ties come in the same order whatever the batch is."""
        groups: dict[int, list[int]] = {}
        for row in sorted({*self._top_k, *self._top_p}):
            k = self._params[row].top_k
            size = 32 if 0 < k < self._vocab_size else _NUM_CANDIDATES
            while size < k < self._vocab_size:
                size *= 4
            groups.setdefault(min(size, scaled.shape[1]), []).append(row)
        return [_largest(scaled, rows, size) for size, rows in groups.items()]

    def _cut_min_p(self, cuts: Tensor) -> None:
        if self._min_p:
            logs = [[math.log(p.min_p) if p.min_p > 0 else -math.inf] for p in self._params]
            cuts.copy_(upload(logs, cuts.device, torch.float32))

    def _cut_top_k(self, cuts: Tensor, groups: Sequence[_Candidates]) -> None:
        for group in groups:
            kept = [k if 0 < k < self._vocab_size else 0 for k in self._values(group, "top_k")]
            if any(kept):
                k = upload(kept, cuts.device)[:, None]
                kth = group.values.gather(1, (k - 1).clamp_(min=0))
                _raise_cuts(cuts, group.rows, torch.where(k > 0, kth, -torch.inf))

    def _cut_top_p(
        self,
        cuts: Tensor,
        scaled: Tensor,
        probs: Tensor,
        totals: Tensor,
        groups: Sequence[_Candidates],
    ) -> None:
        for group in (group.only(self._top_p) for group in groups):
            if not group.rows:
                continue
            top_p = upload(self._values(group, "top_p"), scaled.device, torch.float64)
            index = upload_places(group.rows, scaled.device)
            wanted = top_p[:, None] * totals[index]
            mass = probs[index[:, None], group.columns].double().cumsum(1)
            reached = mass >= wanted
            found = reached.any(1, keepdim=True)
            values = group.values.gather(1, reached.int().argmax(1, keepdim=True))
            _raise_cuts(cuts, group.rows, torch.where(found, values, -torch.inf))
            short = self._perhaps_short(group, found)
            if short and group.values.shape[1] < scaled.shape[1]:
                rows = [group.rows[i] for i in short]
                places, index = (
                    upload_places(short, scaled.device),
                    upload_places(rows, scaled.device),
                )
                last = group.values[places, -1:]
                cut = _search_cut(scaled[index], probs[index], wanted[places], last)
                _raise_cuts(cuts, rows, torch.where(found[places], -torch.inf, cut))

    def _perhaps_short(self, group: _Candidates, found: Tensor) -> list[int]:
        """Which of the group's rows have to be searched beyond its candidates. Where finding out
        would mean to wait for the device, all that could: with a top_k none can, for its tokens
        are among the candidates, but for ties at its cut and roundings, which change no cut."""
        if reads_freely(found.device):
            return [i for i, ok in enumerate(found.squeeze(1).tolist()) if not ok]
        ks = self._values(group, "top_k")
        return [i for i, k in enumerate(ks) if not 0 < k < self._vocab_size]

    def _values(self, group: _Candidates, name: str) -> list[Any]:
        return [getattr(self._params[row], name) for row in group.rows]


def _raise_cuts(cuts: Tensor, rows: list[int], values: Tensor) -> None:
    if rows == list(range(len(cuts))):
        torch.maximum(cuts, values, out=cuts)
        return
    index = upload_places(rows, cuts.device)
    cuts[index] = torch.maximum(cuts[index], values)


def _search_cut(scaled: Tensor, probs: Tensor, wanted: Tensor, above: Tensor) -> Tensor:
    """The largest cut [R, 1] that keeps a mass of at least `wanted` [R, 1], known to lie below
    `above` [R, 1]; -inf where rounding leaves even all tokens short of it.

    Bisection over the float32 numbers themselves: as integers, the bits of positive floats are in
    the floats' order. All logits here are <= 0, so their magnitudes are searched.
    """
    scratch = torch.empty_like(scaled)

    def reaches(bits: Tensor) -> Tensor:
        torch.ge(scaled, -bits.view(torch.float32), out=scratch)
        return block_masses(scratch.mul_(probs)).sum(1, keepdim=True) >= wanted

    waits = reads_freely(scaled.device)  # else in as many rounds as may ever be needed
    low = above.abs().clamp_(max=_NO_MASS).view(torch.int32)  # too few tokens
    high = torch.full_like(above, _NO_MASS).view(torch.int32)  # enough, or there is no cut
    reachable = reaches(high)
    for _ in range(_MOST_BISECTIONS):
        if waits and not bool((high - low > 1).any()):
            break
        middle = low + (high - low) // 2
        enough = reaches(middle)
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle)
    return torch.where(reachable, -high.view(torch.float32), -torch.inf)


def _largest(scaled: Tensor, rows: list[int], size: int) -> _Candidates:
    chosen = scaled if len(rows) == len(scaled) else scaled[upload_places(rows, scaled.device)]
    return _Candidates(rows, *chosen.topk(size, dim=1))


def _drop(probs: Tensor, scaled: Tensor, cuts: Tensor, scratch: Tensor) -> None:
    # A float mask and a product: several times faster than masked_fill_ on a CPU.
    probs.mul_(torch.ge(scaled, cuts, out=scratch))
