"""Scheduling never changes tokens, never breaks the books, and starves nobody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.config import EngineConfig
from engine.scheduling.request import Outcome, StepPlan
from engine.snapshot import FinishReason, RequestState
from tests.engine.scheduler_driver import VOCAB, Driver, next_token
from tests.tiers import examples

configs = st.builds(
    EngineConfig,
    max_model_len=st.just(64),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    batching=st.sampled_from(["continuous", "static"]),
    enable_prefix_caching=st.booleans(),
    enable_chunked_prefill=st.booleans(),
    watermark=st.sampled_from([0.0, 0.05, 0.3]),
    block_size=st.integers(1, 7),
    kv_allocation=st.sampled_from(["paged", "contiguous"]),
)
# Few distinct tokens, so that prefixes are often shared.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)
jobs = st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=8)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, reconfigures and steps at random; the driver checks after every step."""

    @initialize(
        config=configs, num_blocks=st.integers(8, 40), drafts=st.sampled_from([0, 0, 1, 3, 8]),
        prompt_limit=st.sampled_from([0, 20, 60]),
    )  # fmt: skip
    def start(
        self, config: EngineConfig, num_blocks: int, drafts: int, prompt_limit: int
    ) -> None:
        self.driver = Driver(config, num_blocks, drafts, prompt_limit)

    @rule(prompt=prompts, max_tokens=st.integers(1, 12))
    def add(self, prompt: list[int], max_tokens: int) -> None:
        self.driver.add(prompt, max_tokens)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: self.driver.scheduler.has_unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.driver.scheduler.requests))
        self.driver.scheduler.finish(request, FinishReason.ABORT, 0.0)
        self.driver.scheduler.check_integrity()
        assert request.state is RequestState.FINISHED and not request.block_table

    @rule(config=configs)
    def change_live_settings(self, config: EngineConfig) -> None:
        kept = self.driver.config
        wanted = config.replace(block_size=kept.block_size, kv_allocation=kept.kv_allocation)
        self.driver.config = wanted
        self.driver.scheduler.update(wanted, self.driver.prompt_limit)
        self.driver.scheduler.check_integrity()

    @rule(config=configs)
    def rebuild_cache(self, config: EngineConfig) -> None:
        places = max((r.max_num_tokens - 1 for r in self.driver.scheduler.requests), default=1)
        self.driver.rebuild(config, -(-places // config.block_size) + 2)
        self.driver.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.run()  # nobody starves: everything that was admitted comes to its end
            assert self.driver.pool.num_free_blocks == self.driver.pool.num_blocks


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)


@given(config=configs, num_blocks=st.integers(8, 60), work=jobs, drafts=st.sampled_from([0, 2, 5]))
def test_every_request_gets_its_own_tokens(
    config: EngineConfig, num_blocks: int, work: list[tuple[list[int], int]], drafts: int
) -> None:
    driver = Driver(config, num_blocks, drafts)
    accepted = [r for prompt, count in work if (r := driver.add(prompt, count))]
    driver.run()
    assert set(driver.done) == {r.request_id for r in accepted}


@given(config=configs, work=jobs, drafts=st.sampled_from([0, 4]))
def test_paging_loses_less_than_a_block_per_request(
    config: EngineConfig, work: list[tuple[list[int], int]], drafts: int
) -> None:
    driver = Driver(config.replace(kv_allocation="paged"), 60, drafts)
    for prompt, count in work:
        driver.add(prompt, count)
    while driver.scheduler.has_unfinished:
        driver.step()
        running = [r for r in driver.scheduler.running if r.num_computed_tokens]
        lost = sum(len(r.block_table) * config.block_size - r.num_computed_tokens for r in running)
        exact = sum(-r.num_computed_tokens % config.block_size for r in running)
        assert lost == exact <= (config.block_size - 1) * len(running)


def test_first_admissions_follow_arrival() -> None:
    driver = Driver(EngineConfig(max_num_seqs=2, max_num_batched_tokens=8, block_size=4), 6)
    requests = [driver.add([i % 2] * (3 + i), 6) for i in range(6)]
    first_seen: list[str] = []
    while driver.scheduler.has_unfinished:
        for grant in driver.step().grants:
            if grant.request.request_id not in first_seen:
                first_seen.append(grant.request.request_id)
    assert first_seen == [r.request_id for r in requests if r]


@pytest.mark.parametrize(
    ("limit", "steps"),
    [
        (0, [[8], [8], [4, 4], [1, 6], [1, 1]]),
        (16, [[16], [4, 4], [1, 6], [1, 1]]),
        (64, [[20], [1, 7], [1, 3], [1, 1]]),
    ],
)
def test_a_prompt_gets_more_than_the_budget_while_no_request_decodes(
    limit: int, steps: list[list[int]]
) -> None:
    """Not the one behind it, and not where the budget was set since."""
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=8, block_size=4, enable_prefix_caching=False
    )
    driver = Driver(config, 40, prompt_limit=limit)
    driver.add([0] * 20, 8)
    driver.add([1] * 10, 4)
    plans = [driver.step() for _ in steps]
    assert [[grant.num_tokens for grant in plan.grants] for plan in plans] == steps
    driver.run()
    driver.scheduler.update(config)
    driver.add([0] * 20, 8)
    assert driver.step().num_tokens == 8


