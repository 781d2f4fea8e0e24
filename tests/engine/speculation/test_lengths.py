"""Drafts are as long as they pay."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.scheduling.request import Request
from engine.speculation.lengths import CostModel, StepCost, choose_lengths
from engine.speculation.ngram import NgramProposer
from engine.speculation.speculator import PROBE_ROUNDS, Speculator
from engine.speculation.statistics import (
    PROBE_INTERVAL,
    Acceptance,
    PositionAcceptance,
    SpeedMeter,
    expected_tokens,
    num_accepted,
)

costs = st.builds(StepCost, st.floats(0.001, 1), st.floats(0, 0.5), st.floats(0, 0.5))
rates = st.lists(st.floats(0, 0.99), min_size=1, max_size=4)


def tokens_per_second(rates: list[float], lengths: list[int], cost: StepCost) -> float:
    tokens = sum(expected_tokens(r, n) for r, n in zip(rates, lengths, strict=True))
    seconds = cost.step(len(rates) + sum(lengths)) + max(lengths) * cost.per_pass
    return tokens / seconds


def worth_of(rates: list[float], limit: int) -> list[list[float]]:
    """Of requests whose drafts stand equally often at every place."""
    return [[rate**j for j in range(1, limit + 1)] for rate in rates]


@given(rates=rates, limit=st.integers(0, 8), cost=costs)
def test_limits_hold_and_nothing_is_worse_than_no_drafts(
    rates: list[float], limit: int, cost: StepCost
) -> None:
    lengths = choose_lengths(worth_of(rates, limit), cost)
    assert all(0 <= n <= limit for n in lengths)
    plain = tokens_per_second(rates, [0] * len(rates), cost)
    assert tokens_per_second(rates, lengths, cost) >= plain * (1 - 1e-9)


@given(rate=st.floats(0, 0.99), cost=costs)
def test_for_one_request_the_choice_is_the_best(rate: float, cost: StepCost) -> None:
    (length,) = choose_lengths(worth_of([rate], 6), cost)
    best = max(tokens_per_second([rate], [n], cost) for n in range(7))
    assert tokens_per_second([rate], [length], cost) == pytest.approx(best)


def test_a_large_batch_that_is_limited_by_arithmetic_drafts_less() -> None:
    bandwidth, arithmetic = StepCost(1.0, 0.001, 0.05), StepCost(0.01, 1.0, 0.05)
    assert choose_lengths(worth_of([0.8] * 16, 4), bandwidth) == [4] * 16
    assert choose_lengths(worth_of([0.8] * 16, 4), arithmetic) == [0] * 16


def test_who_is_accepted_more_drafts_more() -> None:
    lengths = choose_lengths(worth_of([0.95, 0.3, 0.02], 8), StepCost(1.0, 0.05, 0.02))
    assert lengths[0] > lengths[1] >= lengths[2]


def test_steps_in_which_drafting_gave_itself_up_are_counted() -> None:
    config = EngineConfig(speculative_method="ngram", num_speculative_tokens=4)
    speculator = Speculator(config, NgramProposer(config))
    costs = speculator._costs
    costs.passes(1, 1.0)  # a draft costs as much as a hundred steps
    for tokens in (1, 2, 3, 4, 1, 2):
        costs.step(tokens, 0.01)
    request = Request("r", [1, 2], SamplingParams(), 0, 0.0, 100)
    request.token_ids += [3]
    request.num_computed_tokens = 2
    seen = []
    for _ in range(PROBE_ROUNDS + 2):
        speculator.set_limits([request], 0)
        seen.append((request.draft_limit, speculator._rest_steps))
    assert [rest for _, rest in seen] == list(range(1, PROBE_ROUNDS + 3))
    assert [limit for limit, _ in seen].count(1) == 1  # one try, which does not end the rest
    speculator.update(config.replace(speculative_adaptive=False))
    speculator.set_limits([request], 0)
    assert request.draft_limit == 4 and speculator._rest_steps == 0


def test_the_graphs_of_the_engine_are_asked_what_is_replayed() -> None:
    """Not where somebody's prompt is computed in the same step: that is launched."""

    class Graphs:
        asked: ClassVar[list[tuple[int, int]]] = []

        def replays(self, num_tokens: int, extra: int) -> bool:
            self.asked.append((num_tokens, extra))
            return not extra

    config = EngineConfig(speculative_method="ngram", num_speculative_tokens=2)
    speculator = Speculator(config, NgramProposer(config))
    speculator._costs.passes(1, 0.0)
    for _ in range(3):
        speculator._costs.step(1, 0.001, is_replayed=True)
        speculator._costs.step(3, 0.1)
    decoding, prompt = (Request(n, [1, 2], SamplingParams(), 0, 0.0, 100) for n in ("a", "b"))
    decoding.token_ids += [3]
    decoding.num_computed_tokens = 2
    graphs: Any = Graphs()
    speculator.set_limits([decoding], 0, graphs)
    assert graphs.asked == [(1, 0), (2, 3), (3, 3 + 4)] and decoding.draft_limit == 0
    graphs.asked.clear()
    speculator.set_limits([decoding, prompt], 0, graphs)
    assert graphs.asked == [] and decoding.draft_limit == 2


def test_a_slow_draft_model_is_not_asked() -> None:
    assert choose_lengths(worth_of([0.7], 4), StepCost(1.0, 0.0, 0.9)) == [0]


