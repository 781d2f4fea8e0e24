"""Drafts with an EAGLE-3 head from the target model's hidden states.

The head's KV layer shares the target model's block tables. After every step the head processes all
tokens that the target model has computed, accepted drafts and prompts alike, while their hidden
states are in memory: by then the next token of each is known. Keys and values that it wrote for
drafts are overwritten from the target model's states.

    token       | prompt ............ | output ........ x_N-1 |  d1       d2
    the model   | hidden states ............... f_N-2 |
    the head    | entries ................... N-2 gives d1 |   N-1 gives d2, and so on

Hidden states are not kept. Where the head was off, or a prefix hit returned blocks without its KV,
its context restarts at the next block: `Request.draft_kv_start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.interface import PagedBackend
from engine.batch.batch import Batch, Span, pack
from engine.batch.transfer import Staging, upload_places
from engine.sampling.sampler import Sampler
from engine.scheduling.request import Grant, Outcome, Request, StepPlan
from engine.snapshot import FinishReason
from engine.speculation.eagle3.head import Eagle3Head, Entries, Taps
from engine.speculation.proposer import Draft, Drafting, Proposal, Proposer, draw


class _Part(NamedTuple):
    """A request's new entries after a step: their rows in the step, and their span."""

    request: Request
    rows: slice
    span: Span


class _Last(NamedTuple):
    """The feature [hidden] of a request's newest entry, from which drafting starts."""

    position: int
    feature: Tensor


class Eagle3Proposer(Proposer):
    """Proposes with an EAGLE-3 head. `taps`: active during the target model's pass of every step
    that `follow` gets. `cache`: the head's own, with as many blocks as the target model's."""

    taps: Taps

    def __init__(
        self, draft: Draft, taps: Taps, cache: PagedBackend, block_size: int, device: str
    ) -> None:
        assert isinstance(draft.model, Eagle3Head)
        self.weights_bytes = draft.weights_bytes
        self.cache_bytes = cache.nbytes
        self.taps = taps
        self._head = draft.model
        self._cache = cache
        self._block_size = block_size
        self._staging = Staging(torch.device(device))
        self._sampler = Sampler(draft.vocab_size, device)
        self._last: dict[str, _Last] = {}
        self._failed: set[str] = set()  # requests at which the head gave NaN

    @property
    def resident_cache(self) -> int | None:
        return self._cache.resident

    def forget(self, request_id: str) -> None:
        self._sampler.forget(request_id)
        self._last.pop(request_id, None)
        self._failed.discard(request_id)

    # -- after a step -----------------------------------------------------------------------

    @torch.inference_mode()
    def follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:
        """Process a computed step before it is committed: the accepted tokens, not the rejected
        drafts."""
        states = self.taps.take()
        parts = self._parts(plan, outcomes)
        if not parts or not states:
            return
        numbers = [row for part in parts for row in range(part.rows.start, part.rows.stop)]
        rows = upload_places(numbers, self._sampler.device)
        features = self._head.features([layer[rows] for layer in states])
        whole = features.isfinite().all(dim=1).tolist()
        if not all(whole):
            parts, features = self._without_bad(parts, features, whole)
            if not parts:
                return
        batch = self._staging.stage(pack([part.span for part in parts], self._block_size))
        self._head.store(Entries(features, batch.input_ids, batch.positions), batch, self._cache)
        for part, end in zip(parts, batch.query_start_loc[1:], strict=True):
            request, span = part.request, part.span
            if request.num_draft_kv_tokens != span.start:
                request.draft_kv_start = span.start
            request.num_draft_kv_tokens = span.end
            self._last[request.request_id] = _Last(span.end - 1, features[end - 1].clone())

    def _parts(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> list[_Part]:
        parts: list[_Part] = []
        row = 0
        for grant in plan.grants:
            request, first = grant.request, row
            row += grant.num_tokens + len(grant.draft_token_ids)
            outcome = outcomes.get(request.request_id, Outcome(()))
            if outcome.finish_reason is FinishReason.ERROR or request.request_id in self._failed:
                continue
            start, end = grant.start, grant.start + grant.num_tokens + outcome.num_accepted
            if request.num_draft_kv_tokens != start:
                # earlier tokens were never seen; a context starts at a block
                start = -(-start // self._block_size) * self._block_size
            if start >= end:
                continue
            tokens = request.token_ids[start + 1 : end + 1]
            tokens += outcome.token_ids[: end - start - len(tokens)]
            rows = slice(first + start - grant.start, first + end - grant.start)
            parts.append(_Part(request, rows, Span(tokens, start, request.block_table, 0)))
        return parts

    def _without_bad(
        self, parts: list[_Part], features: Tensor, whole: list[bool]
    ) -> tuple[list[_Part], Tensor]:
        """Remove requests with NaN or infinite hidden states, and stop drafting for them."""
        kept: list[_Part] = []
        rows: list[int] = []
        place = 0
        for part in parts:
            here = range(place, place + len(part.span.token_ids))
            place = here.stop
            if all(whole[i] for i in here):
                kept.append(part)
                rows += here
            else:
                self._failed.add(part.request.request_id)
        return kept, features[rows]

    # -- drafts -----------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        """The budget is not needed: there is nothing to catch up with."""
        items = [Drafting(g.request, g.num_draft_places) for g in grants]
        drafting = [item for item in items if self._is_ready(item.request)]
        if drafting:
            features = torch.stack([self._last[d.request.request_id].feature for d in drafting])
            tokens = [item.request.token_ids[-1] for item in drafting]
            while drafting:
                entries, batch = self._next_entries(drafting, features, tokens)
                output = self._head(entries, batch, self._cache)
                drawn = draw(self._sampler, self._head.logits(output), drafting)
                going = [i for i, item in enumerate(drafting) if self._take(item, drawn[i])]
                if len(going) < len(drafting):  # by places of the host, torch would wait for a GPU
                    output = output.index_select(0, upload_places(going, output.device))
                drafting = [drafting[i] for i in going]
                features, tokens = output, [drawn[i] for i in going]
        return [item.proposal for item in items]

    def _is_ready(self, request: Request) -> bool:
        """Whether the head has seen everything up to the token before the last, and its feature."""
        last = self._last.get(request.request_id)
        return (
            last is not None
            and last.position == request.num_tokens - 2
            and request.num_draft_kv_tokens == request.num_tokens - 1
            and request.num_draft_kv_tokens > request.draft_kv_start
            and request.request_id not in self._failed
        )

    def _next_entries(
        self, drafting: list[Drafting], features: Tensor, tokens: list[int]
    ) -> tuple[Entries, Batch]:
        """The entries from which the next draft of each request comes. Slots count from where the
        head's context begins; positions from where the request does, for keys that other requests
        share were turned by those."""
        spans, positions = [], []
        for item, token_id in zip(drafting, tokens, strict=True):
            request = item.request
            position, start = request.num_tokens - 2 + len(item.tokens), request.draft_kv_start
            table = request.block_table[start // self._block_size :]
            spans.append(Span([token_id], position - start, table, 1))
            positions.append(position)
        batch = self._staging.stage(pack(spans, self._block_size))
        return Entries(features, batch.input_ids, upload_places(positions, features.device)), batch

    def _take(self, item: Drafting, token_id: int) -> bool:
        if token_id < 0:
            # NaN in a block would reach whoever gets it next through masked, zero-weight keys
            self._cache.clear_blocks(item.request.block_table)
            self._failed.add(item.request.request_id)
        return item.take(token_id)
