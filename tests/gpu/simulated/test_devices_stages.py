"""The layers of a model on several GPUs, one behind the other."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from engine import SamplingParams
from engine.errors import ConfigError, OutOfMemoryError
from engine.parallel import pipeline as staged_runner
from tests.engine.tiny_models import make_prompts
from tests.gpu.engines import PARAMS, PROMPTS, Make, tokens_of
from tests.gpu.simulated.machine import machine

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"),
    pytest.mark.usefixtures("small_workspace"),
]
torch.set_num_threads(1)
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_tokens_are_those_of_the_cpu(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(pipeline_parallel_size=2)
    assert engine.looks_ahead
    waits = machine.waits
    assert tokens_of(engine) == wanted
    assert machine.waits == waits, "the host waits for tokens alone"
    assert torch.cuda.current_device() == 0
    assert engine.model_info.num_stages == 2
    assert engine.model_info.device_name == "2 x Simulated GPU, one behind the other"
    assert any("one behind the other" in notice for notice in engine.model_info.notices)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3_moe", "gpt_oss"])
def test_families_in_pieces(
    make: Make, family: str, without_triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts in up to four pieces, and others beside them."""
    monkeypatch.setattr(staged_runner, "LEAST_PIECE", 5)
    prompts = make_prompts((50, 3, 31, 44))
    settings = {"max_num_batched_tokens": 23}
    wanted = tokens_of(make(family, device="cpu", **settings), prompts, GREEDY)
    engine = make(family, pipeline_parallel_size=2, **settings)
    assert tokens_of(engine, prompts, GREEDY) == wanted


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int8", "quantization_head": "int8"},
        {"quantization": "int4", "quantization_group_size": 32, "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_few_bits(make: Make, settings: dict[str, object], without_triton: None) -> None:
    one, two = make(**settings), make(pipeline_parallel_size=2, **settings)
    assert tokens_of(two, PROMPTS, GREEDY) == tokens_of(one, PROMPTS, GREEDY)


def test_drafts_are_made_on_the_first(
    make: Make, models: dict[str, Path], without_triton: None
) -> None:
    wanted = tokens_of(make(device="cpu"), PROMPTS, GREEDY)
    engine = make(
        pipeline_parallel_size=2, speculative_method="draft_model",
        speculative_model=str(models["llama"]), num_speculative_tokens=2,
        speculative_adaptive=False,
    )  # fmt: skip
    assert tokens_of(engine, PROMPTS, GREEDY) == wanted


def test_each_gpu_has_its_layers_and_all_of_it_comes_back(
    make: Make, without_triton: None
) -> None:
    gc.collect()
    before = [gpu.allocated for gpu in machine.gpus]
    engine = make(pipeline_parallel_size=2)
    taken = [gpu.allocated - old for gpu, old in zip(machine.gpus, before, strict=True)]
    assert min(taken) > 0
    memory, plan = engine.snapshot().memory, engine.plan
    assert memory.kv_cache == plan.kv_cache == plan.num_blocks * plan.bytes_per_block
    assert memory.weights < 0.7 * engine.model_info.weights_bytes
    tokens_of(engine)
    for changes in ({"block_size": 32}, {"pipeline_parallel_size": 1}):
        engine.reconfigure(**changes)
    assert machine.gpus[1].allocated == before[1]
    engine.shutdown()
    gc.collect()
    assert [gpu.allocated for gpu in machine.gpus] == before


def test_memory_that_runs_out_on_the_second_loses_no_request(
    make: Make, without_triton: None
) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(pipeline_parallel_size=2)
    gpu = machine.gpus[1]
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {name: [] for name in ids}
    denied = gpu.asked + 5  # in the first step, which is not launched ahead of another
    gpu.denied = frozenset({denied})
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
    gpu.denied = frozenset()
    assert [found[name] for name in ids] == wanted
    assert denied <= gpu.asked and engine.times_shrunk == 1
    assert torch.cuda.current_device() == 0


def test_what_cannot_be_is_refused(
    make: Make, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, without_triton: None
) -> None:
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size 4 .* needs 4 GPUs.*has 2"):
        make(pipeline_parallel_size=4)
    with pytest.raises(ConfigError, match="either each layer together"):
        make(pipeline_parallel_size=2, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="gpu_layers is 1"):
        make(pipeline_parallel_size=2, gpu_layers="1")
    monkeypatch.setattr(machine.gpus[1], "others", machine.gpus[1].total)
    with pytest.raises(OutOfMemoryError, match="Layers 0 to 0 on cuda:0"):
        make(pipeline_parallel_size=2)
