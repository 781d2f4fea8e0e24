"""Memory that runs out in mid-generation: a smaller cache, a notice, and nobody lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.engine_thread import EngineThread
from engine.errors import OutOfMemoryError, describe, is_out_of_memory
from engine.host import kv_cache as cache_building
from engine.memory.plan import plan_memory
from engine.memory.profiling import blocks_of, largest_step, run_largest
from engine.messages import AddRequest, Load, Loaded, MadeRoom, OutputEvent
from engine.runner.model_runner import ModelRunner
from engine.step.loop import StepLoop
from tests.engine import tiny_models
from tests.engine.test_engine_thread import Recorder, finished, tokens
from tests.tiers import examples

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SIZE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 8 GiB."


class Failing:
    """In place of the runner's execute: raises at the calls whose numbers are in `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> None:
        self.calls = 0
        self.fails = fails
        execute = ModelRunner.execute

        def maybe(runner: ModelRunner, *step: Any, **rest: Any) -> torch.Tensor:
            self.calls += 1
            if self.calls in self.fails:
                raise torch.OutOfMemoryError(SIZE)
            return execute(runner, *step, **rest)

        monkeypatch.setattr(ModelRunner, "execute", maybe)


def test_errors_of_memory_are_known_by_kind_or_words() -> None:
    for error in (
        MemoryError(), OutOfMemoryError("x"), torch.OutOfMemoryError(SIZE),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("unable to mmap 8 bytes from file <f>: Cannot allocate memory (12)"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):  # fmt: skip
        assert is_out_of_memory(error), error
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert describe(torch.OutOfMemoryError(SIZE)).kind == "MemoryError"


def test_a_gpu_that_failed_is_no_fault_of_the_program_that_a_restart_of_the_engine_mends() -> None:
    for words in (
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
        "CUDA error: device not ready", "Triton Error [CUDA]: unspecified launch failure",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
    ):  # fmt: skip
        info = describe(RuntimeError(words))
        first = words.partition("\n")[0]
        assert first in info.cause and info.remedy
    assert "the log" in describe(RuntimeError("shapes differ")).remedy
    assert "memory" in describe(RuntimeError("CUDA error: out of memory")).cause


@settings(
    max_examples=examples(5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_request_and_no_token_is_lost(
    tiny_model: Any, make_engine: MakeEngine, data: st.DataObject
) -> None:
    prompts = tiny_models.make_prompts((5, 21, 34), seed=3)
    wanted = [tiny_models.reference(tiny_model, p, GREEDY.max_tokens or 0).token_ids
              for p in prompts]  # fmt: skip
    fails = data.draw(st.sets(st.integers(1, 25), min_size=1, max_size=4))
    engine = make_engine(
        max_num_batched_tokens=data.draw(st.sampled_from([8, 64])),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    blocks = engine.plan.num_blocks
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch, fails)
        outputs = engine.generate(prompts, GREEDY)
    assert [o.token_ids for o in outputs] == wanted
    met = sum(number <= failing.calls for number in fails)
    said = [n for n in engine.model_info.notices if " → " in n]
    assert met >= 1 and len(said) == 1 and engine.times_shrunk == met
    assert f"{blocks:,} → {engine.plan.num_blocks:,} blocks" in said[0]
    assert (f"{met} times" in said[0]) == (met > 1)
    assert engine.plan.num_blocks == round_down(blocks, met)
    assert engine.plan.kv_cache == engine.plan.num_blocks * engine.plan.bytes_per_block
    assert "CUDA out of memory" in said[0]
    engine.check_integrity()
    engine.reconfigure(block_size=engine.config.block_size * 2)
    assert not any(" → " in n for n in engine.model_info.notices)


def round_down(blocks: int, times: int) -> int:
    for _ in range(times):
        blocks = int(blocks * 0.8)
    return blocks


def test_a_cache_that_cannot_become_smaller_is_an_error_with_the_numbers(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    (prompt,) = tiny_models.make_prompts((40,))
    engine.add_request(prompt, GREEDY)
    Failing(monkeypatch, set(range(1, 1000)))
    with pytest.raises(OutOfMemoryError, match=r"\b6 .*\b6\b") as error:
        for _ in range(100):
            engine.step()
    assert "max_num_batched_tokens" in error.value.remedy


class Taken:
    """Other programs leave room for caches of so many blocks; `tried` has those that were asked
    for. From `most` None on there is room for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
        self.most, self.tried = most, list[int]()
        make = cache_building.make_backend

        def limited(config: Any, layers: Any, num_blocks: int, *rest: Any, **more: Any) -> Any:
            self.tried.append(num_blocks)
            if self.most is not None and num_blocks > self.most:
                raise torch.OutOfMemoryError(SIZE)
            return make(config, layers, num_blocks, *rest, **more)

        monkeypatch.setattr(cache_building, "make_backend", limited)


def test_what_others_take_while_the_cache_is_exchanged_makes_it_smaller_still(
    tiny_model: Any, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tiny_models.make_prompts((5, 21, 34), seed=3)
    wanted = [tiny_models.reference(tiny_model, p, GREEDY.max_tokens or 0).token_ids
              for p in prompts]  # fmt: skip
    engine = make_engine()
    blocks = engine.plan.num_blocks
    taken = Taken(monkeypatch, blocks // 2)
    Failing(monkeypatch, {7})
    assert [o.token_ids for o in engine.generate(prompts, GREEDY)] == wanted
    expected = [round_down(blocks, times) for times in (1, 2, 3, 4)]
    assert taken.tried == expected and engine.plan.num_blocks == expected[-1] <= blocks // 2
    assert engine.times_shrunk == 1
    assert f"{blocks:,} → {expected[-1]:,} blocks" in engine.model_info.notices[-1]
    engine.check_integrity()


def test_what_others_take_while_a_model_is_loaded_makes_its_cache_smaller(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one of the user's own size, and none for less than one request."""
    sizes = {"kv_cache_memory_bytes": None, "max_num_seqs": 4, "max_model_len": 64}
    whole = make_engine(**sizes)
    blocks = whole.plan.num_blocks
    taken = Taken(monkeypatch, 20)
    engine = make_engine(**sizes)
    assert taken.tried[0] == blocks and 8 <= engine.plan.num_blocks == taken.tried[-1] <= 20
    assert f"instead of {blocks}: " in engine.model_info.notices[-1]
    assert len(engine.generate([[1, 2, 3]], GREEDY)[0].token_ids) == GREEDY.max_tokens
    taken.most = 7
    with pytest.raises(OutOfMemoryError, match=r"KV cache of .* GiB"):
        make_engine(**sizes)
    assert taken.tried[-1] == 8
    with pytest.raises(OutOfMemoryError, match=r"KV cache of .* GiB"):
        make_engine(kv_cache_memory_bytes=2**20)


def test_a_cache_that_cannot_become_smaller_is_tried_again_once(
    tiny_model: Any, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took the memory may be over by then."""
    engine = make_engine(kv_cache_memory_bytes=2**16)
    places = engine.plan.num_blocks * engine.config.block_size
    (prompt,) = tiny_models.make_prompts((places - 4,))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    failing = Failing(monkeypatch, {1, 3})
    (output,) = engine.generate([prompt], params)
    assert output.token_ids == tiny_models.reference(tiny_model, prompt, 4).token_ids
    assert failing.calls > 3 and engine.times_shrunk == 0
    engine.check_integrity()


def test_another_fault_is_not_taken_for_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], GREEDY)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(ModelRunner, "execute", broken)
    with pytest.raises(RuntimeError, match="multiplied"):
        engine.step()


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@pytest.fixture
def thread(events: Recorder) -> Iterator[EngineThread]:
    made = EngineThread(events, snapshot_interval_s=0.01)
    made.start()
    yield made
    made.stop()


def test_the_thread_says_so(
    tiny_folder: Path, thread: EngineThread, events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        model=str(tiny_folder), dtype="float32", num_threads=1, block_size=8,
        kv_cache_memory_bytes=2**20,
    )  # fmt: skip
    thread.submit(Load(config))
    loaded = events.wait(Loaded)
    Failing(monkeypatch, {4})
    thread.submit(AddRequest("a", [3, 4, 5], GREEDY))
    said = events.wait(MadeRoom)
    assert said.plan.num_blocks == int(0.8 * loaded.plan.num_blocks)
    assert said.text in said.model.notices and "blocks" in said.text
    events.wait(OutputEvent, finished("a"))
    assert len(tokens(events, "a")) == GREEDY.max_tokens


def test_the_thread_says_that_a_step_was_not_launched_ahead(
    tiny_folder: Path, thread: EngineThread, events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that the cache is as it was."""

    def refused(runner: ModelRunner, batch: Any, drawn: Any = None, **rest: Any) -> Any:
        if drawn is not None:
            raise torch.OutOfMemoryError(SIZE)
        return execute(runner, batch, drawn, **rest)

    execute = ModelRunner.execute
    monkeypatch.setattr(ModelRunner, "execute", refused)
    monkeypatch.setattr(StepLoop, "async_scheduling", True)
    config = EngineConfig(model=str(tiny_folder), dtype="float32", num_threads=1)
    thread.submit(Load(config.replace(kv_cache_memory_bytes=2**20)))
    loaded = events.wait(Loaded)
    thread.submit(AddRequest("a", [3, 4, 5], GREEDY))
    events.wait(OutputEvent, finished("a"))
    said = events.of(MadeRoom)
    assert [one.times for one in said] == [1, 2, 4, 8, 16]
    assert not said[0].is_smaller and said[0].plan == loaded.plan
    assert said[0].text in said[0].model.notices and "1 step" in said[0].text
    assert len(tokens(events, "a")) == GREEDY.max_tokens


def test_the_largest_step_keeps_to_every_limit(make_engine: MakeEngine) -> None:
    """What activations are measured with on a GPU runs here too, in the cache made for it."""
    engine = make_engine(max_num_seqs=5, max_num_batched_tokens=83)
    spans = largest_step(engine.config)
    assert [len(span.token_ids) for span in spans] == [17, 17, 17, 16, 16]
    blocks = [block for span in spans for block in span.block_table]
    assert blocks == list(range(blocks_of(spans))) and blocks_of(spans) == 13
    run_largest(engine.runner, engine.config, spans, engine._host.sampler)
    drafting = engine.config.replace(speculative_method="ngram", num_speculative_tokens=3)
    drafted = largest_step(drafting)
    assert [span.num_rows for span in drafted] == [4] * 5
    run_largest(engine.runner, drafting, drafted, engine._host.sampler)
    few = largest_step(engine.config.replace(max_num_seqs=16, max_num_batched_tokens=3))
    assert [len(span.token_ids) for span in few] == [1, 1, 1]


def test_measured_activations_take_the_place_of_the_estimate(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_cache_memory_bytes=None, max_num_seqs=1024)
    checkpoint, config = engine._host.assembly.checkpoint, engine.config
    memory = (2**27, 2**27)
    estimated = plan_memory(checkpoint, config, memory=memory)
    measured = plan_memory(checkpoint, config, memory=memory, activations=1000)
    assert measured.activations == 1000 < estimated.activations
    saved = estimated.activations - 1000
    gained = measured.kv_cache - estimated.kv_cache
    assert abs(gained - saved // 2) <= measured.bytes_per_block  # in RAM, half of the memory
