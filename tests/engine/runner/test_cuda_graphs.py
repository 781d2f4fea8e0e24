"""Steps of a fixed shape that are captured and replayed, with a stand-in for the device's graphs
that runs what it captured again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch.batch import Batch, Span, pack, pad, padding
from engine.batch.transfer import Staging, capacity_for
from engine.numerics.kv_dtype import parse_kv_dtype
from engine.runner import cuda_graphs as graphs
from engine.runner.cuda_graphs import SIZES, DecodeGraphs, sizes_for
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.figures import numbers
from tests.tiers import first_fast

MakeEngine = Callable[..., LLMEngine]


# -- which graphs, and what is put into them ------------------------------------------------


@given(st.integers(1, 1024))
def test_sizes_reach_the_most_requests_and_no_further(most: int) -> None:
    sizes = sizes_for(most)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == min(most, 256)
    assert set(sizes[:-1]) <= set(SIZES)


spans = st.lists(st.integers(1, 40), min_size=1, max_size=9).map(
    lambda starts: [
        Span([i + 1], start, list(range(10 * i, 10 * i + 10)), 1) for i, start in enumerate(starts)
    ]
)


@given(spans, st.integers(0, 7))
def test_padding_adds_requests_that_are_nobody(own: list[Span], extra: int) -> None:
    batch = pack(own, 5)
    padded = pad(batch, len(own) + extra)
    count = len(own)
    assert padded.fixed_shape and padded.is_decode and padded.num_padding == extra
    assert padded.num_requests == padded.num_tokens == count + extra
    assert padded.slot_mapping.tolist() == batch.slot_mapping.tolist() + [-1] * extra
    assert padded.input_ids.tolist() == batch.input_ids.tolist() + [0] * extra
    assert padded.positions.tolist() == batch.positions.tolist() + [0] * extra
    assert padded.logits_indices.tolist() == list(range(count + extra))
    assert padded.seq_lens[count:] == [0] * extra
    assert padded.block_tables == batch.block_tables + [[]] * extra
    assert [padded.query_len(i) for i in range(count + extra)] == [1] * (count + extra)


def test_only_steps_in_which_everybody_decodes_fit() -> None:
    decode, more = Span([1], 4, [0], 1), Span([1, 2], 4, [1], 1)
    assert pack([decode, decode], 8).is_decode
    assert not pack([decode, more], 8).is_decode
    assert not pack([decode, more._replace(num_rows=2)], 8).is_decode
    assert not pack([decode, decode._replace(num_rows=0)], 8).is_decode


@given(st.lists(spans, min_size=2, max_size=4))
def test_staged_batches_keep_their_addresses_and_their_numbers(batches: list[list[Span]]) -> None:
    staging = Staging(torch.device("cpu"), capacity_for(16))
    seen: dict[int, list[int]] = {}
    for own in batches:
        batch = pack(own, 5)
        staged = staging.copy(batch)
        addresses = []
        for name in ("input_ids", "positions", "slot_mapping", "logits_indices"):
            before, after = getattr(batch, name), getattr(staged, name)
            assert torch.equal(before, after) and before.data_ptr() != after.data_ptr()
            addresses.append(after.data_ptr())
        assert all((a - addresses[0]) % 128 == 0 for a in addresses)
        assert seen.setdefault(len(own), addresses) == addresses
        assert staged.seq_lens == batch.seq_lens and staged.block_tables == batch.block_tables


def test_staging_grows_for_a_longer_step() -> None:
    staging = Staging(torch.device("cpu"))
    long = pack([Span(list(range(300)), 0, list(range(60)), 1)], 5)
    assert torch.equal(staging.copy(long).input_ids, long.input_ids)


# -- padding in attention -------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["auto", "int8", "fp8"])
@pytest.mark.parametrize(
    "options",
    [
        AttentionOptions(0.3),
        AttentionOptions(0.3, window=3),
        AttentionOptions(0.3, softcap=2.0, sinks=torch.tensor([0.1, 0.2, 0.3, 0.4])),
    ],
)
def test_padding_reads_and_writes_nothing(kv: str, options: AttentionOptions) -> None:
    generator = torch.Generator().manual_seed(3)
    new = lambda *shape: torch.randn(*shape, generator=generator)
    tables = [[2, 0], [5, 1, 3]]
    histories = [Span([0] * 6, 0, tables[0], 0), Span([0] * 9, 0, tables[1], 0)]
    batch = pack([Span([0], 6, tables[0], 1), Span([0], 9, tables[1], 1)], 4)
    backends = [
        CPUAttention({0: LayerSpec(2, 8, 8)}, 7, 4, torch.float32, kv_dtype=parse_kv_dtype(kv))
        for _ in range(2)
    ]
    past = pack(histories, 4)
    k, v, q = new(15, 2, 8), new(15, 2, 8), new(15, 4, 8)
    for backend in backends:
        backend.begin_step(past)
        backend.forward(0, q, k, v, options)
    k, v, q = new(5, 2, 8), new(5, 2, 8), new(5, 4, 8)
    q[2:], k[2:], v[2:] = torch.nan, torch.nan, torch.nan
    plain, padded = backends
    plain.begin_step(batch)
    wanted = plain.forward(0, q[:2], k[:2], v[:2], options)
    padded.begin_step(pad(batch, 5))
    found = padded.forward(0, q, k, v, options)
    assert torch.equal(found[:2], wanted) and not found[2:].any()
    for mine, theirs in zip(_stored(padded), _stored(plain), strict=True):
        assert torch.equal(mine, theirs)
    nobody = padding(3, 4)
    padded.begin_step(nobody)
    assert not padded.forward(0, q[2:], k[2:], v[2:], options).any()


def _stored(backend: CPUAttention) -> list[Tensor]:
    pages = [backend.caches[0].keys, backend.caches[0].values]
    return [t for p in pages for t in vars(p).values() if isinstance(t, Tensor)]


# -- in the engine --------------------------------------------------------------------------


def _generate(engine: LLMEngine, count: int) -> list[list[int]]:
    prompts = tiny_models.make_prompts(range(3, 3 + count), seed=4)
    params = [
        SamplingParams(
            temperature=i % 3 * 0.7, seed=i, max_tokens=4 + 5 * (i % 2), ignore_eos=True, top_p=0.95
        )
        for i in range(count)
    ]
    return [output.token_ids for output in engine.generate(prompts, params)]


@pytest.mark.parametrize(
    ("family", "async_scheduling"),
    first_fast(2, [("llama", True), ("gemma2", True), ("gpt_oss", False), ("qwen3_moe", False)]),
)
def test_replayed_steps_give_the_tokens_of_eager_ones(
    family: str, async_scheduling: bool, recording: Recording, tmp_path: Any
) -> None:
    """Mixtures, windows, soft caps and sinks among them, and 8-bit KV; alone and padded."""
    folder = tiny_models.save(tiny_models.make_model(family), tmp_path)
    config = EngineConfig(
        model=str(folder), dtype="float32", num_threads=1, block_size=8, max_num_seqs=6,
        kv_cache_memory_bytes=2**20, kv_cache_dtype="int8" if family == "gemma2" else "auto",
    )  # fmt: skip
    tokens = []
    for eager in (True, False):
        engine = LLMEngine(config.replace(enforce_eager=eager))
        engine._loop.async_scheduling = async_scheduling
        tokens.append([_generate(engine, count) for count in (1, 3, 7)])
        assert (engine.runner.graphs is None) == eager
        engine.shutdown()
    assert tokens[0] == tokens[1]
    assert recording.log.count("replay") >= 15
    assert recording.log.count("reset") == len(sizes_for(6))


def test_what_was_captured_is_told(make_engine: MakeEngine, recording: Recording) -> None:
    engine = make_engine(max_num_seqs=9)
    assert numbers(engine.model_info.kernels["decode"]) == [5, 9, 3]
    engine.reconfigure(enforce_eager=True)
    assert "decode" not in engine.model_info.kernels and engine.runner.graphs is None
    engine.reconfigure(enforce_eager=False)
    assert "decode" in engine.model_info.kernels


def test_graphs_are_captured_anew_with_cache_and_model(
    make_engine: MakeEngine, recording: Recording
) -> None:
    engine = make_engine(max_num_seqs=4)
    wanted = _generate(engine, 3)
    for change in ({"block_size": 4}, {"seed": 3}, {"max_num_seqs": 7}):
        before = recording.log.count("reset")
        engine.reconfigure(**change)
        assert recording.log.count("reset") == before + 3
        assert _generate(engine, 3) == wanted
    assert engine.runner.graphs is not None and engine.runner.graphs.sizes == (1, 2, 4, 7)
    engine.shutdown()
    assert recording.log.count("reset") == 3 * 3 + 4


def test_with_little_memory_there_are_fewer(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(index: int) -> None:
        if index < 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    monkeypatch.setattr("engine.runner.cuda_graphs.capture_for", lambda device: Recording(fail))
    monkeypatch.setattr("engine.host.kv_cache.capture_for", lambda device: True)
    engine = make_engine(max_num_seqs=16)
    assert numbers(engine.model_info.kernels["decode"])[:2] == [3, 4]
    (notice,) = engine.model_info.notices
    assert "16, 8 tokens" in notice
    engine.reconfigure(block_size=4)
    assert len(engine.model_info.notices) == 1
    assert _generate(engine, 9) == _generate(make_engine(max_num_seqs=16, enforce_eager=True), 9)


def test_a_step_that_cannot_be_captured_is_launched_as_ever(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(lambda index: _refuse() if index == 2 else None)
    monkeypatch.setattr("engine.runner.cuda_graphs.capture_for", lambda device: recording)
    monkeypatch.setattr("engine.host.kv_cache.capture_for", lambda device: True)
    engine = make_engine(max_num_seqs=16)
    assert "decode" not in engine.model_info.kernels
    (notice,) = engine.model_info.notices
    assert "operation not permitted when stream is capturing" in notice
    assert _generate(engine, 3) and recording.log == ["reset", "reset"]


def _refuse() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


def test_a_failed_row_becomes_some_token() -> None:
    batch = pack([Span((0,), 4, [0], 1), Span((0,), 6, [1], 1)], 8)
    graphs.put_drawn(batch, torch.tensor([-1, 7]))
    assert batch.input_ids.tolist() == [0, 7]


def test_a_batch_too_large_for_every_graph_does_not_fit(tiny_model: Any) -> None:
    backend = CPUAttention({0: LayerSpec(1, 4, 4)}, 4, 8, torch.float32)
    made = DecodeGraphs(lambda b: torch.zeros(b.num_tokens, 5), backend, 8, torch.device("cpu"))
    assert not made.fits(_decode(1)) and made.summary == ""
    made.capture((1, 2), Recording())
    assert made.fits(_decode(2)) and not made.fits(_decode(3))
    assert made.execute(_decode(1)).shape == (1, 5)
    assert numbers(made.summary) == [2, 2, 3]


def _decode(count: int) -> Batch:
    return pack([Span([1], 2, [i], 1) for i in range(count)], 8)


def made(taps: Any = None) -> DecodeGraphs:
    backend = CPUAttention({0: LayerSpec(1, 4, 4)}, 4, 8, torch.float32)
    compute = lambda batch: torch.zeros(batch.num_tokens, 5)
    return DecodeGraphs(compute, backend, 8, torch.device("cpu"), taps)


def test_the_error_that_broke_a_capture_counts_not_that_of_ending_it() -> None:
    """Ending a capture in which something failed is another error, which says nothing."""

    def ends(first: Exception) -> Callable[[int], None]:
        def fail(index: int) -> None:
            if index == 0:
                try:
                    raise first
                except Exception:
                    raise RuntimeError("the capture was invalidated")  # noqa: B904 - as torch does

        return fail

    graphs = made()
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")
    graphs.capture((1, 2, 4), Recording(ends(full)))
    assert graphs.sizes == (1, 2) and "4 tokens" in graphs.problem
    graphs = made()
    graphs.capture((1, 2, 4), Recording(ends(ValueError("no number can be read here"))))
    assert graphs.sizes == () and "no number can be read here" in graphs.problem


class States:
    """Listens to one layer of a model without any."""

    def __init__(self) -> None:
        self.held: list[Tensor] = []

    def __enter__(self) -> None:
        self.held = [torch.ones(4, 3)]

    def __exit__(self, *exc: Any) -> None: ...

    def take(self) -> list[Tensor]:
        held, self.held = self.held, []
        return held

    def hold(self, states: list[Tensor]) -> None:
        self.held = states


def test_memory_that_runs_out_for_the_states_costs_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, calls = torch.empty_like, []

    def once(*args: Any) -> Tensor:
        calls.append(args)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")
        return plain(*args)

    monkeypatch.setattr(torch, "empty_like", once)
    taps = States()
    graphs = made(taps)
    graphs._compute = lambda batch: torch.zeros(4, 5)
    graphs.capture((4, 8), Recording())
    assert graphs.sizes == (4,) and "8 tokens" in graphs.problem


def out_of_memory_first(index: int) -> None:
    if index == 0:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")


def test_steps_that_find_no_memory_to_be_timed_are_not_verified_in_rows() -> None:
    class Small(Recording):
        def seconds(self, run: Any) -> float:
            step = getattr(run, "args", None)
            if step and step[0].num_tokens > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")
            return super().seconds(run)

    graphs = made()
    graphs.capture((1, 2, 4), Small(), num_blocks=4)
    assert graphs.sizes == (1, 2, 4)
    assert graphs.worth is not None and set(graphs.worth.saved_s) == {1, 2}
    assert "drafts of 4 tokens" in graphs.problem
    graphs = made()
    graphs.capture((1, 2, 4, 8), Small(out_of_memory_first), num_blocks=4)
    assert re.findall(r"(\d+) tokens", graphs.problem) == ["8", "4"]
    drafts = [pack([Span(list(range(count)), 0, [0], count)], 8) for count in (2, 3)]
    assert [graphs.fits(batch) for batch in drafts] == [True, False]


def test_states_are_held_for_who_listens_and_not_beyond_the_graphs() -> None:
    taps = States()
    graphs = made(taps)
    graphs._compute = lambda batch: torch.zeros(4, 5)
    graphs.capture((4,), Recording())
    graphs.execute(_decode(2))
    assert not taps.held
    graphs.execute(_decode(2), is_tapped=True)
    assert [states.shape for states in taps.held] == [(2, 3)]
    graphs.release()
    assert not taps.held
