"""The step that is launched before the last one is read: it changes nothing that anybody sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.batch.batch import Batch
from engine.snapshot import FinishReason
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.tiers import examples

MakeEngine = Callable[..., LLMEngine]
BAD_POSITION = 61
"""The logits after the token at this place are NaN in `pair`: whoever comes so far fails."""

PROMPTS = [*tiny_models.make_prompts((3, 17, 30, 41), seed=1)]
PROMPTS.append(PROMPTS[2][:16] + PROMPTS[0])
PROMPTS.append(PROMPTS[3] + PROMPTS[1])  # 58 tokens: it may come to BAD_POSITION

any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    seed=st.sampled_from([None, 1, 2]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 20]),
    max_tokens=st.integers(1, 14),
    min_tokens=st.sampled_from([0, 1]),
    ignore_eos=st.booleans(),
    stop=st.sampled_from([(), (), ("t5",), ("t1", "9 t")]),
    stop_token_ids=st.sampled_from([(), tuple(range(3, 30))]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.8]),
    logit_bias=st.sampled_from([{}, {7: 3.0}]),
    logprobs=st.sampled_from([None, None, 2]),
)


class Requests:
    """The events of an engine by request."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.events: dict[str, list[Any]] = {}

    def step(self) -> None:
        for event in self.engine.step():
            self.events.setdefault(event.request_id, []).append(event)
        self.engine.check_integrity()

    def finish(self) -> None:
        while self.engine.has_unfinished:
            self.step()


def seen(events: list[Any]) -> list[tuple[Any, ...]]:
    """What a user sees of a request, event by event."""
    return [
        (
            event.text, event.token_ids, event.finish_reason, event.is_first,
            None if event.error is None else event.error.cause,
            [(entry.token_id, round(entry.logprob, 3)) for entry in event.logprobs],
        )
        for event in events
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["eager", "replayed"])
def pair(
    tiny_folder: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[LLMEngine, LLMEngine]]:
    """Two engines alike; the second looks ahead, and may replay its steps."""
    config = EngineConfig(
        model=str(tiny_folder),
        dtype="float32",
        num_threads=1,
        block_size=4,
        kv_cache_memory_bytes=2**16,
    )
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "replayed":
            for module in ("engine.runner.cuda_graphs", "engine.host.kv_cache"):
                patch.setattr(f"{module}.capture_for", lambda device: Recording())
        engines = LLMEngine(config.replace(enforce_eager=True)), LLMEngine(config)
        for engine in engines:
            _spoil(engine)
        engines[1]._loop.async_scheduling = True
        yield engines
        assert (engines[1].runner.graphs is not None) == (request.param == "replayed")
        for engine in engines:
            engine.shutdown()


def _spoil(engine: LLMEngine) -> None:
    execute = engine.runner.execute

    def spoiled(batch: Batch, drawn: Tensor | None = None, **rest: Any) -> Tensor:
        bad = batch.positions[batch.logits_indices] == BAD_POSITION
        return execute(batch, drawn, **rest).masked_fill(bad[:, None], torch.nan)

    engine.runner.execute = spoiled  # type: ignore[method-assign]


@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_nobody_sees_a_difference(pair: tuple[LLMEngine, LLMEngine], data: st.DataObject) -> None:
    """Requests that come and go at any time, under any settings and too few blocks: what ends by
    itself has the same events, what is aborted has a beginning of them."""
    live = {
        "max_num_seqs": data.draw(st.integers(1, 5)),
        "max_num_batched_tokens": data.draw(st.sampled_from([1, 3, 16, 64])),
        "batching": data.draw(st.sampled_from(["continuous", "static"])),
        "enable_prefix_caching": data.draw(st.booleans()),
        "enable_chunked_prefill": data.draw(st.booleans()),
    }
    sides = [Requests(engine) for engine in pair]
    for side in sides:
        side.engine.reconfigure(**live)
        side.engine._seeds.seed(0)  # of requests without one
    try:
        _drive(sides, data)
    finally:  # whatever an example that failed left behind
        for engine in pair:
            for request_id in list(engine._loop.requests):
                engine.abort(request_id)
            engine.step()


