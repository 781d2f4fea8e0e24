"""The attention backend of GPUs, against that of the CPU: alone, and under the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.cpu import CPUAttention
from engine.attention.device_tables import DeviceTables
from engine.attention.gpu import MOST_WORKSPACE_BYTES, WORKSPACE_BYTES, GPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch.batch import Batch, Span, pack, padding
from engine.kernels.triton import support
from engine.numerics.kv_dtype import KVDtype, parse_kv_dtype
from tests.engine import tiny_models
from tests.gpu.conftest import HAS_GPU, slow_without_gpu

pytest.importorskip("triton")

from engine.kernels.triton.attention import Shape

GREEDY = SamplingParams(temperature=0.0, max_tokens=3)


def backend(
    layers: dict[int, LayerSpec], num_blocks: int, block_size: int, dtype: torch.dtype,
    kv_dtype: KVDtype, device: torch.device, implementation: str = "triton", **sizes: int,
) -> GPUAttention:  # fmt: skip
    given_ = {"max_num_seqs": 4, "max_model_len": 256, "max_num_batched_tokens": 64, **sizes}
    return GPUAttention(
        layers, num_blocks, block_size, dtype, kv_dtype, device=device,
        implementation=implementation, **given_,
    )  # fmt: skip


BLOCK_BYTES = 8 * 2 * 2 * 2 * 16 * 4  # tokens, layers, K and V, heads, elements, bytes

tables = st.lists(st.lists(st.integers(0, 99), max_size=40), min_size=1, max_size=5)


@given(steps=st.lists(tables, min_size=1, max_size=8))
def test_the_device_has_the_numbers_of_the_step(
    steps: list[list[list[int]]], device: torch.device
) -> None:
    """Whatever stood there before: rows that did not change are not written again."""
    held = DeviceTables(5, 40, device)
    address = held.block_tables.data_ptr()
    none = torch.empty(0, dtype=torch.int64)
    for step in steps:
        starts, lens = list(range(len(step) + 1)), [7 * len(table) for table in step]
        held.fill(Batch(none, none, none, none, starts, lens, step, 7))
        stride = int(held.stride)
        assert held.query_start_loc[: len(starts)].tolist() == starts
        assert held.seq_lens[: len(lens)].tolist() == lens
        for row, table in enumerate(step):
            place = row * stride
            assert held.block_tables[place : place + len(table)].tolist() == table
        assert held.block_tables.data_ptr() == address


@slow_without_gpu
@settings(max_examples=40 if HAS_GPU else 2, derandomize=not HAS_GPU)
@given(
    chunks=st.lists(
        st.lists(st.sampled_from((0, 1, 1, 5, 40)), min_size=3, max_size=3), min_size=2, max_size=3
    ),
    kv_dtype=st.sampled_from(("auto", "int8", "fp8", "k=int8,v=fp8")),
    window=st.sampled_from((None, 11)),
    seed=st.integers(0, 2**31),
)
def test_a_cache_of_many_steps_is_that_of_the_cpu(
    chunks: list[list[int]], kv_dtype: str, window: int | None, seed: int, device: torch.device
) -> None:
    """Requests that grow by prompts, chunks and single tokens, or rest."""
    generator = torch.Generator().manual_seed(seed)
    layers = {0: LayerSpec(2, 16, 8), 3: LayerSpec(1, 16, 16)}
    form, size = parse_kv_dtype(kv_dtype), 16
    found_by = backend(layers, 40, size, torch.float32, form, device)
    wanted_by = CPUAttention(layers, 40, size, torch.float32, kv_dtype=form)
    owned = torch.randperm(40, generator=generator).view(4, 10)[:3].tolist()
    lengths = [0, 0, 0]
    for step in chunks:
        spans = []
        for i, tokens in enumerate(step):
            if tokens:
                spans.append(Span([0] * tokens, lengths[i], owned[i], 1))
                lengths[i] += tokens
        if not spans:
            continue
        batch = pack(spans, size)
        wanted_by.begin_step(batch)
        found_by.begin_step(moved(batch, device))
        for layer, spec in layers.items():
            tokens = batch.num_tokens
            q = torch.randn(tokens, 4, 16, generator=generator)
            k = torch.randn(tokens, spec.num_kv_heads, spec.key_dim, generator=generator)
            v = torch.randn(tokens, spec.num_kv_heads, spec.value_dim, generator=generator)
            options = AttentionOptions(0.25, window)
            wanted = wanted_by.forward(layer, q, k, v, options)
            on_device = (tensor.to(device) for tensor in (q, k, v))
            found = found_by.forward(layer, *on_device, options).cpu()
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-4)


def moved(batch: Batch, device: torch.device) -> Batch:
    tensors = (batch.input_ids, batch.positions, batch.slot_mapping, batch.logits_indices)
    return Batch(
        *(tensor.to(device) for tensor in tensors), batch.query_start_loc, batch.seq_lens,
        batch.block_tables, batch.block_size,
    )  # fmt: skip


def test_more_requests_than_were_announced_leave_the_static_tables_alone(
    device: torch.device,
) -> None:
    found_by = backend({0: LayerSpec(1, 16, 16)}, 200, 4, torch.float32, KVDtype(), device)
    address = found_by._static.block_tables.data_ptr()
    batch = pack([Span([0], 0, [i], 1) for i in range(65)], 4)
    found_by.begin_step(moved(batch, device))
    ones = torch.ones(65, 1, 16, device=device)
    assert torch.equal(found_by.forward(0, ones, ones, ones, AttentionOptions(1.0)), ones)
    assert found_by._static.block_tables.data_ptr() == address
    found_by.begin_step(moved(pack([Span([0], 0, [7], 1)], 4), device))
    assert found_by._tables is found_by._static


@pytest.mark.parametrize("window", [None, 4096])
def test_long_contexts_are_split_for_as_many_requests_as_leave_the_device_idle(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Replayed and launched alike: what a graph holds is what a step of these lengths would be."""
    hopper = support.Device((9, 0), 132, 227 * 1024)
    monkeypatch.setattr(support, "device_of", lambda device: hopper)
    layers, cpu = {0: LayerSpec(8, 128, 128, num_heads=32)}, torch.device("cpu")
    found_by = backend(
        layers, 1, 256, torch.bfloat16, KVDtype(), cpu, max_num_seqs=256, max_model_len=2**17,
        max_num_batched_tokens=8192,
    )  # fmt: skip
    needed = 65 * 32 * 64 * (128 + 2) * 4  # of requests, heads, splits
    assert found_by._workspace.nbytes == needed
    assert found_by.workspace_bytes == needed + found_by._static.nbytes
    shape = Shape(32, 8, 128, 128, 2)
    for count in (1, 24, 32, 48, 64, 96):
        found_by.begin_step(padding(count, 256))
        replayed = found_by._launch(shape, window)
        table = range(2**17 // 256)
        found_by.begin_step(pack([Span([0], 2**17 - 1, table, 1)] * count, 256))
        assert found_by._launch(shape, window) == replayed
        assert (replayed.lanes > 1) == (count <= 65)


@pytest.mark.parametrize(
    ("heads", "length", "most", "expected"),
    [
        (32, 2048, MOST_WORKSPACE_BYTES, WORKSPACE_BYTES),  # enough for all that are split
        (128, 2**17, MOST_WORKSPACE_BYTES, MOST_WORKSPACE_BYTES),
        (32, 2**17, WORKSPACE_BYTES, WORKSPACE_BYTES),  # a draft model's
    ],
)
def test_workspace_is_what_decoding_needs_within_limits(
    monkeypatch: pytest.MonkeyPatch, heads: int, length: int, most: int, expected: int
) -> None:
    hopper = support.Device((9, 0), 132, 227 * 1024)
    monkeypatch.setattr(support, "device_of", lambda device: hopper)
    found_by = backend(
        {0: LayerSpec(8, 128, 128, num_heads=heads)}, 1, 256, torch.bfloat16, KVDtype(),
        torch.device("cpu"), max_num_seqs=64, max_model_len=length, most_workspace=most,
    )  # fmt: skip
    assert found_by._workspace.nbytes == expected


# -- under the engine, on the CPU ------------------------------------------------------------

Make = Callable[..., list[list[int]]]


@pytest.fixture
def generate(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Greedy tokens of a tiny model of a family, by the CPU's backend or by another."""
    folders: dict[str, Path] = {}

    def make(
        family: str, prompts: list[list[int]], implementation: str | None, **settings: Any
    ) -> list[list[int]]:
        if family not in folders:
            model = tiny_models.make_model(family)
            folders[family] = tiny_models.save(model, tmp_path_factory.mktemp(family))

        def by_triton(
            config: EngineConfig, layers: dict[int, LayerSpec], num_blocks: int, dtype: torch.dtype,
            **_: Any,
        ) -> GPUAttention:  # fmt: skip
            assert config.max_model_len is not None and implementation is not None
            return backend(
                layers, num_blocks, config.block_size, dtype, config.kv_dtype,
                torch.device("cpu"), implementation, max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                max_num_batched_tokens=config.token_budget,
            )  # fmt: skip

        with monkeypatch.context() as patch:
            if implementation is not None:
                for module in ("engine.host.kv_cache", "engine.speculation.draft_loading"):
                    patch.setattr(f"{module}.make_backend", by_triton)
            config = EngineConfig(
                model=str(folders[family]), device="cpu", dtype="float32", num_threads=1,
                block_size=8, kv_cache_memory_bytes=2**20,
            )  # fmt: skip
            engine = LLMEngine(config.replace(**settings))
            try:
                outputs = engine.generate(prompts, GREEDY)
                assert isinstance(
                    engine._host.runner.backend, GPUAttention if implementation else CPUAttention
                )
                engine.check_integrity()
                make.counters = engine.snapshot().counters  # type: ignore[attr-defined]
            finally:
                engine.shutdown()
        return [output.token_ids for output in outputs]

    return make


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="the interpreter's: kernels are native here")
@pytest.mark.parametrize(
    ("family", "settings_"),
    [
        ("gemma2", {"kv_cache_dtype": "k=int8,v=fp8"}),  # window and soft cap
        ("gpt_oss", {"max_num_batched_tokens": 12}),  # window and sinks
    ],
)
def test_the_engine_says_the_same_with_it(
    family: str, settings_: dict[str, Any], generate: Make
) -> None:
    prompts = tiny_models.make_prompts((17, 3))
    wanted = generate(family, prompts, None, **settings_)
    assert generate(family, prompts, "triton", **settings_) == wanted


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="the interpreter's: kernels are native here")
def test_chunks_prefix_hits_and_preemption_change_nothing(generate: Make) -> None:
    first, second = tiny_models.make_prompts((32, 31))
    prompts = [first, second, first]
    tight = {
        "kv_cache_memory_bytes": 8 * BLOCK_BYTES, "watermark": 0.0, "max_model_len": 64,
        "max_num_batched_tokens": 20,
    }  # fmt: skip
    wanted = generate("llama", prompts, None)
    assert generate("llama", prompts, "triton", **tight) == wanted
    counters = generate.counters  # type: ignore[attr-defined]
    assert counters.preemptions > 0 and counters.prefix_hits > 0


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="the interpreter's: kernels are native here")
def test_drafts_are_verified_alike(generate: Make) -> None:
    prompt = tiny_models.make_prompts((6,))[0] * 4
    wanted = generate("llama", [prompt], None)
    assert generate("llama", [prompt], "triton", speculative_method="ngram") == wanted


def test_without_triton_pages_are_gathered(generate: Make) -> None:
    prompts = tiny_models.make_prompts((36, 5))
    wanted = generate("gpt_oss", prompts, None, kv_cache_dtype="fp8")
    assert generate("gpt_oss", prompts, "torch", kv_cache_dtype="fp8") == wanted
