"""Steps on the CPU that are recorded and replayed are bit by bit what launched ones are."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import LLMEngine, SamplingParams
from engine.batch.batch import Batch
from engine.hardware.step_threads import StepThreads
from engine.kernels.cpu.check import library
from engine.kernels.registry import choose_linear
from engine.runner import recorder, recording
from engine.runner.recording import StepRecordings, launched_first
from tests.engine import tiny_models
from tests.tiers import first_fast

MakeEngine = Callable[..., LLMEngine]

SIZES = (40, 33, 35, 45, 50, 60, *[5] * 10, 20, 21, 22, 25, 30, 30)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]


def driven(engine: LLMEngine) -> dict[int, list[tuple[Any, ...]]]:
    """Tokens and their log probabilities of requests that come and go, by number; then of prompts
    that are computed alone, the last ones behind a cached prefix."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    numbers: dict[str, int] = {}

    def add(prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=2
        )
        numbers[engine.add_request(prompt, params)] = len(numbers)

    def step() -> None:
        for event in engine.step():
            assert event.error is None
            kept = found.setdefault(numbers[event.request_id], [])
            kept += zip(event.token_ids, event.logprobs or (), strict=True)

    for prompt in PROMPTS:
        add(prompt, 16)
        for _ in range(5):
            step()
    while engine.has_unfinished:
        step()
    for first, size in enumerate(SIZES):
        add([(first + place) % 60 for place in range(size)], 2)
        while engine.has_unfinished:
            step()
    for last in range(10):
        add([*range(40), last, 7, 7], 2)
        while engine.has_unfinished:
            step()
    return found