def test_a_draft_that_loses_its_way_is_kept_short() -> None:
    places = PositionAcceptance()
    assert places.worth(2) == pytest.approx([0.7, 0.49])
    for _ in range(200):
        places.observe(8, 4)  # four stand, the fifth never does
    worth = places.worth(8)
    assert worth[3] > 0.9 and worth[4] < 0.05
    assert choose_lengths([worth], StepCost(1.0, 0.05, 0.05)) == [4]
    assert places.worth(4, scale=0.5)[0] == pytest.approx(worth[0] / 2, rel=0.02)


def test_costs_are_found_from_steps_of_different_size() -> None:
    model = CostModel()
    assert model.cost is None
    for tokens, _ in itertools.product((1, 5, 3, 2), range(5)):
        model.step(tokens, 0.010 + 0.002 * tokens)
        model.passes(3, 0.006)
    assert model.cost is not None
    assert model.cost[:3] == pytest.approx((0.010, 0.002, 0.002)) and model.cost.replayed is None


def test_steps_that_are_all_alike_say_nothing_about_a_token() -> None:
    model = CostModel()
    for _ in range(20):
        model.step(4, 0.02)
        model.passes(1, 0.001)
    assert model.cost is None


def test_replayed_and_launched_steps_have_a_line_each() -> None:
    model = CostModel()
    for tokens, _ in itertools.product((1, 5, 3, 2), range(5)):
        model.step(tokens, 0.004 + 0.0001 * tokens, is_replayed=True)
        model.step(tokens, 0.010 + 0.002 * tokens)
        model.passes(3, 0.006)
    cost = model.cost
    assert cost is not None
    assert cost[:3] == pytest.approx((0.010, 0.002, 0.002))
    assert cost.replayed == pytest.approx((0.004, 0.0001))
    assert cost.step(4, is_replayed=True) == pytest.approx(0.0044)


def test_kinds_whose_steps_were_alike_cost_what_they_cost() -> None:
    """Plain steps are replayed, those with drafts launched: no line goes from one to the other."""
    model = CostModel()
    model.passes(4, 0.004)
    for _ in range(3):
        model.step(1, 0.004, is_replayed=True)
    assert model.cost is None
    for tokens in (5, 5, 5):
        model.step(tokens, 0.012)
    cost = model.cost
    assert cost is not None
    assert cost.step(1, is_replayed=True) == pytest.approx(0.004)
    assert [cost.step(n) for n in (2, 5)] == pytest.approx([0.012, 0.012])


def test_one_step_of_the_other_kind_is_no_line() -> None:
    model = CostModel()
    model.passes(1, 0.001)
    for tokens in (1, 4, 2, 6):
        model.step(tokens, 0.01 + 0.001 * tokens)
    model.step(1, 9.0, is_replayed=True)
    cost = model.cost
    assert cost is not None and cost.replayed is None
    assert cost.step(3, is_replayed=True) == cost.step(3) == pytest.approx(0.013)


def test_a_draft_that_makes_a_step_a_launched_one_has_to_pay_for_it() -> None:
    """Of rows that are replayed while they read little enough."""
    cost = StepCost(0.012, 0.0, 0.0005, replayed=(0.004, 0.0))
    worth = worth_of([0.8], 4)
    assert choose_lengths(worth, cost) == [4]  # everything is launched

    def two_at_most(num_tokens: int, extra: int) -> bool:
        return extra <= 100 + 101

    assert choose_lengths(worth, cost, [100], two_at_most) == [2]
    assert choose_lengths(worth, cost, [150], two_at_most) == [1]
    assert choose_lengths(worth, cost, [250], two_at_most) == [0]
    dear = cost._replace(replayed=(0.011, 0.0))
    assert choose_lengths(worth, dear, [250], two_at_most) == [4]  # launched, and worth it


def test_the_rate_follows_what_happens_now() -> None:
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.observe(4, 4)
    assert acceptance.rate > 0.95
    for _ in range(20):
        acceptance.observe(4, 0)
    assert acceptance.rate < 0.2


def test_drafts_behind_a_rejected_one_do_not_count() -> None:
    acceptance = Acceptance(usual=0.5)
    for _ in range(100):
        acceptance.observe(8, 1)  # one stood, one was rejected, six say nothing
    assert acceptance.rate == pytest.approx(0.5, abs=0.01)


def test_expected_tokens_of_a_round() -> None:
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616)
    assert expected_tokens(0.0, 4) == 1
    assert expected_tokens(1.0, 4) == 5


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=6))
def test_accepted_is_the_common_beginning(drafts: list[int], tokens: list[int]) -> None:
    count = num_accepted(drafts, tokens)
    assert drafts[:count] == tokens[:count]
    if count < min(len(drafts), len(tokens)):
        assert drafts[count] != tokens[count]


def test_the_speed_up_is_that_of_the_steps() -> None:
    meter = SpeedMeter()
    assert meter.speed_up is None
    for _ in range(30):
        meter.observe(2, 6, 0.030, drafted=True)
    for _ in range(5):
        meter.observe(2, 2, 0.020, drafted=False)
    found = meter.speed_up
    assert found is not None
    assert found.factor == pytest.approx(2.0)
    assert (found.num_drafted_steps, found.num_plain_steps) == (30, 5)


def test_batches_of_another_size_are_not_compared() -> None:
    meter = SpeedMeter()
    for _ in range(5):
        meter.observe(2, 6, 0.030, drafted=True)
        meter.observe(8, 8, 0.020, drafted=False)
    assert meter.speed_up is None


def test_probing_costs_less_than_two_percent_of_the_steps() -> None:
    meter, plain = SpeedMeter(), 0
    for _ in range(4000):
        probe = meter.wants_plain_step()
        plain += probe
        meter.observe(1, 1 if probe else 3, 0.01, drafted=not probe)
    assert 0 < plain < 4000 * 0.02
    assert PROBE_INTERVAL >= 50