def _drive(sides: list[Requests], data: st.DataObject) -> None:
    running: list[str] = []
    aborted: set[str] = set()
    for turn in range(data.draw(st.integers(5, 30))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "step", "abort", "live"]))
        if action == "add":
            prompt, params = data.draw(st.sampled_from(PROMPTS)), data.draw(any_params)
            running.append(f"r{turn}")
            for side in sides:
                side.engine.add_request(prompt, params, f"r{turn}")
        elif action == "abort" and running:
            aborted.add(data.draw(st.sampled_from(running)))
            for side in sides:
                for request_id in aborted:
                    side.engine.abort(request_id)
        elif action == "live":
            change = {"max_num_seqs": data.draw(st.integers(1, 5))}
            if data.draw(st.integers(0, 4)) == 0:
                change = {"block_size": data.draw(st.sampled_from([2, 4, 8]))}
            for side in sides:
                side.engine.reconfigure(**change)
        else:
            for side in sides:
                side.step()
    for side in sides:
        side.finish()
        assert side.engine.snapshot().blocks.num_used == 0
    for request_id in running:
        plain, ahead = (seen(side.events[request_id]) for side in sides)
        if plain[-1][2] is FinishReason.ABORT or ahead[-1][2] is FinishReason.ABORT:
            count = min(len(plain), len(ahead)) - 1
            tokens = [[event[1] for event in events[:count]] for events in (plain, ahead)]
            assert tokens[0] == tokens[1] and request_id in aborted
        else:
            assert plain == ahead


def count_launches(engine: LLMEngine) -> list[bool]:
    """Whether each step's tokens came from the device, as steps are launched from now on."""
    execute, launches = engine.runner.execute, []

    def counted(batch: Batch, drawn: Tensor | None = None, **rest: Any) -> Tensor:
        launches.append(drawn is not None)
        return execute(batch, drawn, **rest)

    engine.runner.execute = counted  # type: ignore[method-assign]
    return launches


def test_every_decoding_step_is_launched_ahead(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine._loop.async_scheduling = True
    launches = count_launches(engine)
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, presence_penalty=0.5)
        for n in (3, 6, 9)
    ]
    outputs = engine.generate(PROMPTS[:3], params)
    assert [len(output.token_ids) for output in outputs] == [3, 6, 9]
    # a prompt's step is planned; whoever is at the end is left out, and no step is in vain
    assert launches == [False] + [True] * 8


def test_a_row_of_a_request_that_ended_is_thrown_away(make_engine: MakeEngine) -> None:
    engine = make_engine()
    long = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    (free,) = engine.generate(PROMPTS[:1], long)
    at = next(i for i in range(2, 8) if free.token_ids[i] not in free.token_ids[:i])
    short = SamplingParams(
        temperature=0, max_tokens=9, ignore_eos=True, stop_token_ids=(free.token_ids[at],)
    )
    alone = engine.generate([PROMPTS[1]], [long])[0]
    engine._loop.async_scheduling = True
    launches = count_launches(engine)
    stopped, other = engine.generate(PROMPTS[:2], [short, long])
    assert stopped.token_ids == free.token_ids[: at + 1] and other.token_ids == alone.token_ids
    assert len(launches) == 9
    engine.check_integrity()
    # alone, the step in the air is of no use to anybody
    assert engine.generate(PROMPTS[:1], short)[0].token_ids == stopped.token_ids
    assert not engine.has_unfinished and engine.step() == []


