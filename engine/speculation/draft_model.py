"""Drafts with a small model that has the same vocabulary as the target model.

Its KV layers share the target model's block tables. It runs after the target model. Tokens of a
request that it has not computed (a prompt, the last draft of a fully accepted round, tokens written
while drafting was off) are computed in the first pass of a proposal, within a budget, so that a
long prompt delays no other request:

    tokens     | prompt ............ | output ...  last |  d1   d2  ...
    first pass       | num_draft_kv_tokens -> ......... |           gives d1
    then                                                | d1        gives d2, and so on

On a device that captures graphs, all passes but those that catch up with prompts are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from engine.batch.batch import Span, pack
from engine.batch.transfer import upload_places
from engine.runner.cuda_graphs import DRAFT_ROWS
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import Sampler
from engine.scheduling.request import Grant
from engine.speculation.proposer import Draft, Drafting, Proposal, Proposer, draw


class DraftModelProposer(Proposer):
    """Proposes with a draft model. `runner`: that model over a cache with as many blocks as the
    target model's."""

    runner: ModelRunner

    def __init__(self, runner: ModelRunner, draft: Draft, block_size: int) -> None:
        self.weights_bytes = draft.weights_bytes
        self.cache_bytes = runner.backend.nbytes
        self.runner = runner
        self._block_size = block_size
        self._vocab_size = draft.vocab_size
        self._max_model_len = draft.max_model_len
        self._sampler = Sampler(draft.vocab_size, runner.device)
        self._failed: set[str] = set()  # requests at which the draft gave NaN

    @property
    def resident_cache(self) -> int | None:
        return self.runner.backend.resident

    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        items = [Drafting(grant.request, self._places(grant)) for grant in grants]
        drafting = self._catch_up([item for item in items if item.places > 0], budget)
        while drafting:
            spans = [self._next_span(item) for item in drafting]
            logits = self.runner.execute(pack(spans, self._block_size))
            for item in drafting:
                item.request.num_draft_kv_tokens += 1
            drafting = self._draw(logits, drafting)
        return [item.proposal for item in items]

    def forget(self, request_id: str) -> None:
        self._sampler.forget(request_id)
        self._failed.discard(request_id)

    def _places(self, grant: Grant) -> int:
        if grant.request.request_id in self._failed:
            return 0
        return min(grant.num_draft_places, self._max_model_len - grant.request.num_tokens)

    def _catch_up(self, items: list[Drafting], budget: int) -> list[Drafting]:
        """Compute the tokens that the draft has not seen. Requests whose last token was reached
        have their first draft then; returns those that may have more."""
        spans: list[Span] = []
        seen: list[Drafting] = []
        for item in items:
            request, start = item.request, item.request.num_draft_kv_tokens
            missing = request.num_tokens - start
            count = min(missing, 1 + budget)
            tokens = request.token_ids[start : start + count]
            if max(tokens) >= self._vocab_size:  # the draft cannot read this text
                continue
            budget -= count - 1
            spans.append(Span(tokens, start, request.block_table, int(count == missing)))
            seen.append(item)
        if not spans:
            return []
        logits = self._logits(spans)
        for item, span in zip(seen, spans, strict=True):
            item.request.num_draft_kv_tokens = span.end
        ready = [item for item, span in zip(seen, spans, strict=True) if span.num_rows]
        return self._draw(logits, ready) if ready else []

    def _logits(self, spans: list[Span]) -> Tensor:
        """Of the last token of each span that is sampled. Short spans are sampled whole where such
        a step may be replayed."""
        counts = [len(span.token_ids) for span in spans]
        may_replay = self.runner.graphs is not None and max(counts) <= DRAFT_ROWS
        if not (may_replay and all(span.num_rows for span in spans)):
            return self.runner.execute(pack(spans, self._block_size))
        whole = [span._replace(num_rows=len(span.token_ids)) for span in spans]
        logits = self.runner.execute(pack(whole, self._block_size))
        last = [end - 1 for end in accumulate(counts)]
        return logits[upload_places(last, logits.device)]

    def _next_span(self, item: Drafting) -> Span:
        request = item.request
        position = request.num_tokens + len(item.tokens) - 1
        return Span(item.tokens[-1:], position, request.block_table, 1)

    def _draw(self, logits: Tensor, drafting: list[Drafting]) -> list[Drafting]:
        """One draft each from logits[len(drafting), V]; returns who may have more."""
        drawn = draw(self._sampler, logits[:, : self._vocab_size], drafting)
        for item, token_id in zip(drafting, drawn, strict=True):
            if token_id < 0:
                # NaN in a block would reach whoever gets it next through masked, zero-weight keys
                self.runner.backend.clear_blocks(item.request.block_table)
                self._failed.add(item.request.request_id)
        return [item for item, token_id in zip(drafting, drawn, strict=True) if item.take(token_id)]