def test_a_step_that_preempted_admits_nobody() -> None:
    config = EngineConfig(max_num_seqs=8, block_size=1, watermark=0.0, enable_prefix_caching=False)
    driver = Driver(config, 20)
    for _ in range(5):
        driver.add([0, 1, 0, 1], 12)
    preempting = 0
    while driver.scheduler.has_unfinished:
        running = set(driver.scheduler.running)
        plan = driver.step()
        if plan.preempted:
            preempting += 1
            assert {grant.request for grant in plan.grants} <= running
    assert preempting > 0


def test_the_watermark_prevents_preemption_thrash() -> None:
    def preemptions(watermark: float) -> int:
        config = EngineConfig(
            max_num_seqs=32, block_size=4, watermark=watermark, enable_prefix_caching=False
        )
        driver = Driver(config, 100)
        for i in range(40):
            driver.add([i % 3] * (8 + i % 9), 12 + i % 13)
        driver.run()
        return driver.scheduler.num_preemptions

    assert preemptions(0.25) < preemptions(0.0)


def test_static_batching_runs_a_batch_to_its_last_request() -> None:
    driver = Driver(EngineConfig(max_num_seqs=2, batching="static", block_size=4), 40)
    short, long, third = driver.add([1], 2), driver.add([0], 9), driver.add([1, 1], 3)
    assert short and long and third
    while third.state is RequestState.WAITING:
        assert long.finish_reason is None
        driver.step()
        if long.finish_reason is not None:
            break
    assert short.finish_reason and third.state is RequestState.WAITING
    driver.run()
    assert third.finish_reason is FinishReason.LENGTH


def test_who_waits_beside_an_idle_slot_is_told_in_static_batching_alone() -> None:
    def held(batching: str, num_blocks: int = 40, third: int = 2) -> list[list[str]]:
        driver = Driver(EngineConfig(max_num_seqs=2, batching=batching, block_size=4), num_blocks)
        for prompt, length in (([1], 2), ([0], 5), ([1] * third, 3), ([2], 3)):
            driver.add(prompt, length)
        plans = [driver.step() for _ in range(5)]
        return [[request.request_id for request in plan.held_back] for plan in plans]

    assert held("static") == [[], [], ["r3"], ["r3"], ["r3"]]
    assert held("continuous") == [[]] * 5
    assert held("static", 6, third=21) == [[]] * 5  # it has no room before the other has ended


def test_the_first_step_after_a_preemption_is_told() -> None:
    driver = Driver(EngineConfig(block_size=4, watermark=0.0, enable_prefix_caching=False), 8)
    for _ in range(3):
        driver.add([0, 1, 2], 14)
    resumed: list[str] = []
    preempted: list[str] = []
    while driver.scheduler.has_unfinished:
        plan = driver.step()
        resumed += [g.request.request_id for g in plan.grants if g.is_resumed]
        preempted += [request.request_id for request in plan.preempted]
    assert preempted and sorted(resumed) == sorted(preempted)


def test_a_static_batch_fills_though_its_prompts_exceed_one_budget() -> None:
    config = EngineConfig(
        max_num_seqs=4, batching="static", block_size=4, max_num_batched_tokens=10
    )
    driver = Driver(config, 60)
    for _ in range(6):
        driver.add([0, 1] * 4, 20)
    for _ in range(8):
        driver.step()
    assert len(driver.scheduler.running) == 4


def test_without_chunking_a_prompt_is_computed_in_one_step() -> None:
    config = EngineConfig(
        max_num_batched_tokens=4, enable_chunked_prefill=False, max_model_len=64, block_size=4
    )
    driver = Driver(config, 40)
    request = driver.add([1] * 30, 2)
    driver.add([0] * 20, 2)
    plan = driver.step()
    assert plan.grants[0].request is request and plan.grants[0].num_tokens == 30
    driver.run()


def test_a_shared_prefix_is_computed_once_and_a_hit_leaves_a_token_to_compute() -> None:
    driver = Driver(EngineConfig(block_size=4), 40)
    driver.add([1] * 16, 4)
    driver.run()
    again = driver.add([1] * 16, 4)
    assert again is not None
    plan = driver.step()
    assert plan.grants[0].num_cached_tokens == 12 and plan.grants[0].num_tokens == 4
    driver.run()
    assert driver.scheduler.prefix_hits == 12


def test_lowering_max_num_seqs_holds_from_the_next_step() -> None:
    driver = Driver(EngineConfig(max_num_seqs=6, block_size=4), 60)
    for _ in range(6):
        driver.add([0, 1, 0], 20)
    driver.step()
    driver.scheduler.update(driver.config.replace(max_num_seqs=2))
    driver.step()
    assert len(driver.scheduler.running) == 2
    driver.run()


