"""The engine as a library: what it promises to those who call it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.errors import (
    CheckpointError,
    ConfigError,
    InferdeckError,
    InvalidRequestError,
    LoadCancelled,
)
from engine.snapshot import FinishReason
from tests import heap
from tests.engine import tiny_models
from tests.engine.tiny_models import reference
from tests.tiers import examples

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def drain(engine: LLMEngine) -> dict[str, list[Any]]:
    events: dict[str, list[Any]] = {}
    while engine.has_unfinished:
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
        engine.check_integrity()
    return events


# -- the same tokens whatever happens -------------------------------------------------------


def test_a_seeded_request_gives_the_same_tokens_whatever_runs_beside_it(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    prompts = tiny_models.make_prompts((20, 9, 33, 4))
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=15, top_p=0.9, ignore_eos=True)
        for i in range(4)
    ]
    together = [o.token_ids for o in engine.generate(prompts, params)]
    alone = [engine.generate([p], [q])[0].token_ids for p, q in zip(prompts, params, strict=True)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 4


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_random_driver_never_changes_the_tokens(
    tiny_model: Any, make_engine: MakeEngine, data: st.DataObject
) -> None:
    """Add, abort, reconfigure and step in any order: every request that runs to its end has
    transformers' tokens, and the integrity check holds after every step. Each request ends with
    the count of its preemptions."""
    engine = make_engine(kv_cache_memory_bytes=2**17)
    prompts = tiny_models.make_prompts((3, 17, 30, 41), seed=1)
    prompts.append(prompts[2][:16] + prompts[0])
    wanted = _references(tiny_model, prompts)
    running: dict[str, int] = {}
    finished: dict[str, list[int]] = {}
    produced: dict[str, list[int]] = {}
    preempted: dict[str, int] = {}
    before = engine.snapshot().counters.preemptions
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["add", "step", "step", "abort", "live", "rebuild"]))
        if action == "add":
            choice = data.draw(st.integers(0, len(prompts) - 1))
            running[engine.add_request(prompts[choice], GREEDY)] = choice
        elif action == "abort" and running:
            engine.abort(data.draw(st.sampled_from(sorted(running))))
        elif action == "live":
            engine.reconfigure(
                max_num_seqs=data.draw(st.integers(1, 5)),
                max_num_batched_tokens=data.draw(st.integers(1, 64)),
                batching=data.draw(st.sampled_from(["continuous", "static"])),
                enable_prefix_caching=data.draw(st.booleans()),
                enable_chunked_prefill=data.draw(st.booleans()),
            )
        elif action == "rebuild":
            engine.reconfigure(
                block_size=data.draw(st.integers(1, 20)),
                kv_allocation=data.draw(st.sampled_from(["paged", "contiguous"])),
            )
        else:
            _collect(engine, produced, finished, running, preempted)
    while engine.has_unfinished:
        _collect(engine, produced, finished, running, preempted)
    for request_id, choice in list(running.items()):
        if request_id in finished:
            assert finished[request_id] == wanted[choice]
    assert sum(preempted.values()) == engine.snapshot().counters.preemptions - before


def _collect(
    engine: LLMEngine,
    produced: dict[str, list[int]],
    finished: dict[str, list[int]],
    running: dict[str, int],
    preempted: dict[str, int],
) -> None:
    for event in engine.step():
        preempted[event.request_id] = event.num_preemptions
        produced.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish_reason is FinishReason.LENGTH:
            finished[event.request_id] = produced[event.request_id]
        elif event.finish_reason is FinishReason.ABORT:
            del running[event.request_id]
    engine.check_integrity()


_known: dict[tuple[int, ...], list[int]] = {}


def _references(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    for prompt in prompts:
        if tuple(prompt) not in _known:
            _known[tuple(prompt)] = reference(model, prompt, 12).token_ids
    return [_known[tuple(prompt)] for prompt in prompts]


# -- events and times -----------------------------------------------------------------------


def test_events_add_up_to_the_output(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request_id = engine.add_request(tiny_models.make_prompts((10,))[0], GREEDY)
    events = drain(engine)[request_id]
    assert [e.is_first for e in events] == [True] + [False] * 11
    assert [len(e.token_ids) for e in events] == [1] * 12
    times = events[-1].times
    assert times is not None and events[-1].finish_reason is FinishReason.LENGTH
    assert times.num_output_tokens == 12 and len(times.itl_s) == 11
    assert times.ttft_s > 0 and times.queue_s >= 0 and times.e2e_s > times.ttft_s
    assert times.tpot_s == pytest.approx(sum(times.itl_s) / 11, rel=1e-6)
    blocks = events[-1].blocks
    assert all(e.blocks is None for e in events[:-1]) and blocks is not None
    assert blocks.num_tokens == 10 + 12 - 1  # the last token is never stored
    assert blocks.ref_count == (1,) * -(-blocks.num_tokens // blocks.block_size)
    words = "".join(e.text for e in events).split()
    assert words == [f"t{i}" for e in events for i in e.token_ids]


def test_a_snapshot_shows_blocks_memory_and_what_is_new(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request(tiny_models.make_prompts((20,))[0], GREEDY, "mine")
    engine.step()
    shot = engine.snapshot()
    assert shot.num_running == 1 and shot.requests[0].request_id == "mine"
    blocks = shot.blocks
    assert blocks.num_used == 3 and blocks.owners == ("mine",)
    assert sorted(blocks.fill[blocks.owner == 0].tolist()) == [4, 8, 8]
    assert blocks.num_wasted_tokens == 4
    assert shot.memory.kv_used == 3 * shot.memory.plan.bytes_per_block
    assert shot.memory.wasted * 8 == 4 * shot.memory.plan.bytes_per_block
    assert shot.memory.weights == shot.model.weights_bytes > 0
    assert len(shot.steps) == 1 and shot.steps[0].entries[0].kind == "prefill"
    assert shot.steps[0].entries[0].num_tokens == 20 and len(shot.ttft) == 1
    drain(engine)
    after = engine.snapshot()
    assert [s.index for s in after.steps] == list(range(1, 12)) and len(after.itl) == 11
    assert after.blocks.num_used == 0 and after.blocks.num_cached == 3
    held = [step.kv_usage * blocks.num_blocks for step in (*shot.steps, *after.steps)]
    assert held == pytest.approx([3] * 5 + [4] * 7)  # token 25 opened one; the last counts too
    assert after.counters.generation_tokens == 12 and after.counters.prompt_tokens == 20
    assert after.counters.finished == {"length": 1}


def test_stop_tokens_eos_and_stop_strings_end_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = tiny_models.make_prompts((10,))[0]
    plain = engine.generate([prompt], GREEDY)[0]
    third = plain.token_ids[2]
    first = plain.token_ids.index(third)
    stopped = engine.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(third,))
    )[0]
    assert stopped.token_ids == plain.token_ids[: first + 1]
    assert stopped.finish_reason is FinishReason.STOP and f"t{third}" not in stopped.text.split()
    text = engine.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(f"t{third}",))
    )[0]
    assert text.finish_reason is FinishReason.STOP
    assert text.text == plain.text[: plain.text.index(f"t{third}")]


def test_abort_at_any_time_leaves_nothing_behind(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    for steps in range(6):
        request_id = engine.add_request(tiny_models.make_prompts((30,))[0], GREEDY)
        events = [event for _ in range(steps) for event in engine.step()]
        engine.abort(request_id)
        engine.abort(request_id)
        engine.check_integrity()
        events += engine.step()
        assert events[-1].finish_reason is FinishReason.ABORT
        assert engine.snapshot().blocks.num_used == 0 and not engine.has_unfinished


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "empty"),
        ([5] * 256, {}, "256.*256"),
        ([5] * 200, {"max_tokens": 50}, "200.*50.*128"),
        ([5, 199], {}, "token ids from 5 to 199"),
        ([-1], {}, "token ids from -1"),
        ([{"text": "x"}], {}, "role"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_numbers(
    make_engine: MakeEngine, prompt: list[Any], params: dict[str, Any], message: str
) -> None:
    engine = make_engine()
    engine.reconfigure(kv_cache_memory_bytes=16 * engine.plan.bytes_per_block)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.add_request(prompt, SamplingParams(**params))
    assert caught.value.remedy
    assert not engine.has_unfinished
    engine.check_integrity()


def test_a_prompt_that_is_refused_takes_its_batch_with_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError):
        engine.generate([[5, 6], []], GREEDY)
    engine.step()
    assert not engine.has_unfinished


def test_a_doubled_id_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request([5], GREEDY, "same")
    with pytest.raises(InvalidRequestError, match="same"):
        engine.add_request([5], GREEDY, "same")
    drain(engine)


def test_loading_can_be_cancelled(tiny_folder: Path) -> None:
    with pytest.raises(LoadCancelled):
        LLMEngine(EngineConfig(model=str(tiny_folder)), cancelled=lambda: True)


def test_a_context_beyond_the_model_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="256"):
        LLMEngine(EngineConfig(model=str(tiny_folder), max_model_len=257))


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        LLMEngine(EngineConfig(model=str(tmp_path)))


# -- damage ---------------------------------------------------------------------------------


def test_nan_logits_end_one_request_and_never_reach_another(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_num_seqs=4)
    good, bad = tiny_models.make_prompts((20, 21))
    wanted = engine.generate([good], GREEDY)[0].token_ids
    runner = engine._host.runner
    real = runner.execute

    def execute(batch: Any, **_: Any) -> Any:
        """From its 24th token on, a sequence is NaN: in the cache as in the logits."""
        logits = real(batch).clone()
        for row, length in enumerate(batch.seq_lens):
            if length == 24:
                logits[row] = math.nan
                slot = batch.slot_mapping[batch.query_start_loc[row + 1] - 1]
                for cache in runner.backend.caches.values():
                    block, place = divmod(int(slot), batch.block_size)
                    for pages in cache:
                        pages.elements[block, :, place] = math.nan
        return logits

    monkeypatch.setattr(runner, "execute", execute)
    outputs = engine.generate([good[:17], bad], GREEDY)
    failed = [o for o in outputs if o.finish_reason is FinishReason.ERROR]
    assert len(failed) == 2
    assert all(o.error is not None and "NaN" in o.error.cause for o in failed)
    monkeypatch.undo()
    engine.check_integrity()
    assert [o.token_ids for o in engine.generate([good] * 4, GREEDY)] == [wanted] * 4


def test_shutdown_gives_the_cache_and_the_weights_back(tiny_folder: Path) -> None:
    with heap.as_it_is():
        engine = LLMEngine(EngineConfig(model=str(tiny_folder), num_threads=1))
        weights = [weakref.ref(p) for p in engine._host.runner.model.parameters()]
        caches = [weakref.ref(c.keys.elements) for c in engine._host.runner.backend.caches.values()]
        assert weights and caches
        assert gc.get_freeze_count() > len(weights), "the model is not looked at in every step"
        engine.add_request([5, 6, 7], GREEDY)
        engine.step()
        engine.shutdown()
        assert engine.step()[-1].finish_reason is FinishReason.ABORT
        assert not any(ref() is not None for ref in weights + caches)


def test_errors_of_ours_have_a_cause_and_a_remedy() -> None:
    with pytest.raises(InferdeckError) as caught:
        SamplingParams(temperature=-1)
    assert "temperature is -1" in caught.value.cause and caught.value.remedy
    assert torch.get_num_threads() >= 1
