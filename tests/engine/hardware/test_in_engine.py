"""Threads of an engine: its tokens do not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine.errors import LoadCancelled
from engine.hardware.step_threads import StepThreads
from engine.host.loading import assemble
from engine.llm_engine import LLMEngine
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from tests.engine.speculation.runs import use_proposer
from tests.engine.speculation.test_exactness import Scripted
from tests.engine.tiny_models import make_prompts


@pytest.fixture
def threads_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ends", ["loaded", "cancelled"])
def test_after_loading_all_threads_are_there_again(
    ends: str, make_engine: Callable[..., LLMEngine], threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On a GPU nobody sets a number after that; a thread that begins later takes it over."""
    config = make_engine(num_threads=1).config.replace(num_threads=2)
    monkeypatch.setattr(
        "engine.hardware.idle_cores.FreeCores.count", lambda self, now: 1
    )
    during = set()

    def progress(stage: str, done: int, total: int) -> None:
        during.add(torch.get_num_threads())

    torch.set_num_threads(1)
    if ends == "loaded":
        assemble(config, progress)
    else:
        with pytest.raises(LoadCancelled):
            assemble(config, progress, lambda: True)
    assert during == {1} and torch.get_num_threads() == 2


def test_tokens_do_not_depend_on_it_and_every_step_says_its_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials at every turn: a search that finds each count best as soon as it was tried."""
    monkeypatch.setattr("engine.hardware.step_threads.AS_FAST", 1e9)
    monkeypatch.setattr("engine.hardware.step_threads.FASTER", 1e9)
    monkeypatch.setattr("engine.hardware.step_threads.PAUSE_S", 0.0)
    monkeypatch.setattr("engine.hardware.step_threads.COST", 0)
    prompts = make_prompts((3, 40, 90))
    params = SamplingParams(max_tokens=60, temperature=0.8, seed=3, ignore_eos=True)
    found = {}
    for is_adaptive in (True, False):
        engine = make_engine(num_threads=2, adaptive_threads=is_adaptive)
        found[is_adaptive] = [o.token_ids for o in engine.generate(prompts, params)]
        used = {step.num_threads for step in engine.snapshot().steps}
        assert used == ({1, 2} if is_adaptive else {2})
        engine.reconfigure(adaptive_threads=False)
        assert torch.get_num_threads() == 2
    assert found[True] == found[False]


def test_engines_of_one_thread_each_have_their_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever another one set meanwhile, a step is computed by as many as it says."""
    engines = [make_engine(num_threads=n, adaptive_threads=False) for n in (2, 1)]
    forward, used = ModelRunner.execute, []

    def counted(*arguments: Any, **named: Any) -> Any:
        used.append(torch.get_num_threads())
        return forward(*arguments, **named)

    monkeypatch.setattr(ModelRunner, "execute", counted)
    for engine in engines:
        engine.add_request([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    for _ in range(3):
        for engine in engines:
            engine.step()
    assert used == [2, 1] * 3
    assert [{step.num_threads for step in e.snapshot().steps} for e in engines] == [{2}, {1}]


def test_a_step_is_as_large_as_with_its_drafts(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(
        num_threads=2, speculative_method="ngram", num_speculative_tokens=4,
        speculative_adaptive=False,
    )  # fmt: skip
    begin, execute = StepThreads.begin, ModelRunner.execute
    told: list[int] = []
    computed: list[int] = []

    def counting(self: StepThreads, num_tokens: int, *arguments: Any, **named: Any) -> int:
        told.append(num_tokens)
        return begin(self, num_tokens, *arguments, **named)

    def computing(self: ModelRunner, batch: Any, *arguments: Any, **named: Any) -> Any:
        computed.append(batch.num_tokens)
        return execute(self, batch, *arguments, **named)

    monkeypatch.setattr(StepThreads, "begin", counting)
    monkeypatch.setattr(ModelRunner, "execute", computing)
    prompt = [5, 6, 7]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    (plain,) = engine.generate([prompt], params)
    use_proposer(engine, Scripted([prompt + plain.token_ids], 0.0))
    engine.generate([prompt], params)
    assert told == computed and max(computed) == 5


def test_steps_that_are_launched_ahead_try_nothing_and_say_their_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU one is computed within the time of another: neither has a duration of its own."""
    monkeypatch.setattr(
        "engine.hardware.idle_cores.FreeCores.others", lambda self, now: None
    )
    engine = make_engine(num_threads=2)
    engine._loop.async_scheduling = True
    for count in (3, 30):
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=count, ignore_eos=True))
    snapshot = engine.snapshot()
    assert [step.num_threads for step in snapshot.steps] == [2] * 33
    assert snapshot.threads is not None and snapshot.threads.found == ()
