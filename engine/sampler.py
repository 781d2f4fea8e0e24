"""The sampler: logits of a batch in, one token per row out.

A row is a request at one position. A plain step has one row per request; a speculative step may
have several rows of a request at consecutive positions, each with the output tokens before it.

The order in which a row is treated (vLLM's):

    NaN or infinite? -> the row fails, its batch mates do not
    logit_bias, min_tokens, penalties          engine/sampling/edits.py, penalties.py
    temperature 0 or top_k 1: the largest logit
    temperature, min_p, top_k, top_p           engine/sampling/filters.py
    one uniform number keyed by (seed, position), inverse distribution function in float64

What a row draws depends on its own logits, parameters, seed and position alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.errors import InvalidRequestError
from engine.request import Request
from engine.sampling import padded_vocab
from engine.sampling.draw import block_masses, inverse_cdf, row_maxima
from engine.sampling.edits import apply_edits, has_edits
from engine.sampling.filters import Filters
from engine.sampling.logprobs import RowLogprobs, row_logprobs
from engine.sampling.penalties import PenalizedRow, SeenTokens, apply_penalties
from engine.sampling.uniform import uniforms
from engine.sampling_params import SamplingParams

T = TypeVar("T")

__all__ = ["RowLogprobs", "SampledTokens", "Sampler", "SamplingRow", "check_token_ids", "row_of"]

_GREEDY_TEMPERATURE = 1e-5
"""Below it, dividing by the temperature leaves nothing but the maximum (vLLM's bound)."""

_CHUNK_ELEMENTS = 2**21
"""Logits worked on at once: bounds the scratch memory to three buffers of 8 MiB."""


class SamplingRow(NamedTuple):
    """position: the index, in prompt and output together, of the token that is being sampled.
    output_token_ids: the output before it (in a speculative row with the drafts before it)."""

    request_id: str
    params: SamplingParams
    seed: int
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < _GREEDY_TEMPERATURE or self.params.top_k == 1

    @property
    def is_rejection_sampled(self) -> bool:
        """Whether drafts for this row are drawn at random and verified by rejection sampling. With
        a seed the tokens must be those that come without drafts: then the draft draws with the
        model's own random numbers, and stands where both draw the same."""
        return not self.is_greedy and self.params.seed is None

    @property
    def is_argmax_of_raw(self) -> bool:
        return self.is_greedy and not self.params.has_penalties and not has_edits(self)


def row_of(request: Request, draft_token_ids: Sequence[int] = ()) -> SamplingRow:
    """The row that samples what follows a request's tokens and some drafts."""
    output = request.output_token_ids
    output += draft_token_ids
    return SamplingRow(
        request_id=request.request_id,
        params=request.params,
        seed=request.seed,
        position=request.num_tokens + len(draft_token_ids),
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=output,
        eos_token_ids=request.eos_token_ids,
    )


class SampledTokens(NamedTuple):
    """token_ids: one per row, -1 for a failed row. logprobs: for the rows whose parameters ask.
    failed: rows whose logits were NaN, infinite or all -inf."""

    token_ids: list[int]
    logprobs: list[RowLogprobs | None]
    failed: list[int]


class _Processed(NamedTuple):
    """work: float32 [R, padded vocabulary]; maxima: [R, 1]; failed: rows without a finite one."""

    work: Tensor
    maxima: Tensor
    failed: set[int]


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequestError where `params` names a token that the model does not have."""
    for name, token_ids in (
        ("logit_bias", tuple(params.logit_bias)),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{name} names token {token_id}; the model has tokens 0 to {vocab_size - 1}.",
                    f"Change {name}.",
                )


class Sampler:
    """Keeps the penalty state of requests until `forget`, and scratch buffers; nothing else."""

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._width = padded_vocab(vocab_size)
        self._chunk_rows = max(1, _CHUNK_ELEMENTS // self._width)
        self._buffers: list[Tensor] = []
        self._seen: dict[str, SeenTokens] = {}

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """Sample one token for every row of `logits` [len(rows), vocab_size], any float dtype.
        `logits` is not changed. Rows of one request come in order of their positions."""
        if logits.shape != (len(rows), self.vocab_size):
            raise ValueError(
                f"logits are {tuple(logits.shape)}, not {(len(rows), self.vocab_size)}"
            )
        token_ids = [-1] * len(rows)
        plain = [i for i, row in enumerate(rows) if row.is_argmax_of_raw]
        others = [i for i, row in enumerate(rows) if not row.is_argmax_of_raw]
        if plain:
            _place(token_ids, plain, _finite_argmax(_select(logits, plain)))
        for chunk in self._chunks(others):
            chunk_rows = [rows[i] for i in chunk]
            _place(token_ids, chunk, self._sample_chunk(_select(logits, chunk), chunk_rows))
        failed = [i for i, token_id in enumerate(token_ids) if token_id < 0]
        return SampledTokens(token_ids, self.logprobs(logits, rows, token_ids), failed)

    @torch.inference_mode()
    def distributions(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
        """What each row (none greedy) is sampled from, after penalties, temperature and filters:
        float32 [len(rows), padded vocabulary], sums 1; 0 everywhere in a row that failed."""
        parts = []
        for chunk in self._chunks(list(range(len(rows)))):
            chunk_rows = [rows[i] for i in chunk]
            processed = self._processed(_select(logits, chunk), chunk_rows)
            probs, masses = self._probabilities(processed.work, processed.maxima, chunk_rows)
            parts.append(probs / masses.sum(1, keepdim=True).float())
            parts[-1][list(processed.failed)] = 0.0
        return torch.cat(parts)

    @torch.inference_mode()
    def draw_from(
        self, logits: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[list[int], Tensor]:
        """The tokens that `sample` would draw for rows none of which is greedy (-1 where a row
        failed), and the `distributions` that they come from."""
        probabilities = self.distributions(logits, rows)
        masses = block_masses(probabilities)
        u = torch.from_numpy(uniforms([r.seed for r in rows], [r.position for r in rows]))
        token_ids: list[int] = inverse_cdf(probabilities, masses, u.to(self.device)).tolist()
        ok = (masses.sum(1) > 0).tolist()
        return [t if good else -1 for t, good in zip(token_ids, ok, strict=True)], probabilities

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has ended; unknown ids are ignored."""
        self._seen.pop(request_id, None)

    def _chunks(self, indices: list[int]) -> Iterator[list[int]]:
        for start in range(0, len(indices), self._chunk_rows):
            yield indices[start : start + self._chunk_rows]

    def _processed(self, logits: Tensor, rows: Sequence[SamplingRow]) -> _Processed:
        """A few rows of logits after edits and penalties, in the first buffer."""
        work = self._padded(logits)
        maxima = work.amax(1, keepdim=True)
        failed = _zero_bad_rows(work, maxima)
        if any(has_edits(row) or row.params.has_penalties for row in rows):
            apply_edits(work, rows, self.vocab_size)
            apply_penalties(work, self._penalized(rows))
            torch.amax(work, 1, keepdim=True, out=maxima)
            failed |= _zero_bad_rows(work, maxima)  # everything may be forbidden now
        return _Processed(work, maxima, failed)

    def _sample_chunk(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """Token ids of a few rows, -1 where a row failed."""
        work, maxima, failed = self._processed(logits, rows)
        greedy = [i for i, row in enumerate(rows) if row.is_greedy]
        sampled = [i for i, row in enumerate(rows) if not row.is_greedy]
        token_ids = [-1] * len(rows)
        if greedy:
            _place(token_ids, greedy, row_maxima(_select(work, greedy)).token_ids.tolist())
        if sampled:
            chosen = [rows[i] for i in sampled]
            drawn = self._draw(_select(work, sampled), _select(maxima, sampled), chosen)
            _place(token_ids, sampled, drawn)
        return [-1 if i in failed else token_id for i, token_id in enumerate(token_ids)]

    def _draw(self, work: Tensor, maxima: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """Sample every row of `work`, whose maxima [rows, 1] are finite; uses `work` up."""
        probs, masses = self._probabilities(work, maxima, rows)
        u = uniforms([row.seed for row in rows], [row.position for row in rows])
        token_ids: list[int] = inverse_cdf(
            probs, masses, torch.from_numpy(u).to(self.device)
        ).tolist()
        return token_ids

    def _probabilities(
        self, work: Tensor, maxima: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[Tensor, Tensor]:
        """What the rows of `work` are sampled from, not normalized, with its block masses. Uses
        `work` up; the result is in the second buffer."""
        temperatures = torch.tensor([[row.params.temperature] for row in rows])
        # Less the maximum first: a small temperature cannot overflow then.
        work.sub_(maxima).div_(temperatures.to(self.device))
        probs = torch.softmax(work, dim=1, out=self._buffer(1, len(rows)))
        filters = Filters([row.params for row in rows], self.vocab_size)
        return probs, filters.apply(work, probs, lambda: self._buffer(2, len(rows)))

    def _penalized(self, rows: Sequence[SamplingRow]) -> list[PenalizedRow]:
        penalized = []
        for index, row in enumerate(rows):
            if not row.params.has_penalties:
                continue
            seen = self._seen.get(row.request_id)
            if seen is None:
                seen = SeenTokens(row.prompt_token_ids, self.vocab_size)
                self._seen[row.request_id] = seen
            seen.follow(row.output_token_ids)
            # The next row of the same request moves `seen` on: keep what it is now.
            penalized.append(
                PenalizedRow(index, row.params, seen.ids.copy(), seen.counts.copy(), seen.seen)
            )
        return penalized

    @torch.inference_mode()
    def logprobs(
        self, logits: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
    ) -> list[RowLogprobs | None]:
        """Log probabilities of `token_ids` and their alternatives, for the rows that ask."""
        reports: list[RowLogprobs | None] = [None] * len(rows)
        wanted = [
            i for i, row in enumerate(rows) if row.params.logprobs is not None and token_ids[i] >= 0
        ]
        for chunk in self._chunks(wanted):
            sizes = [min(rows[i].params.logprobs or 0, self.vocab_size) for i in chunk]
            chosen = [token_ids[i] for i in chunk]
            work = self._padded(_select(logits, chunk))
            scratch = self._buffer(1, len(chunk))
            _place(reports, chunk, row_logprobs(work, scratch, chosen, sizes))
        return reports

    def _padded(self, logits: Tensor) -> Tensor:
        """`logits` as float32 in the first buffer, with -inf beyond the vocabulary."""
        work = self._buffer(0, len(logits))
        work[:, : self.vocab_size] = logits
        work[:, self.vocab_size :] = -torch.inf
        return work

    def _buffer(self, index: int, num_rows: int) -> Tensor:
        """Scratch [num_rows, padded_vocab], kept between steps: fresh memory of this size costs
        page faults every time."""
        while len(self._buffers) <= index:
            self._buffers.append(torch.empty(0, self._width, device=self.device))
        if len(self._buffers[index]) < num_rows:
            self._buffers[index] = torch.empty(num_rows, self._width, device=self.device)
        return self._buffers[index][:num_rows]


def _select(x: Tensor, rows: list[int]) -> Tensor:
    """Rows of `x` in ascending order; without a copy where they are neighbours."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return x[rows[0] : rows[-1] + 1]
    return x[rows]


def _place(target: list[T], indices: Sequence[int], values: Sequence[T]) -> None:
    for index, value in zip(indices, values, strict=True):
        target[index] = value


def _finite_argmax(logits: Tensor) -> list[int]:
    maxima = row_maxima(logits)
    token_ids: list[int] = torch.where(maxima.values.isfinite(), maxima.token_ids, -1).tolist()
    return token_ids


def _zero_bad_rows(work: Tensor, maxima: Tensor) -> set[int]:
    """Rows without a finite maximum (amax hands on a NaN); zeroed, to keep the rest simple."""
    bad = [i for i, ok in enumerate(maxima.isfinite().squeeze(1).tolist()) if not ok]
    if bad:
        work[bad] = 0.0
        maxima[bad] = 0.0
    return set(bad)
