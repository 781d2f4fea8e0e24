"""The sampler: logits of a batch in, one token per row out.

A row is a request at one position. A plain step has one row per request; a speculative step may
have several rows of a request at consecutive positions, each with the output tokens before it.

The order in which a row is treated (vLLM's):

    NaN or infinite? -> the row fails, its batch mates do not
    logit_bias, min_tokens, penalties          engine/sampling/logits_processors.py
    temperature 0 or top_k 1: the largest logit
    temperature, min_p, top_k, top_p           engine/sampling/filters.py
    one uniform number keyed by (seed, position), inverse distribution function in float64

What a row draws depends on its own logits, parameters, seed and position alone.

On a device nothing here waits: `launch` enqueues the work and the copy of what comes out, and
`Drawn.read` waits for it. Only drafting (`draw_from`) is read at once, for the draft model's next
pass depends on what it gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.batch.transfer import DeviceTimer, Download, reads_freely, upload
from engine.sampling import padded_vocab
from engine.sampling.draw import (
    PendingLogprobs,
    RowLogprobs,
    block_masses,
    inverse_cdf,
    merged,
    row_logprobs,
    row_maxima,
    select,
    uniforms,
)
from engine.sampling.filters import Filters
from engine.sampling.logits_processors import (
    PenalizedRow,
    SeenTokens,
    apply_edits,
    apply_penalties,
)
from engine.sampling_params import SamplingParams
from engine.scheduling.request import Request

UNREAD = -1
"""Placeholder for an output token that the device has drawn and the host has not read."""

_GREEDY_TEMPERATURE = 1e-5
"""Below it, dividing by the temperature leaves nothing but the maximum (vLLM's bound)."""

_CHUNK_ELEMENTS = 2**21
"""Logits worked on at once: bounds the scratch memory to three buffers of 8 MiB."""

_DEVICE_CHUNK_ELEMENTS = 2**24
"""The same on a device, which wants large launches: three buffers of 64 MiB."""


class SamplingRow(NamedTuple):
    """A request at one position. position: index of the sampled token in prompt and output
    together. output_token_ids: the output before it (in a speculative row with the drafts before
    it); the last may be UNREAD."""

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
        a seed the tokens must be the same as without drafts: then the draft uses the model's own
        random numbers, and is accepted if both draw the same token."""
        return not self.is_greedy and self.params.seed is None

    @property
    def has_penalties(self) -> bool:
        p = self.params
        return (p.repetition_penalty, p.presence_penalty, p.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def changes_logits(self) -> bool:
        """Whether logit_bias, min_tokens or a penalty does."""
        too_short = len(self.output_token_ids) < self.params.min_tokens
        return too_short or bool(self.params.logit_bias) or self.has_penalties


def row_of(request: Request, draft_token_ids: Sequence[int] = ()) -> SamplingRow:
    """The row that samples the token after a request's tokens and some drafts."""
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
    """The sampled token of each row, -1 where the logits were NaN, infinite or all -inf. logprobs:
    for rows whose parameters request them."""

    token_ids: list[int]
    logprobs: list[RowLogprobs | None]


class Drawn:
    """The launched sampling of a step's rows. token_ids: int64 [R] on the sampler's device, -1 for
    failed rows; the next step may use them before the host has read them."""

    def __init__(
        self,
        token_ids: Tensor,
        reports: Sequence[tuple[list[int], PendingLogprobs]],
        timer: DeviceTimer,
    ) -> None:
        self.token_ids = token_ids
        self._reports = reports
        self._timer = timer
        tensors = [token_ids, *(t for _, pending in reports for t in pending.tensors)]
        self._download = Download(tensors, token_ids.device)

    def read(self) -> SampledTokens:
        """The tokens; waits until the device has drawn them. Call it once."""
        numbers = iter(self._download.read())
        token_ids: list[int] = next(numbers)
        logprobs: list[RowLogprobs | None] = [None] * len(token_ids)
        for rows, pending in self._reports:
            for row, report in zip(rows, pending.finish(numbers), strict=True):
                logprobs[row] = report if token_ids[row] >= 0 else None
        return SampledTokens(token_ids, logprobs)

    @property
    def device_s(self) -> float | None:
        """Seconds that the device sampled, once the tokens were read; None on the CPU."""
        return self._timer.seconds()


class Weights(NamedTuple):
    """The sampling weights of rows. values: float32 [R, padded vocabulary], not normalized; totals:
    float32 [R, 1], their sums; ok: bool [R, 1], False for failed rows, whose values are
    meaningless."""

    values: Tensor
    totals: Tensor
    ok: Tensor


class Sampler:
    """Samples rows. Its state: penalties of requests until `forget`, and scratch buffers."""

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._width = padded_vocab(vocab_size)
        on_host = reads_freely(self.device)
        elements = _CHUNK_ELEMENTS if on_host else _DEVICE_CHUNK_ELEMENTS
        self.chunk_rows = max(1, elements // self._width)
        self._buffers: list[Tensor] = []
        self._seen: dict[str, SeenTokens] = {}

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """Sample one token for every row of `logits` [len(rows), vocab_size], any float dtype.
        `logits` is not changed. Rows of one request come in order of their positions."""
        return self.launch(logits, rows).read()

    @torch.inference_mode()
    def launch(
        self, logits: Tensor, rows: Sequence[SamplingRow], unread: Tensor | None = None
    ) -> Drawn:
        """`sample` without waiting. unread: int64 [len(rows)] on the device, the tokens that UNREAD
        replaces at the end of every row's output; None if there are none."""
        timer = DeviceTimer(self.device)
        timer.mark()
        return self.report(logits, rows, self.draw(logits, rows, unread), timer)

    @torch.inference_mode()
    def draw(
        self, logits: Tensor, rows: Sequence[SamplingRow], unread: Tensor | None = None
    ) -> Tensor:
        """The tokens only, on the device: int64 [len(rows)], -1 for failed rows."""
        if logits.shape != (len(rows), self.vocab_size):
            raise ValueError(
                f"logits are {tuple(logits.shape)}, not {(len(rows), self.vocab_size)}"
            )
        plain: list[int] = []  # the largest of the raw logits
        others: list[int] = []
        for i, row in enumerate(rows):
            (plain if row.is_greedy and not row.changes_logits else others).append(i)
        parts = []
        if plain:
            maxima = row_maxima(select(logits, plain))
            parts.append((plain, torch.where(maxima.values.isfinite(), maxima.token_ids, -1)))
        for chunk in self._chunks(others):
            own = None if unread is None else select(unread, chunk)
            drawn = self._sample_chunk(select(logits, chunk), [rows[i] for i in chunk], own)
            parts.append((chunk, drawn))
        return merged(parts, len(rows), self.device)

    @torch.inference_mode()
    def report(
        self, logits: Tensor, rows: Sequence[SamplingRow], token_ids: Tensor, timer: DeviceTimer
    ) -> Drawn:
        """Tokens that were drawn for all `rows`, -1 where there is none, with the log probabilities
        of those that ask, to be read; `timer` was marked before they were drawn."""
        reports = self._reports(logits, rows, token_ids)
        timer.mark()
        return Drawn(token_ids, reports, timer)

    @torch.inference_mode()
    def weights(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Weights:
        """What each row (none greedy; best no more than `chunk_rows`) is sampled from, after
        penalties, temperature and filters; in a buffer of the sampler, until its next call."""
        work, maxima, ok = self._processed(logits, rows)
        values, masses = self._probabilities(work, maxima, rows)
        return Weights(values, masses.sum(1, keepdim=True).float(), ok)

    @torch.inference_mode()
    def distributions(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
        """The distribution of each row (none greedy) after penalties, temperature and filters:
        float32 [len(rows), padded vocabulary], sums 1; all 0 for a failed row."""
        parts = []
        for chunk in self._chunks(list(range(len(rows)))):
            values, totals, ok = self.weights(select(logits, chunk), [rows[i] for i in chunk])
            parts.append(values / totals)
            if not (reads_freely(self.device) and bool(ok.all())):
                parts[-1].masked_fill_(~ok, 0.0)
        return torch.cat(parts)

    @torch.inference_mode()
    def draw_from(self, logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[list[int], Tensor]:
        """The tokens that `sample` would draw for rows none of which is greedy (-1 where a row
        failed), and the `distributions` that they come from."""
        probabilities = self.distributions(logits, rows)
        masses = block_masses(probabilities)
        drawn = inverse_cdf(probabilities, masses, self._uniforms(rows))
        token_ids: list[int] = torch.where(masses.sum(1) > 0, drawn, -1).tolist()
        return token_ids, probabilities

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended; unknown ids are ignored."""
        self._seen.pop(request_id, None)

    def _chunks(self, indices: list[int]) -> Iterator[list[int]]:
        for start in range(0, len(indices), self.chunk_rows):
            yield indices[start : start + self.chunk_rows]

    def _processed(
        self, logits: Tensor, rows: Sequence[SamplingRow], unread: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A few rows of logits after edits and penalties, float32 [R, padded vocabulary] in the
        first buffer; their maxima [R, 1]; bool [R, 1], False where that is not finite and the rest
        of no use."""
        work = self._padded(logits)
        maxima = work.amax(1, keepdim=True)  # hands on a NaN
        ok = maxima.isfinite()
        if any(row.changes_logits for row in rows):
            apply_edits(work, rows, self.vocab_size)
            apply_penalties(work, self._penalized(rows), unread)
            torch.amax(work, 1, keepdim=True, out=maxima)
            ok &= maxima.isfinite()  # everything may be forbidden now
        return work, maxima, ok

    def _sample_chunk(
        self, logits: Tensor, rows: Sequence[SamplingRow], unread: Tensor | None
    ) -> Tensor:
        """Token ids of a few rows, -1 where a row failed."""
        work, maxima, ok = self._processed(logits, rows, unread)
        greedy = [i for i, row in enumerate(rows) if row.is_greedy]
        sampled = [i for i, row in enumerate(rows) if not row.is_greedy]
        parts = []
        if greedy:
            parts.append((greedy, row_maxima(select(work, greedy)).token_ids))
        if sampled:
            own = [rows[i] for i in sampled]
            kept = select(work, sampled), select(maxima, sampled)
            probs, masses = self._probabilities(*kept, own)
            parts.append((sampled, inverse_cdf(probs, masses, self._uniforms(own))))
        return torch.where(ok.squeeze(1), merged(parts, len(rows), self.device), -1)

    def _uniforms(self, rows: Sequence[SamplingRow]) -> Tensor:
        u = uniforms([row.seed for row in rows], [row.position for row in rows])
        return upload(u, self.device)

    def _probabilities(
        self, work: Tensor, maxima: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[Tensor, Tensor]:
        """What the rows of `work` are sampled from, not normalized, with its block masses. Uses
        `work` up; the result is in the second buffer."""
        temperatures = [[row.params.temperature] for row in rows]
        # Less the maximum first: a small temperature cannot overflow then.
        work.sub_(maxima).div_(upload(temperatures, self.device, torch.float32))
        probs = torch.softmax(work, dim=1, out=self._buffer(1, len(rows)))
        filters = Filters([row.params for row in rows], self.vocab_size)
        return probs, filters.apply(work, probs, lambda: self._buffer(2, len(rows)))

    def _penalized(self, rows: Sequence[SamplingRow]) -> list[PenalizedRow]:
        penalized = []
        for index, row in enumerate(rows):
            if not row.has_penalties:
                continue
            seen = self._seen.get(row.request_id)
            if seen is None:
                seen = SeenTokens(row.prompt_token_ids, self.vocab_size)
                self._seen[row.request_id] = seen
            output = row.output_token_ids
            seen.follow(output[:-1] if output and output[-1] == UNREAD else output)
            # The next row of the same request moves `seen` on: keep the current one.
            penalized.append(
                PenalizedRow(index, row.params, seen.ids.copy(), seen.counts.copy(), seen.seen)
            )
        return penalized

    def _reports(
        self, logits: Tensor, rows: Sequence[SamplingRow], token_ids: Tensor
    ) -> list[tuple[list[int], PendingLogprobs]]:
        """For the rows that ask, part by part; of no use where a row failed."""
        reports = []
        wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        for chunk in self._chunks(wanted):
            sizes = [min(rows[i].params.logprobs or 0, self.vocab_size) for i in chunk]
            chosen = select(token_ids, chunk).clamp(min=0)
            work = self._padded(select(logits, chunk))
            scratch = self._buffer(1, len(chunk))
            reports.append((chunk, row_logprobs(work, scratch, chosen, sizes)))
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