@pytest.mark.parametrize(
    "settings",
    first_fast(2, [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantization": "int4", "quantization_group_size": 32},
        {"quantization": "int8", "kv_cache_dtype": "int8"},
    ]),
    ids=["float32", "bfloat16", "int4", "int8"],
)
def test_replayed_steps_are_bit_by_bit_what_launched_ones_are(
    settings: dict[str, Any], make_engine: MakeEngine
) -> None:
    replays: set[tuple[int, bool]] = set()
    lengths: list[int] = []
    computed: set[int] = set()  # tokens of steps with prompts
    original, execute = recording.Recording.replay, StepRecordings.execute

    def counted(self: recording.Recording, batch: Batch) -> Tensor:
        replays.add((batch.num_tokens, batch.is_decode))
        lengths.append(len(self._calls))
        return original(self, batch)

    def executed(self: StepRecordings, batch: Batch) -> Tensor | None:
        if not batch.is_decode:
            computed.add(batch.num_tokens)
        return execute(self, batch)

    launched = driven(make_engine(enforce_eager=True, **settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording.Recording, "replay", counted)
        patch.setattr(StepRecordings, "execute", executed)
        engine = make_engine(**settings)
        replayed = driven(engine)
    assert replayed == launched
    if "dtype" in settings and library() is not None:
        assert max(lengths) < 20, "compiled ones follow each other in C"
    prompts = {size for size, is_decode in replays if not is_decode}
    assert {size for size, is_decode in replays if is_decode} == {1, 2, 3}
    dtype = torch.bfloat16 if "dtype" in settings else torch.float32
    first = launched_first(dtype) + 1  # the last of them is listened to
    often = {size for size, times in Counter(SIZES).items() if times > first}
    made = engine.runner.recordings
    assert made is not None
    if made._prepared:  # those serve all lengths that are multiplied as theirs
        alike = choose_linear(dtype, "cpu", recording.SHORT_SIZES[-1])
        often |= {size for size in computed if choose_linear(dtype, "cpu", size) == alike}
    assert prompts == {3, *often}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", first_fast(1, ["gemma2", "phi3", "gpt2"]))
def test_other_architectures_are_replayed_exactly(
    kind: str, dtype: str, tmp_path_factory: pytest.TempPathFactory, make_engine: MakeEngine
) -> None:
    folder = tiny_models.save(tiny_models.make_model(kind), tmp_path_factory.mktemp(kind))
    expected = driven(make_engine(model=str(folder), enforce_eager=True, dtype=dtype))
    assert driven(make_engine(model=str(folder), dtype=dtype)) == expected


def test_attention_is_divided_anew_in_each_replay(
    tmp_path: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts that pass 512 keys are split in parts for several threads, which takes memory."""
    turns = itertools.cycle((1, 3, 2))
    monkeypatch.setattr(StepThreads, "_count", lambda *_: next(turns))
    folder = tiny_models.save(
        tiny_models.make_model("llama", max_position_embeddings=1200), tmp_path
    )
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)
    found = []
    for is_eager in (True, False):
        engine = make_engine(
            model=str(folder), enforce_eager=is_eager, num_threads=3, kv_cache_memory_bytes=2**23
        )
        sizes = (500, 1010)  # 1,024 is passed too
        prompts = [[(7 * place) % 60 for place in range(size)] for size in sizes]
        found.append([
            (one.token_ids, one.logprobs)
            for batch in ([prompts[0]], prompts)
            for one in engine.generate(batch, params)
        ])  # fmt: skip
        assert is_eager or len(engine.runner.recordings or ()) >= 2
    assert found[0] == found[1]


@pytest.mark.parametrize("bits", first_fast(1, ["int4", "int8", "bfloat16"]))
def test_a_recording_serves_all_thread_counts(
    bits: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = itertools.cycle((1, 3, 2))
    monkeypatch.setattr(StepThreads, "_count", lambda *_: next(turns))
    settings: dict[str, Any] = {"dtype": "bfloat16", "num_threads": 3, "adaptive_threads": True}
    if bits != "bfloat16":
        settings |= {"quantization": bits, "quantization_group_size": 32}
    made: list[int] = []
    original = recording.Recording.__init__

    def counted(self: recording.Recording, *args: Any, **options: bool) -> None:
        original(self, *args, **options)
        made.append(torch.get_num_threads())

    launched = driven(make_engine(enforce_eager=True, **settings))
    monkeypatch.setattr(recording.Recording, "__init__", counted)
    engine = make_engine(**settings)
    prepared, compiled = len(made), library()
    assert engine.runner.recordings is not None
    assert prepared == len(engine.runner.recordings._prepared), "steps of prompts"
    assert bool(prepared) == (compiled is not None and compiled.has_tiles)
    assert driven(engine) == launched
    assert 3 <= len(made) - prepared <= (5 if prepared else 9)


@pytest.mark.parametrize("most_others", [32, 0], ids=["any length", "near lengths"])
def test_prompts_are_recorded_when_a_model_is_loaded(
    most_others: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a model in 16 bits, some of whose parameters are in float32; nothing is written to the KV
    cache then. With many calls that are not compiled, a recording serves lengths near its own."""
    monkeypatch.setattr(recording, "_MANY_CALLS", most_others)
    replays: list[int] = []
    original = recording.Recording.replay

    def counted(self: recording.Recording, batch: Batch) -> Tensor:
        replays.append(batch.num_tokens)
        return original(self, batch)

    monkeypatch.setattr(recording.Recording, "replay", counted)
    settings = {"dtype": "bfloat16", "quantization": "int8", "quantization_head": "int8"}
    engine, compiled = make_engine(**settings), library()
    if compiled is None or not compiled.has_tiles:
        assert not engine.runner.recordings
        return
    made = engine.runner.recordings
    assert made is not None
    primes = *recording.SHORT_SIZES, *recording.LONG_SIZES
    assert all(size % n for size in primes for n in range(2, size))
    assert {one.num_tokens for one in made._prepared} == (
        {127, 257} if most_others else set(recording.SHORT_SIZES)
    )
    longest = [one for one in made._prepared if one.num_tokens == made._prepared[-1].num_tokens]
    whole = {memory.data_ptr(): memory.nbytes for one in longest for memory in one.memory}
    assert sum(whole.values()) < 1.2 * longest[-1].nbytes, "they share it"
    backend: Any = engine.runner.backend
    for cache in backend.caches.values():
        assert not cache.keys.elements.any() and not cache.values.elements.any()
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=2)
    sizes = (17, 40, 70, 97, 128, 129, 200, 33, 251)
    for size in sizes:
        tokens = [(7 * place + size) % 60 for place in range(size)]  # no prefix of another
        found, expected = (
            [(one.token_ids, one.logprobs) for one in each.generate([tokens], params)]
            for each in (engine, make_engine(enforce_eager=True, **settings))
        )
        assert found == expected
    assert [size for size in replays if size > 1] == [
        size for size in sizes if most_others or size < 127
    ]


@pytest.mark.parametrize(
    "settings",
    first_fast(1, [
        {},
        {"quantization": "int4", "quantization_group_size": 32, "kv_cache_dtype": "fp8"},
        {"quantization": "int8", "quantization_head": "int8", "max_num_batched_tokens": 256},
        {"quantization": "fp8", "max_num_batched_tokens": 256},
        {"quantization": "nf4"},
    ]),
    ids=["bfloat16", "int4", "int8", "fp8", "nf4"],
)  # fmt: skip
def test_steps_of_any_requests_are_replayed_exactly(
    settings: dict[str, Any], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in parts, several together, beside requests that decode."""
    compiled = library()
    if compiled is None or not compiled.has_tiles:
        pytest.skip("this processor has no tiles")
    seen: set[tuple[bool, bool]] = set()
    original = recording.Recording.replay

    def counted(self: recording.Recording, batch: Batch) -> Tensor:
        if not batch.is_decode:
            seen.add((batch.num_requests > 1, len(batch.logits_indices) > 0))
        return original(self, batch)

    monkeypatch.setattr(recording.Recording, "replay", counted)
    all_of = {"dtype": "bfloat16", "max_num_batched_tokens": 48, **settings}
    prompts = [[(7 * n + size) % 60 for n in range(size)] for size in (150, 20, 5, 33, 90, 41, 17)]
    params = [SamplingParams(temperature=0.0, max_tokens=2 + n, logprobs=2) for n in range(7)]
    found, expected = (
        [(one.token_ids, one.logprobs) for one in make_engine(**more).generate(prompts, params)]
        for more in (all_of, {**all_of, "enforce_eager": True})
    )
    assert found == expected
    is_whole = "max_num_batched_tokens" in settings
    assert seen >= ({(True, True)} if is_whole else {(True, True), (False, False)})


def test_a_replay_that_takes_long_tells_of_its_layers(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_BEAT_S", 0.0)
    engine = make_engine(dtype="bfloat16")
    told: list[int] = []
    engine.report_steps(told.append, lambda: told.append(0))
    try:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        engine.generate([[3, 1, 4]], params)
    finally:
        engine.report_steps(lambda size: None, lambda: None)
    layers = len(engine.runner.model.model.layers)
    assert told[-1 - layers :] == [1, *[0] * layers]
