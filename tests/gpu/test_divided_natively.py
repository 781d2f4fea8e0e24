"""A model whose first layers are on the CPU, on a real GPU: the tokens of one device, nothing that
waits in a step but where tokens are read, layers that move while requests run, no memory kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.step.execute import InFlightStep
from tests.engine import tiny_models
from tests.engine.models.live_bytes import live_bytes
from tests.gpu import engines
from tests.gpu import test_engine_gpu as whole
from tests.gpu.engines import Engines, Make
from tests.gpu.test_engine_gpu import exact_products

__all__ = ["exact_products"]

pytestmark = pytest.mark.gpu

NUM_LAYERS = 3
SHAPE = {"num_hidden_layers": NUM_LAYERS, "hidden_size": 128, "head_dim": 64}
PROMPTS = tiny_models.make_prompts((8, 3, 17, 40), seed=4)
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, top_k=20, max_tokens=14, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.7, seed=1, min_p=0.02, repetition_penalty=1.2, max_tokens=10),
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny_models.save(tiny_models.make_model(name, **SHAPE), folder / name)
        for name in ("llama", "gemma2", "qwen3_moe")
    }


@pytest.fixture
def make(models: dict[str, Path]) -> Iterator[Make]:
    made = Engines(
        models.__getitem__, num_threads=2, kv_cache_memory_bytes=2**20, max_num_seqs=3,
        max_num_batched_tokens=32, max_model_len=128, gpu_layers="2",
    )  # fmt: skip
    yield made.make
    made.shutdown()


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return engines.tokens_of(engine, PROMPTS, PARAMS)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_the_tokens_of_the_cpu(make: Make, family: str) -> None:
    """Tied embeddings, soft caps and windows; experts. However many layers are on the GPU, and
    whether its half is replayed or launched."""
    wanted = tokens_of(make(family, device="cpu"))
    for count, eager in ((1, False), (2, True), (2, False), (NUM_LAYERS, False)):
        engine = make(family, gpu_layers=str(count), enforce_eager=eager)
        assert engine.plan.host_layers == NUM_LAYERS - count
        assert ("decode" in engine.model_info.kernels) != eager, engine.model_info.notices
        assert tokens_of(engine) == wanted, (count, eager)


@pytest.mark.parametrize("enforce_eager", [True, False])
def test_nothing_waits_but_where_tokens_are_read(
    make: Make, enforce_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises at whatever else waits for the device."""
    engine = make(enforce_eager=enforce_eager)
    wanted = tokens_of(engine)  # and whatever is done once
    read, reads = InFlightStep.read, []

    def allowed(flight: InFlightStep) -> object:
        reads.append(flight)
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(flight)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(InFlightStep, "read", allowed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = tokens_of(engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found == wanted and not engine._loop.async_scheduling
    assert 14 <= len(reads) == len(engine.snapshot().steps) // 2, "once a step"


def test_a_step_begun_while_the_device_is_busy_has_its_own_numbers(make: Make) -> None:
    """What the CPU hands over is copied behind all that the GPU has to do before: for as long
    nothing may be written where it is read from."""
    engine = make()
    wanted = tokens_of(engine)
    side = torch.randn(2048, 2048, device="cuda:0")
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    while engine.has_unfinished:
        for _ in range(30):  # a few milliseconds
            side = (side @ side).tanh()
        for event in engine.step():
            found[event.request_id] += event.token_ids
    assert [found[request_id] for request_id in ids] == wanted


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"quantization": "int8", "quantization_head": "int8"}),
        ("gemma2", {"quantization": "nf4", "quantization_head": "int8"}),
        ("qwen3_moe", {"quantization": "int4", "quantization_group_size": 32}),
        ("llama", {"quantization": "int4", "dtype": "bfloat16"}),
    ],
)
def test_few_bits_in_both_halves(make: Make, family: str, changes: dict[str, Any]) -> None:
    """Over a cache in 8 bits. Both devices round weights, keys and values to the same numbers, and
    compute with them as they do best: the first token's probability is nearly the same."""
    found = []
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    for gpu_layers in ("all", "2"):
        engine = make(family, kv_cache_dtype="int8", gpu_layers=gpu_layers, **changes)
        outputs = engine.generate(PROMPTS, params)
        assert all(len(output.token_ids) == 6 for output in outputs)
        found.append([output.logprobs[0].logprob for output in outputs])
        engine.check_integrity()
    memory = engine.snapshot().memory
    assert memory.host_weights > 0 and memory.weights > 0
    assert 0 < memory.host_kv_cache <= memory.kv_cache, "a layer, and two"
    tolerance = 0.2 if engine.config.dtype == "bfloat16" else 0.05
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_drafts_change_no_token(make: Make, method: str, models: dict[str, Path]) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(
        speculative_method=method, speculative_adaptive=False, num_speculative_tokens=3,
        prompt_lookup_min=1, speculative_model=str(models["llama"]),
    )  # fmt: skip
    assert engine.plan.host_layers == 1
    assert tokens_of(engine) == wanted
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0


def test_layers_move_while_requests_run(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make()
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    changes: list[dict[str, Any]] = [
        {"gpu_layers": "1"}, {"block_size": 32}, {"gpu_layers": "all"}, {"gpu_layers": "2"},
        {"device": "cpu"}, {"device": "cuda:0", "gpu_layers": "1"}, {"gpu_layers": "auto"},
    ]  # fmt: skip
    layers, steps = [], 0
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
        steps += 1
        if changes and steps % 2:
            engine.reconfigure(**changes.pop(0))
            layers.append(engine.plan.host_layers)
    engine.check_integrity()
    assert layers == [2, 2, 0, 1, 0, 2, 0]
    assert [found[request_id] for request_id in ids] == wanted


def test_unloading_gives_the_memory_of_both_back() -> None:
    def serve() -> LLMEngine:
        engine = whole.make("cuda:0", gpu_layers="3", kv_cache_memory_bytes=2**27)
        engine.generate(whole.PROMPTS[:2], SamplingParams(temperature=0, max_tokens=8))
        return engine

    serve().shutdown()  # what CUDA and libraries keep
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, in_all = torch.cuda.memory_allocated(), live_bytes()
    engine = serve()
    assert engine.plan.host_kv_cache > engine.plan.kv_cache > 2**25, "five layers, and three"
    assert torch.cuda.memory_allocated() > before + 2**25
    engine.shutdown()
    del engine
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + 2**20
    assert live_bytes() <= in_all + 2**20


def test_a_trained_model_says_what_it_says_on_the_cpu() -> None:
    """Its embeddings are its output head, of which there is one on each device."""
    wanted = []
    for device, gpu_layers in (("cpu", "all"), ("cuda:0", "5"), ("cuda:0", "1")):
        engine = whole.make(device, gpu_layers=gpu_layers)
        found = whole.tokens_of(engine)
        engine.check_integrity()
        engine.shutdown()
        wanted = wanted or found
        assert found == wanted, gpu_layers