def test_a_new_request_waits_for_the_step_in_the_air_and_no_longer(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    engine._loop.async_scheduling = True
    side = Requests(engine)
    engine.add_request(PROMPTS[1], SamplingParams(temperature=0, max_tokens=20), "first")
    for _ in range(3):
        side.step()
    engine.add_request(PROMPTS[2], SamplingParams(temperature=0, max_tokens=20), "second")
    side.step()
    assert "second" not in side.events
    side.step()
    assert len(side.events["second"]) == 1
    side.finish()


@pytest.mark.parametrize("change", [{"max_num_seqs": 3}, {"block_size": 4}, {"seed": 7}])
def test_a_change_of_settings_loses_no_token(make_engine: MakeEngine, change: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engine = make_engine()
    wanted = engine.generate(PROMPTS[:2], params)
    engine._loop.async_scheduling = True
    side = Requests(engine)
    names = [engine.add_request(prompt, params) for prompt in PROMPTS[:2]]
    for _ in range(4):
        side.step()
    engine.reconfigure(**change)
    engine.check_integrity()
    side.finish()
    for name, output in zip(names, wanted, strict=True):
        assert [t for event in side.events[name] for t in event.token_ids] == output.token_ids


def test_steps_tile_the_time_in_which_tokens_came(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine._loop.async_scheduling = True
    side = Requests(engine)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    engine.add_request(PROMPTS[1], params, "r")
    side.finish()
    steps = engine.snapshot().steps
    assert [step.index for step in steps] == list(range(8))
    for before, step in pairwise(steps):
        assert step.start == pytest.approx(before.start + before.duration)
        assert step.entries[0].kind == "decode" and step.entries[0].num_logits == 1
        assert step.entries[0].num_context == before.entries[0].num_context + 1
    for step in steps:
        parts = step.schedule_s + step.draft_s + step.model_s + step.sample_s + step.commit_s
        assert parts == pytest.approx(step.duration, rel=0.2, abs=1e-3)
    events = side.events["r"]
    ends = [step.start + step.duration for step in steps]
    assert [event.time for event in events] == pytest.approx(ends)
    assert [event.step_index for event in events] == list(range(8))


def test_out_of_memory_ahead_is_a_step_as_usual(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    wanted = engine.generate(PROMPTS[:2], params)
    engine._loop.async_scheduling = True
    execute = engine.runner.execute

    def full(batch: Batch, drawn: Tensor | None = None, **rest: Any) -> Tensor:
        if drawn is not None and batch.seq_lens[0] % 3 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Two steps are too many.")
        return execute(batch, drawn, **rest)

    engine.runner.execute = full  # type: ignore[method-assign]
    side = Requests(engine)
    names = [engine.add_request(prompt, params) for prompt in PROMPTS[:2]]
    side.finish()
    for name, output in zip(names, wanted, strict=True):
        assert [t for event in side.events[name] for t in event.token_ids] == output.token_ids


def test_what_could_not_be_launched_ahead_is_told_of_and_does_not_flood(
    make_engine: MakeEngine,
) -> None:
    """The first time, and whenever it has become twice as often; over with the cache."""
    engine = make_engine()
    engine._loop.async_scheduling = True
    before, execute = engine.model_info.notices, engine.runner.execute

    def full(batch: Batch, drawn: Tensor | None = None, **rest: Any) -> Tensor:
        if drawn is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Two steps are too many.")
        return execute(batch, drawn, **rest)

    engine.runner.execute = full  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    told: dict[str, int] = {}

    def note(event: Any) -> None:
        for text in engine.model_info.notices[len(before) :]:
            told.setdefault(text, engine.times_not_async)

    engine.generate(PROMPTS[:1], params, note)
    assert list(told.values()) == [1, 2, 4, 8]
    assert len(engine.model_info.notices) == len(before) + 1
    last = engine.model_info.notices[-1]
    assert " 8 " in last and "CUDA out of memory" in last and engine.times_not_async == 11
    engine.reconfigure(block_size=2 * engine.config.block_size)
    assert engine.model_info.notices == before and engine.times_not_async == 0


def test_with_drafts_nothing_is_launched_ahead(make_engine: MakeEngine) -> None:
    engine = make_engine(speculative_method="ngram")
    engine._loop.async_scheduling = True
    launches = count_launches(engine)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    drafted = engine.generate(PROMPTS[:2], params)
    assert not any(launches)
    engine.reconfigure(num_speculative_tokens=0)
    plain = engine.generate(PROMPTS[:2], params)
    assert any(launches)
    assert [o.token_ids for o in plain] == [o.token_ids for o in drafted]


def test_shutdown_with_a_step_in_the_air(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine._loop.async_scheduling = True
    side = Requests(engine)
    engine.add_request(PROMPTS[1], SamplingParams(temperature=0, max_tokens=30), "r")
    for _ in range(3):
        side.step()
    engine.shutdown()
    side.step()
    assert side.events["r"][-1].finish_reason is FinishReason.ABORT
    assert not engine.has_unfinished
