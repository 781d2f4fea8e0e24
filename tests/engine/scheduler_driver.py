"""Drives a scheduler without a model: "sampling" is a function of the sequence alone, so that
the right output of a request is known however it is scheduled."""

from __future__ import annotations

import itertools
import random

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool, root_hash
from engine.scheduling.request import Grant, Outcome, Request, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import FinishReason

VOCAB = 50


def next_token(token_ids: list[int]) -> int:
    """The only right continuation of a sequence."""
    return (sum(token_ids) * 31 + len(token_ids) * 7) % VOCAB


def expected_output(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Driver:
    """A scheduler, a pool, and a fake KV cache that remembers which token each slot holds.

    With `drafts` every decoding request has that many drafts in a step, of which the first
    `num_right` (drawn anew by `random`) are what comes next.
    """

    def __init__(
        self, config: EngineConfig, num_blocks: int, drafts: int = 0, prompt_limit: int = 0
    ) -> None:
        self.config, self.prompt_limit = config, prompt_limit
        self.drafts = drafts
        self.random = random.Random(0)
        self.arrivals = itertools.count()
        self.done: dict[str, Request] = {}
        self.wanted: dict[str, list[int]] = {}
        self._new_pool(config, num_blocks)
        self.scheduler = Scheduler(config, self.pool, self.root, prompt_limit)

    def _new_pool(self, config: EngineConfig, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, config.block_size)
        self.root = root_hash((next(self.arrivals),))
        self.slots: dict[int, tuple[int, int]] = {}  # slot -> (position, token)

    def add(self, prompt: list[int], max_tokens: int) -> Request | None:
        """None where the request can never fit."""
        if self.pool.blocks_for(len(prompt) + max_tokens - 1) > self.pool.num_blocks:
            return None
        index = next(self.arrivals)
        request = Request(
            request_id=f"r{index}",
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=max_tokens),
            arrival_index=index,
            arrival_time=float(index),
            max_num_tokens=len(prompt) + max_tokens,
        )
        self.wanted[request.request_id] = expected_output(prompt, max_tokens)
        self.scheduler.add(request)
        return request

    def rebuild(self, config: EngineConfig, num_blocks: int) -> None:
        self.scheduler.preempt_all()
        self._new_pool(config, num_blocks)
        self.config = config
        self.scheduler.replace_pool(config, self.pool, self.root, self.prompt_limit)

    def step(self) -> StepPlan:
        for request in self.scheduler.running:
            request.draft_limit = self.random.randint(0, self.drafts)
        plan = self.scheduler.plan()
        plan = plan._replace(grants=tuple(self._draft(grant) for grant in plan.grants))
        self._check_plan(plan)
        outcomes: dict[str, Outcome] = {}
        for grant in plan.grants:
            self._write(grant)
            self._check_read(grant)
            if grant.samples:
                outcomes[grant.request.request_id] = self._sample(grant)
        self.scheduler.commit(plan, outcomes)
        self.scheduler.check_integrity()
        for grant in plan.grants:
            if grant.request.finish_reason:
                self.done[grant.request.request_id] = grant.request
                assert grant.request.output_token_ids == self.wanted[grant.request.request_id]
        return plan

    def run(self, limit: int = 10_000) -> int:
        for steps in range(limit):
            if not self.scheduler.has_unfinished:
                return steps
            assert self.step().grants, "a step that computes nothing would repeat for ever"
        raise AssertionError(f"not finished after {limit} steps")

    def _draft(self, grant: Grant) -> Grant:
        """Fill the places with drafts, the first of them right; the draft's own KV is there for
        all of them but the last."""
        if not grant.num_draft_places:
            return grant
        request = grant.request
        tokens = list(request.token_ids)
        num_right = self.random.randint(0, grant.num_draft_places)
        for i in range(grant.num_draft_places):
            tokens.append(next_token(tokens) if i < num_right else VOCAB)
        drafts = tuple(tokens[request.num_tokens :])
        request.num_draft_kv_tokens = request.num_tokens + len(drafts) - 1
        return grant._replace(draft_token_ids=drafts)

    def _sample(self, grant: Grant) -> Outcome:
        request = grant.request
        tokens, new = list(request.token_ids), list[int]()
        for draft in (*grant.draft_token_ids, None):
            new.append(next_token(tokens))
            tokens.append(new[-1])
            if len(tokens) >= request.max_num_tokens:
                return Outcome(tuple(new), FinishReason.LENGTH)
            if new[-1] != draft:
                break
        return Outcome(tuple(new))

    def _slot(self, request: Request, position: int) -> int:
        block, offset = divmod(position, self.pool.block_size)
        return request.block_table[block] * self.pool.block_size + offset

    def _write(self, grant: Grant) -> None:
        request = grant.request
        tokens = (*request.token_ids, *grant.draft_token_ids)
        for position in range(grant.start, grant.end):
            block = request.block_table[position // self.pool.block_size]
            assert self.pool.ref_count[block] == 1, "writes into a block that is shared"
            assert self.pool.block_hash[block] is None, "writes into a published block"
            self.slots[self._slot(request, position)] = (position, tokens[position])

    def _check_read(self, grant: Grant) -> None:
        tokens = (*grant.request.token_ids, *grant.draft_token_ids)
        for position in range(grant.end):
            assert self.slots[self._slot(grant.request, position)] == (
                position,
                tokens[position],
            ), "the cache holds another token than the sequence"

    def _check_plan(self, plan: StepPlan) -> None:
        budget = self.scheduler.config.step_token_limit
        if plan.num_tokens > budget:  # of one prompt, and nobody who decodes waits for it
            (grant,) = plan.grants
            assert grant.num_tokens <= self.prompt_limit
        assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
        assert all(grant.num_tokens > 0 for grant in plan.grants)
        written = [
            self._slot(grant.request, position)
            for grant in plan.grants
            for position in range(grant.start, grant.end)
        ]
        assert len(set(written)) == len(written), "two tokens go to one slot"
        if self.config.kv_allocation == "paged":
            for grant in plan.grants:
                held = len(grant.request.block_table) * self.pool.block_size
                end = grant.start + grant.num_tokens + grant.num_draft_places
                assert held - end < self.pool.block_size
