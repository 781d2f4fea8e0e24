"""The scheduler: decides how many tokens of each request the next step computes. Pure Python: no
torch.

One rule serves prefill, chunked prefill, prefix-cache hits, decode, resume after preemption and
speculative verification: each step grants a request min(its uncomputed tokens and drafts, the rest
of the token budget). Running requests come first, in order of admission, then waiting ones, in
order of arrival. Drafts get the remaining budget: they never delay a prompt and never preempt.
When blocks run out, the request admitted last is preempted: its blocks are freed, and it is
computed again later (with prefix hits where its blocks are still cached). A step that preempts
admits nobody.

While no request decodes, the first prompt may get more than the budget, which bounds the ITL of
requests that do (`prompt_limit`): those behind it would wait for all of it in any case.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.config import EngineConfig
from engine.scheduling.block_pool import BlockPool, IntegrityError
from engine.scheduling.block_tables import BlockTables, check_invariants
from engine.scheduling.request import Grant, Outcome, Request, StepPlan
from engine.snapshot import FinishReason, RequestState

_NOTHING_SAMPLED = Outcome(())


class Candidate(NamedTuple):
    """A request that could join a step: its cached prefix, the tokens to compute, and the number of
    new blocks that it needs in all."""

    request: Request
    cached: list[int]
    num_tokens: int
    blocks: int


class Scheduler:
    """Owns the waiting and running requests and their block tables.

    The cycle is `plan()`, the model, `commit()`. Changes of requests or settings (`add`, `finish`,
    `update`, `preempt_all`, `replace_pool`) belong between cycles, not inside one.

    While a step is computed the next one may be planned and launched: see `plan_next`. Between the
    commits of the two it is `next_plan`, and `add` and `finish` are allowed; before any other
    change it must be committed, or cancelled with `revoke_next`.
    """

    def __init__(
        self, config: EngineConfig, pool: BlockPool, root: bytes, prompt_limit: int = 0
    ) -> None:
        """prompt_limit: tokens that the first prompt may get in a step while no request decodes; 0:
        the budget."""
        self.prompt_limit = prompt_limit
        self.tables = BlockTables(config, pool, root)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.prefix_queries = self.prefix_hits = 0  # tokens looked up and found, at admission
        self.num_preemptions = 0
        self.next_plan: StepPlan | None = None  # in flight, before the last step is committed
        self._batch_places = 0  # static batching: who may still join the batch that is filling

    # -- requests ---------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        return self.tables.config

    @property
    def pool(self) -> BlockPool:
        return self.tables.pool

    @property
    def requests(self) -> list[Request]:
        return [*self.running, *self.waiting]

    @property
    def has_unfinished(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request by its arrival. The caller has checked that it can fit the pool alone
        (`longest_length`): one that cannot would preempt itself for ever."""
        insort(self.waiting, request, key=lambda r: r.arrival_index)

    def remove(self, request: Request) -> None:
        """Take a request out at any time between steps and free its blocks."""
        (self.running if request in self.running else self.waiting).remove(request)
        self.tables.release(request)

    def preempt_all(self) -> None:
        """Send every running request back to the queue, last admitted first."""
        while self.running:
            self._preempt(self.running.pop())

    def update(self, config: EngineConfig, prompt_limit: int = 0) -> None:
        """Apply live settings from the next step on."""
        self.prompt_limit = prompt_limit
        if not config.enable_prefix_caching:
            self.pool.clear_prefixes()
            for request in self.requests:
                request.num_published_blocks = 0
        self.tables.config = config

    def replace_pool(
        self, config: EngineConfig, pool: BlockPool, root: bytes, prompt_limit: int = 0
    ) -> None:
        """Continue on a new pool after a cache rebuild; no request may have blocks."""
        self.prompt_limit = prompt_limit
        if any(request.block_table for request in self.requests):
            raise IntegrityError("The block pool was replaced while requests used its blocks.")
        self.tables = BlockTables(config, pool, root)
        for request in self.requests:
            request.block_hashes.clear()

    # -- one step ---------------------------------------------------------------------------

    def plan(self, now: float = 0.0) -> StepPlan:
        preempted: list[Request] = []
        while len(self.running) > self.config.max_num_seqs:
            preempted.append(self._preempt(self.running.pop()))
        used = 0
        grants: list[Grant] = []
        limit, size = self.config.step_token_limit, self.pool.block_size
        for place, request in enumerate(list(self.running)):
            room = limit - used if used else self._room(0)
            if room <= 0 or place >= len(self.running):  # preempted from the end
                break
            start = request.num_computed_tokens
            num_tokens = min(len(request.token_ids) - start, room)
            has_room = start + num_tokens <= len(request.block_table) * size  # mostly, in decodes
            if not has_room and not self._make_room(request, num_tokens, preempted):
                break
            grants.append(Grant(request, start, num_tokens))
            used += num_tokens
        if preempted:
            return StepPlan(tuple(grants), tuple(preempted))
        grants += self._admit(used, now)
        held_back = self.held_back(grants)
        return StepPlan(tuple(self._with_draft_places(grants)), (), held_back)

    def _room(self, used: int) -> int:
        """Tokens that a step with `used` tokens may still grant."""
        budget = self.config.step_token_limit
        if used or self.prompt_limit <= budget:
            return max(0, budget - used)
        decodes = any(request.num_uncomputed_tokens == 1 for request in self.running)
        return budget if decodes else self.prompt_limit

    def commit(self, plan: StepPlan, outcomes: Mapping[str, Outcome], now: float = 0.0) -> None:
        """Apply a computed step: append tokens, publish full blocks, free finished requests."""
        publishes, size = self.config.enable_prefix_caching, self.pool.block_size
        for grant in plan.grants:
            request = grant.request
            outcome = outcomes.get(request.request_id, _NOTHING_SAMPLED)
            failed = outcome.finish_reason is FinishReason.ERROR
            new = outcome.token_ids
            request.num_computed_tokens += grant.num_tokens
            if len(new) > 1:
                request.num_computed_tokens += outcome.num_accepted
            request.token_ids += new
            if grant.num_draft_places:
                self.tables.reject_drafts(request)
            if request.num_draft_kv_tokens:
                self.tables.mark_draft_kv(request)
            num_full = request.num_computed_tokens // size
            if publishes and num_full > request.num_published_blocks and not failed:
                self.tables.publish(request, now)
            if outcome.finish_reason is not None:
                if failed:
                    self.pool.withdraw(self.tables.private(request))
                self.finish(request, outcome.finish_reason, now)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        request.last_blocks = self.tables.last_blocks(request)
        self.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        request.finished = now

    # -- async scheduling -------------------------------------------------------------------

    def plan_next(self, plan: StepPlan) -> StepPlan | None:
        """The step after `plan`, which is being computed and not committed: the same requests, each
        with the token that it is about to get, without those that end with that token.

        None if that token must be known to plan the step: if a request computes a part of a prompt,
        has drafts, or could be admitted; if all requests end; if blocks would have to be preempted.
        """
        if [grant.request for grant in plan.grants] != self.running or not self.running:
            return None
        if not all(grant.samples and not grant.num_draft_places for grant in plan.grants):
            return None
        # `num_tokens` places are, or are being, filled; the token to come needs one more
        requests = [r for r in self.running if r.num_tokens + 1 < r.max_num_tokens]
        budget = self.config.step_token_limit - len(requests)
        if not requests or budget < 0 or len(self.running) > self.config.max_num_seqs:
            return None
        if self.waiting and (len(requests) < len(self.running) or self.could_admit(budget)):
            return None
        needed = [self.tables.missing(request, request.num_tokens + 1) for request in requests]
        if sum(needed) > self.pool.num_free_blocks:
            return None
        for request in requests:
            self.tables.extend(request, request.num_tokens + 1)
        grants = tuple(Grant(request, request.num_tokens, 1) for request in requests)
        return StepPlan(grants, (), self.held_back(grants))

    def revoke_next(self, plan: StepPlan) -> None:
        """Cancel `plan_next`: the step will be planned again."""
        for grant in plan.grants:
            if grant.request.state is RequestState.RUNNING:
                self.tables.shorten(grant.request, grant.start)

    def could_admit(self, budget: int) -> bool:
        """Whether the first waiting request would join a step with `budget` tokens left."""
        if not self.waiting or len(self.running) >= self.config.max_num_seqs or budget <= 0:
            return False
        if self.config.batching == "static" and self._batch_places == 0:
            return False
        first, promised = self._first_in_line(budget), self.tables.promised(self.running)
        return first is not None and self._has_room(first.blocks, first.cached, promised)

    # -- drafts -----------------------------------------------------------------------------

    def _with_draft_places(self, grants: list[Grant]) -> list[Grant]:
        """The grants, with room for drafts behind decoding requests as far as the budget and the
        free blocks go. A draft beyond the request's last token would be computed in vain."""
        if not any(grant.request.draft_limit for grant in grants):
            return grants
        budget = self.config.step_token_limit - sum(grant.num_tokens for grant in grants)
        result = []
        for grant in grants:
            request, places = grant.request, 0
            if request.draft_limit and grant.is_decode and grant.samples:
                left = request.max_num_tokens - request.num_tokens - 1
                room = (len(request.block_table) + self.pool.num_free_blocks) * self.pool.block_size
                places = min(request.draft_limit, budget, left, room - request.num_tokens)
            if places > 0:
                self.tables.extend(request, request.num_tokens + places)
                grant = grant._replace(num_draft_places=places)
                budget -= places
            result.append(grant)
        return result

    # -- room and admission -----------------------------------------------------------------

    def _make_room(self, request: Request, num_tokens: int, preempted: list[Request]) -> bool:
        """Blocks for the request's next tokens, preempting from the end of the running list.
        False if the request itself had to go."""
        end = request.num_computed_tokens + num_tokens
        missing = self.tables.missing(request, end)
        if missing <= 0:
            return True
        while missing > self.pool.num_free_blocks:
            victim = self.running.pop()
            preempted.append(self._preempt(victim))
            if victim is request:
                return False
        self.tables.extend(request, end)
        return True

    def _admit(self, used: int, now: float) -> list[Grant]:
        """used: tokens that the step has granted."""
        grants: list[Grant] = []
        if not self.running:
            self._batch_places = min(len(self.waiting), self.config.max_num_seqs)
        promised = self.tables.promised(self.running) if self.waiting else 0
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            if self.config.batching == "static" and self._batch_places == 0:
                break
            room = self._room(used)
            first = self._first_in_line(room) if room else None
            if first is None:
                break
            request, cached, num_tokens, total = first
            if not self._has_room(total, cached, promised):
                self._batch_places = 0
                break
            num_cached_tokens = len(cached) * self.pool.block_size
            # at once: where memory runs out below, it is preempted with the others
            self.running.append(self.waiting.pop(0))
            self.pool.acquire(cached)
            request.block_table += cached
            now_needed = self.tables.reserved_tokens(request, num_cached_tokens + num_tokens)
            promised += total - self.tables.extend(request, now_needed)
            self._start(request, num_cached_tokens, now)
            grant = Grant(request, num_cached_tokens, num_tokens, num_cached_tokens)
            grants.append(grant._replace(is_resumed=request.num_preemptions > 0))
            self._batch_places = max(0, self._batch_places - 1)
            used += num_tokens
        return grants

    def _first_in_line(self, budget: int) -> Candidate | None:
        """The first waiting request; None if it has to wait for a step with more budget."""
        request = self.waiting[0]
        cached = self.tables.find_prefix(request)
        num_cached_tokens = len(cached) * self.pool.block_size
        num_tokens = min(request.num_tokens - num_cached_tokens, budget)
        whole = num_cached_tokens + num_tokens == request.num_tokens
        if not whole and not self.config.enable_chunked_prefill:
            return None
        total = self.pool.blocks_for(self.tables.admitted_tokens(request)) - len(cached)
        return Candidate(request, cached, num_tokens, total)

    def held_back(self, grants: Iterable[Grant]) -> tuple[Request, ...]:
        """Those that continuous batching would admit to this step, and a static batch does not.
        Cached prefixes are not counted on."""
        is_closed = self.config.batching == "static" and self.running and not self._batch_places
        if not is_closed or not self.waiting:
            return ()
        budget = self.config.step_token_limit - sum(g.num_tokens for g in grants)
        if budget <= 0:
            return ()
        needed, held = self.tables.promised(self.running), []
        for request in self.waiting[: self.config.max_num_seqs - len(self.running)]:
            needed += self.pool.blocks_for(self.tables.admitted_tokens(request))
            if not self._has_room(needed, [], 0):
                break
            held.append(request)
        return tuple(held)

    def _start(self, request: Request, num_cached_tokens: int, now: float) -> None:
        if request.first_scheduled is None:
            request.first_scheduled = now
            request.num_cached_tokens = num_cached_tokens
            if self.config.enable_prefix_caching:
                self.prefix_queries += request.num_tokens
                self.prefix_hits += num_cached_tokens
        request.num_computed_tokens = num_cached_tokens
        request.num_published_blocks = num_cached_tokens // self.pool.block_size
        request.draft_kv_start, request.num_draft_kv_tokens = self.tables.cached_draft_kv(request)
        request.state = RequestState.RUNNING

    def _has_room(self, needed: int, cached: list[int], promised: int) -> bool:
        """Whether `needed` new blocks and the cached ones leave the watermark free. What running
        requests still need for their own prompts is promised to them."""
        taken_back = sum(self.pool.ref_count[block] == 0 for block in cached)
        left = self.pool.num_free_blocks - taken_back - needed - promised
        watermark = int(self.config.watermark * self.pool.num_blocks) if self.running else 0
        return left >= watermark

    def _preempt(self, request: Request) -> Request:
        """Free the request's blocks and queue it again; the caller took it off the running."""
        self.tables.release(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        request.state = RequestState.PREEMPTED
        self.add(request)
        return request

    # -- checks -----------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every invariant of scheduler and pool holds between steps."""
        grants = () if self.next_plan is None else self.next_plan.grants
        ends = {grant.request.request_id: grant.end for grant in grants}
        check_invariants(self.tables, self.waiting, self.running, ends)
