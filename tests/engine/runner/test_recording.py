"""Steps on the CPU that are recorded and replayed: bit by bit what they are when they are launched,
and where they cannot be recorded, launched."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine import LLMEngine, SamplingParams
from engine.attention.interface import attend
from engine.batch.batch import Batch, Span, pack
from engine.hardware.step_threads import StepThreads
from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import heard_by_listeners
from engine.kernels.cpu.workspace import Workspace, workspace
from engine.runner import recorder, recording
from engine.runner.recording import StepRecordings, can_record, launched_first
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
    original = recording.Recording.replay

    def counted(self: recording.Recording, batch: Batch) -> Tensor:
        replays.add((batch.num_tokens, batch.is_decode))
        lengths.append(len(self._calls))
        return original(self, batch)

    launched = driven(make_engine(enforce_eager=True, **settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording.Recording, "replay", counted)
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
    assert made is not None and prompts >= {3, *often}
    if made._prepared:  # those serve all lengths
        assert prompts >= {size for size in SIZES if size > 16}


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


class _Backend:
    """Attention that nobody asks for."""

    nbytes = 0

    def begin_step(self, batch: Batch) -> None:
        pass

    def forward(self, *_: object) -> Tensor:
        raise AssertionError

    attend = clear_blocks = forward


def decode(*tokens: int) -> Batch:
    return pack([Span([token], 3, [0], 1) for token in tokens], 8)


def recordings(compute: Callable[[Tensor], Tensor]) -> StepRecordings:
    backend: Any = _Backend()
    return StepRecordings(lambda batch: compute(batch.input_ids), backend, torch.float32)


def prompt(*tokens: int) -> Batch:
    return pack([Span(list(tokens), 0, [0, 1], 1)], 8)


def logits(made: StepRecordings, *tokens: int) -> list[float]:
    """Of a step that is recorded at the latest when it comes the second time."""
    found = made.execute(decode(*tokens))
    if found is None:
        found = made.execute(decode(*tokens))
    assert found is not None
    return found.flatten().tolist()


def test_copies_that_look_like_views_are_repeated() -> None:
    """A reshape may be either; in-place operations and those without an `out` too."""

    def compute(ids: Tensor) -> Tensor:
        wide = torch.stack((ids.float(), -ids.float()))
        wide.add_(torch.roll(wide, 1, 0), alpha=2.0)
        return wide.t().reshape(-1) + torch.ones(4)

    made = recordings(compute)
    for tokens in ((1, 2), (5, 3), (1, 2)):
        expected: list[float] = compute(torch.tensor(tokens)).tolist()
        assert logits(made, *tokens) == expected


@pytest.mark.parametrize(
    "compute",
    [
        lambda ids: ids * int(ids.max()),
        lambda ids: ids if torch.equal(ids, ids + 0) else -ids,
        lambda ids: ids[ids > 2],
        lambda ids: ids.nonzero(),
    ],
    ids=["item", "equal", "mask", "nonzero"],
)
def test_a_step_that_reads_numbers_is_launched(compute: Callable[[Tensor], Tensor]) -> None:
    made = recordings(compute)
    for _ in range(2):
        assert made.fits(decode(2)) and made.execute(decode(2)) is None
    assert made.problem and not made.fits(decode(2))


def test_what_takes_too_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recordings(lambda ids: ids.repeat(100))
    assert len(logits(made, 1)) == 100 and made.nbytes == 800
    monkeypatch.setattr(recording, "MOST_BYTES", 2000)
    logits(made, 1, 2)
    assert made.nbytes == 1600, "the older one had to go"
    assert logits(made, 7) == [7] * 100
    assert logits(made, 1, 2, 3) == [1, 2, 3] * 100 and made.problem
    assert made.nbytes <= 2000 and made.fits(decode(1, 2)) and not made.fits(decode(1, 2, 3))


def test_a_prompt_that_takes_too_much_memory_is_recorded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", 10)
    computed: list[int] = []

    def compute(ids: Tensor) -> Tensor:
        computed.append(len(ids))
        return ids + 1

    made = recordings(compute)
    before = launched_first(torch.float32)
    found = [made.execute(prompt(1, 2)) is None for _ in range(before + 3)]
    assert found == [True] * before + [False, True, True], "one result, which was listened to"
    assert computed == [2] and made.problem and made.fits(decode(1, 2))


def test_results_follow_each_other_in_the_same_memory() -> None:
    """Each as long as the step refers to it, by a view of it too."""

    def compute(ids: Tensor) -> Tensor:
        first = (ids * 2).view(1, -1)
        total = ids
        for _ in range(10):
            total = total + 1
        return total + first[0]

    made = recordings(compute)
    for tokens in ((1, 2), (5, 3), (7, 9)):
        expected: list[float] = compute(torch.tensor(tokens)).tolist()
        assert logits(made, *tokens) == expected
    assert made.nbytes == 3 * 16, "the first, and two that take turns"


def test_recorded_calls_have_the_present_thread_count_and_memory_for_it() -> None:
    """Whatever attention, which is not recorded, asks for between them."""
    used: list[tuple[int, int, int]] = []

    class Backend(_Backend):
        def forward(self, layer: int, q: Tensor, *_: object) -> Tensor:
            workspace(1 << 16)
            return q + 1

    @heard_by_listeners
    def compiled(space: Workspace, address: ctypes.c_void_p, threads: ctypes.c_int32) -> None:
        ctypes.memset(address, 1, (1 << 10) + threads.value * (1 << 17))
        used.append((threads.value, address.value or 0, space.size))

    def compute(batch: Batch) -> Tensor:
        hidden = batch.input_ids.float()
        options: Any = None
        for layer in range(3):
            space = workspace(1 << 10, 1 << 17)
            compiled(space, space.address, space.threads)
            hidden = attend(layer, hidden, hidden, hidden, options)
        return hidden

    backend: Any = Backend()
    space, before = Workspace(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        made = recording.Recording(compute, backend, decode(1, 2), space)
        for count in (3, 1, 2):
            used.clear()
            torch.set_num_threads(count)
            assert made.replay(decode(3, 5)).tolist() == [6, 8]
            assert {threads for threads, _, _ in used} == {count} and len(used) == 3
            assert all(address == space.address.value for _, address, _ in used)
            assert all(size >= (1 << 16) + count * (1 << 17) for _, _, size in used)
    finally:
        torch.set_num_threads(before)
    assert workspace() is not space


def test_a_workspace_that_found_no_memory_asks_for_less_again() -> None:
    space = Workspace()
    space.prepare(1000)
    with pytest.raises(MemoryError):
        space.prepare(1 << 60)
    space.prepare(2000)
    assert 2000 <= space.size < 1 << 20 and (space.address.value or 0) % 64 == 0


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
    prepared = len(made)
    compiled = library()
    assert bool(prepared) == (compiled is not None and compiled.has_tiles), "steps of prompts"
    assert driven(engine) == launched
    assert 3 <= len(made) - prepared <= 9


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


def test_numbers_that_come_once_are_launched() -> None:
    """Of requests; a prompt is recorded once some of its length have come, at any time."""
    made = recordings(lambda ids: ids + 1)
    for tokens in ((1,), (1, 2), (1,), (1, 2, 3)):
        assert made.execute(decode(*tokens)) is None and not made.nbytes
    assert made.execute(decode(4, 5, 6)) is not None and made.nbytes == 24
    for tokens in [(1, 2), (1, 2, 3)] * launched_first(torch.float32):
        assert made.execute(prompt(*tokens)) is None
    assert made.execute(prompt(5, 6)) is not None and len(made) == 2


def test_what_cannot_be_recorded_of_prompts_leaves_decode_steps_alone() -> None:
    made = recordings(lambda ids: ids + (int(ids.max()) if len(ids) > 1 else 1))
    for _ in range(launched_first(torch.float32) + 1):
        assert made.fits(prompt(1, 2)) and made.execute(prompt(1, 2)) is None
    assert made.problem and not made.fits(prompt(1, 2))
    assert logits(made, 4) == [5]


def test_large_steps_several_prompts_and_mixtures_are_launched() -> None:
    made = recordings(lambda ids: ids + 1)
    assert made.fits(decode(*range(recording.MOST_ROWS)))
    assert not made.fits(decode(*range(recording.MOST_ROWS + 1)))
    assert made.fits(pack([Span(range(recording.MOST_TOKENS), 0, range(99), 1)], 8))
    assert not made.fits(pack([Span(range(recording.MOST_TOKENS + 1), 0, range(99), 1)], 8))
    assert not made.fits(pack([Span([1, 2], 0, [0], 1), Span([1], 0, [1], 1)], 8))
    mixture = nn.Module()
    mixture.experts = nn.ModuleList([nn.Linear(2, 2)])
    assert can_record(nn.Linear(2, 2)) and not can_record(nn.Sequential(mixture))