@pytest.mark.parametrize(("allocation", "fits"), [("paged", 4), ("contiguous", 1)])
def test_contiguous_allocation_reserves_the_longest_length(allocation: str, fits: int) -> None:
    config = EngineConfig(block_size=4, kv_allocation=allocation, watermark=0.0)
    driver = Driver(config, 10)
    for _ in range(4):
        driver.add([0, 1, 0, 1], 20)
    driver.step()
    assert len(driver.scheduler.running) == fits


def test_drafts_take_only_what_nobody_else_wants() -> None:
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=10, block_size=4)
    driver = Driver(config, 40)
    first, second = driver.add([1, 0], 20), driver.add([0] * 30, 4)
    assert first and second
    driver.step()
    first.draft_limit = 8
    plan = driver.scheduler.plan()  # the prompt takes the rest of the budget
    assert [grant.num_draft_places for grant in plan.grants] == [0, 0]


def test_drafts_never_preempt_and_never_pass_the_end_of_the_request() -> None:
    config = EngineConfig(max_num_seqs=4, block_size=1, watermark=0.0, enable_prefix_caching=False)
    driver = Driver(config, 11)
    requests = [driver.add([1, 0], 6), driver.add([0, 1], 4)]
    driver.step()
    for request in requests:
        assert request is not None
        request.draft_limit = 8
    plan = driver.scheduler.plan()
    # 11 blocks: 2 x 3 hold tokens; the first may have 6 - 1 - 1 drafts, one block is left then
    assert [grant.num_draft_places for grant in plan.grants] == [4, 1]
    assert not plan.preempted


def test_rejected_drafts_give_their_blocks_back() -> None:
    driver = Driver(EngineConfig(block_size=2), 20)
    request = driver.add([1, 0, 1], 12)
    assert request is not None
    driver.step()
    request.draft_limit = 6
    plan = driver.scheduler.plan()
    grant = plan.grants[0]._replace(draft_token_ids=(VOCAB,) * 6)
    assert len(request.block_table) == 5
    token = next_token(request.token_ids)
    driver.scheduler.commit(StepPlan((grant,), ()), {request.request_id: Outcome((token,))})
    driver.scheduler.check_integrity()
    assert len(request.block_table) == 2
    assert driver.pool.num_free_blocks == 18


def test_a_prefix_hit_knows_how_much_of_it_has_draft_kv() -> None:
    driver = Driver(EngineConfig(block_size=2), 30, drafts=3)
    driver.add([1, 0] * 4, 8)
    driver.run()
    driver.drafts = 0
    with_drafts = driver.add([1, 0] * 4, 2)
    driver.add([0, 1] * 4, 8)
    driver.run()
    without = driver.add([0, 1] * 4, 2)
    driver.step()
    assert with_drafts is not None and without is not None
    assert without.num_cached_tokens == 6 and without.num_draft_kv_tokens == 0
    again = driver.add([1, 0] * 4, 2)
    driver.scheduler.plan()
    assert again is not None
    assert again.num_cached_tokens == again.num_draft_kv_tokens == 6


def test_a_hit_under_hidden_states_gives_up_a_block_and_counts_draft_kv_from_its_end() -> None:
    """The KV of a head cannot be caught up with: of a hit, the run that reaches its end counts."""
    config = EngineConfig(block_size=2, speculative_method="eagle3", speculative_model="head")
    driver = Driver(config, 30)
    first = driver.add([1, 0] * 4, 2)
    assert first is not None
    driver.run()
    blocks = driver.pool.lookup(first.block_hashes)
    assert len(blocks) == 4
    for has, expected in (([1, 1, 1], (0, 6)), ([1, 0, 1], (4, 6)), ([1, 1, 0], (6, 6))):
        for block, flag in zip(blocks, has, strict=False):
            driver.pool.has_draft_kv[block] = flag
        again = driver.add([1, 0] * 4 + [1], 2)
        assert again is not None
        driver.scheduler.plan()
        assert again.num_cached_tokens == 6
        assert (again.draft_kv_start, again.num_draft_kv_tokens) == expected
        driver.scheduler.remove(again)
        driver.scheduler.check_integrity()
    driver.scheduler.update(config.replace(num_speculative_tokens=0))
    last = driver.add([1, 0] * 4 + [1], 2)
    assert last is not None
    driver.scheduler.plan()
    assert last.num_cached_tokens == 8  # nothing is drafted: nothing is given up


def test_blocks_are_marked_from_where_the_draft_kv_begins() -> None:
    config = EngineConfig(block_size=2, speculative_method="eagle3", speculative_model="head")
    driver = Driver(config, 30)
    request = driver.add([1, 0] * 4, 6)
    assert request is not None
    driver.step()
    request.draft_kv_start, request.num_draft_kv_tokens = 4, 9
    driver.step()
    flags = [driver.pool.has_draft_kv[block] for block in request.block_table]
    assert flags == [0, 0, 1, 1, 0]
