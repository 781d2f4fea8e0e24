"""Ranks and stages on real GPUs: the tokens of one device, and no memory kept. Where there is one
GPU, two ranks share it: kernels and sums are the same, and nothing crosses."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.parallel import pipeline as staged_runner
from tests.engine import tiny_models
from tests.gpu import engines
from tests.gpu.engines import Engines, Make
from tests.gpu.test_engine_gpu import exact_products

__all__ = ["exact_products"]

pytestmark = pytest.mark.gpu

SHAPE = {
    "num_hidden_layers": 3, "hidden_size": 128, "head_dim": 64, "num_key_value_heads": 2,
    "intermediate_size": 128,  # each rank has whole groups of 32
}  # fmt: skip
PROMPTS = tiny_models.make_prompts((8, 3, 17, 40), seed=4)
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, top_k=20, max_tokens=14, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.7, seed=1, min_p=0.02, repetition_penalty=1.2, max_tokens=10),
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
]
BOTH = [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here")


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
        max_num_batched_tokens=32, max_model_len=128,
    )  # fmt: skip
    yield made.make
    made.shutdown()


@pytest.fixture
def on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("host.loading", "config", "hardware.devices"):
        monkeypatch.setattr(f"engine.{module}.rank_devices", lambda device, size: (device,) * size)


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return engines.tokens_of(engine, PROMPTS, PARAMS)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_ranks_that_share_a_gpu(make: Make, family: str, on_one_gpu: None) -> None:
    wanted = tokens_of(make(family, device="cpu"))
    engine = make(family, tensor_parallel_size=2)
    assert engine.model_info.kernels["ranks"] == "tensor parallel on cuda:0, cuda:0"
    assert tokens_of(engine) == wanted


@needs_two
@pytest.mark.parametrize("settings", BOTH, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_on_two_gpus(
    make: Make, family: str, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_runner, "LEAST_PIECE", 5)
    wanted = tokens_of(make(family, device="cpu"))
    assert tokens_of(make(family, **settings)) == wanted


@needs_two
@pytest.mark.parametrize("settings", BOTH, ids=str)
def test_in_few_bits(make: Make, settings: dict[str, int]) -> None:
    few = {"quantization": "int4", "quantization_group_size": 32, "kv_cache_dtype": "int8"}
    wanted = tokens_of(make(**few))
    assert tokens_of(make(**few, **settings)) == wanted


@needs_two
@pytest.mark.parametrize("settings", BOTH, ids=str)
def test_no_memory_is_kept(make: Make, settings: dict[str, int]) -> None:
    make(**settings).shutdown()  # what is made once stays
    gc.collect()
    before = [torch.cuda.memory_allocated(index) for index in range(2)]
    engine = make(**settings)
    tokens_of(engine)
    engine.reconfigure(block_size=32)
    engine.shutdown()
    gc.collect()
    assert [torch.cuda.memory_allocated(index) for index in range(2)] == before
