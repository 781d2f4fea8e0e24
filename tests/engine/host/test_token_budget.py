"""The token budget that a CPU's steps are measured for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import LLMEngine
from engine.config import LARGEST_BUDGET, EngineConfig
from engine.errors import ConfigError
from engine.host import token_budget
from engine.host.token_budget import CHOICES, LIMIT_S, measured_budget
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduling.prompt_limit import PROMPT_LIMIT_S, prompt_tokens
from engine.snapshot import TokenBudget

MakeEngine = Callable[..., LLMEngine]


class Machine:
    """A runner with its clock: a step takes base + tokens * each seconds, and so many more in the
    calls numbered in `disturbed`."""

    def __init__(self, base: float, each: float, disturbed: Iterable[int] = ()) -> None:
        self.base, self.each, self.disturbed = base, each, set(disturbed)
        self.time, self.lengths, self.blocks = 0.0, list[int](), 0

    def runner(self, num_blocks: int) -> ModelRunner:
        self.blocks = num_blocks
        return cast(ModelRunner, self)

    def execute(self, batch: Any) -> None:
        number = len(self.lengths)
        self.lengths.append(len(batch.input_ids))
        assert int(batch.slot_mapping.max()) < self.blocks * BLOCK_SIZE
        self.time += self.taken(self.lengths[-1]) + 0.7 * (number in self.disturbed)

    def taken(self, tokens: int) -> float:
        return self.base + tokens * self.each

    def drop_cache(self) -> None:
        self.blocks = 0

    def budget(self, max_model_len: int = 4096) -> TokenBudget:
        config = EngineConfig(max_model_len=max_model_len, block_size=BLOCK_SIZE)
        return measured_budget(config, self.runner, lambda: self.time)


BLOCK_SIZE = 16


@given(
    base=st.floats(0, 0.3), each=st.floats(1e-6, 1e-2), max_model_len=st.sampled_from((1, 50, 4096))
)
def test_it_is_the_largest_step_within_the_limit(
    base: float, each: float, max_model_len: int
) -> None:
    """Up to a factor of 2 where a step takes more than 0.6 of it."""
    machine = Machine(base, each)
    found = machine.budget(max_model_len)
    assert found.seconds == pytest.approx(machine.taken(found.tokens))
    assert found.seconds <= LIMIT_S or found.tokens == CHOICES[0]
    if found.tokens < CHOICES[-1] and found.seconds <= 0.6 * LIMIT_S:
        assert machine.taken(2 * found.tokens) > LIMIT_S - 1e-9
    assert machine.blocks == 0 and max(machine.lengths) <= LARGEST_BUDGET
    most = prompt_tokens(found)
    assert most in CHOICES and most >= found.tokens
    longest = found.seconds * most / found.tokens
    assert longest <= PROMPT_LIMIT_S or most == found.tokens
    assert 2 * longest > PROMPT_LIMIT_S or most == CHOICES[-1]


def test_a_step_that_was_disturbed_is_repeated() -> None:
    undisturbed = Machine(0.01, 1e-4)
    assert undisturbed.budget().tokens == 2048
    for disturbed in range(len(undisturbed.lengths)):
        assert Machine(0.01, 1e-4, {disturbed}).budget() == pytest.approx(undisturbed.budget())


def test_a_slow_machine_is_not_measured_for_long() -> None:
    machine = Machine(1.0, 0.01)
    found = machine.budget()
    assert found.tokens == CHOICES[0] and found.seconds > found.limit_s
    assert machine.lengths == 3 * [CHOICES[0]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a measurement finds, one after the other."""
    to_find = [256, 128, 64]

    def found(config: EngineConfig, make_runner: Callable[[int], ModelRunner]) -> TokenBudget:
        runner = make_runner(8)  # it can be made from what is loaded
        runner.drop_cache()
        return TokenBudget(to_find.pop(0), 0.1, LIMIT_S)

    for room in ("loading", "model_host"):
        monkeypatch.setattr(f"engine.host.{room}.{token_budget.measured_budget.__name__}", found)
    return to_find


def test_what_is_left_open_is_measured_at_each_load(
    make_engine: MakeEngine, measured: list[int]
) -> None:
    engine = make_engine(max_num_batched_tokens=None)
    assert engine.config.max_num_batched_tokens == 256
    engine.reconfigure(seed=1)  # a reload
    assert engine.config.max_num_batched_tokens == 128
    engine.reconfigure(block_size=16)
    engine.reconfigure(max_num_batched_tokens=33)
    engine.reconfigure(seed=2)
    assert engine.config.max_num_batched_tokens == 33 and measured == [64]
    assert engine.reconfigure(max_num_batched_tokens=None) is not None  # not measured in this load
    budget = engine.model_info.token_budget
    assert budget is not None and engine.config.max_num_batched_tokens == budget.tokens == 64
    assert engine.reconfigure(max_num_batched_tokens=None) is None
    assert engine.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=2))[0].token_ids


def test_a_prompt_alone_is_computed_in_larger_steps_to_the_same_tokens(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = TokenBudget(64, 0.4, LIMIT_S)
    monkeypatch.setattr("engine.host.loading.measured_budget", lambda config, make: found)
    engine = make_engine(max_num_batched_tokens=None, enable_prefix_caching=False)
    prompts = [[n * k % 90 + 1 for n in range(200)] for k in (3, 5)]
    sizes: list[int] = []
    engine.report_steps(sizes.append, lambda: None)
    params = SamplingParams(temperature=0, max_tokens=4)
    larger = [result.token_ids for result in engine.generate(prompts, params)]
    assert sizes[:2] == [200, 64]  # the first decodes while the second is computed
    sizes.clear()
    engine.reconfigure(max_num_batched_tokens=63)  # set by the user
    assert [result.token_ids for result in engine.generate(prompts, params)] == larger
    assert max(sizes) == 63
    engine.reconfigure(block_size=8, max_num_batched_tokens=None)
    engine.generate(prompts[:1], params)
    assert max(sizes) == 200


def test_auto_stays_auto_where_a_load_measures_nothing(
    make_engine: MakeEngine, measured: list[int]
) -> None:
    """As on a GPU: a later load on a CPU measures."""
    engine = make_engine(max_num_batched_tokens=None)
    unmeasured = dataclasses.replace(engine.model_info, token_budget=None)
    engine._host.assembly.info = unmeasured
    assert engine.chosen_config.max_num_batched_tokens is None
    engine.reconfigure(seed=1)
    assert engine.config.max_num_batched_tokens == 128
    with pytest.raises(ConfigError):
        engine.reconfigure(max_num_batched_tokens=99, max_model_len=10**9)
    assert engine.chosen_config.max_num_batched_tokens is None


def test_the_measured_number_can_be_chosen(make_engine: MakeEngine, measured: list[int]) -> None:
    engine = make_engine(max_num_batched_tokens=None)
    assert engine.reconfigure(max_num_batched_tokens=256) is None  # it is in force
    engine.reconfigure(seed=1)
    assert engine.config.max_num_batched_tokens == 256 and measured == [128, 64]


def test_what_is_chosen_is_not_measured(make_engine: MakeEngine, measured: list[int]) -> None:
    engine = make_engine(max_num_batched_tokens=100)
    assert engine.config.max_num_batched_tokens == 100 and len(measured) == 3
    assert engine.model_info.token_budget is None
