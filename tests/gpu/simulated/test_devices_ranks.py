"""Several ranks, each on a GPU of its own."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.errors import ConfigError
from engine.host.resolve import resolve
from engine.memory.plan import plan_memory
from tests.gpu.engines import PARAMS, PROMPTS, Make, tokens_of
from tests.gpu.simulated.machine import machine

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"),
    pytest.mark.usefixtures("small_workspace"),
]
torch.set_num_threads(1)


def test_tokens_are_those_of_the_cpu(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(tensor_parallel_size=2)
    assert engine.looks_ahead
    waits = machine.waits
    assert tokens_of(engine) == wanted
    assert machine.waits == waits, "the host waits for tokens alone"
    assert engine.model_info.device_name == "2 x Simulated GPU"
    assert engine.model_info.kernels["ranks"] == "2 ranks, on cuda:0, cuda:1"
    assert all(step.exchange_s == 0 for step in engine.snapshot().steps)
    engine.reconfigure(kv_cache_dtype="int8")
    assert len(tokens_of(engine)) == len(wanted)


def test_in_torch_s_own_operations(make: Make, without_triton: None) -> None:
    assert tokens_of(make(tensor_parallel_size=2)) == tokens_of(make(device="cpu"))


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe", "gpt_oss"])
def test_other_families(make: Make, family: str, without_triton: None) -> None:
    wanted = tokens_of(make(family, device="cpu"))
    assert tokens_of(make(family, tensor_parallel_size=2)) == wanted


def test_drafts_are_made_on_the_first(
    make: Make, models: dict[str, Path], without_triton: None
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    wanted = tokens_of(make(device="cpu"), PROMPTS, greedy)
    engine = make(
        tensor_parallel_size=2, speculative_method="draft_model",
        speculative_model=str(models["llama"]), num_speculative_tokens=2,
        speculative_adaptive=False,
    )  # fmt: skip
    assert tokens_of(engine, PROMPTS, greedy) == wanted


def test_each_gpu_has_its_part_and_all_of_it_comes_back(
    make: Make, without_triton: None
) -> None:
    gc.collect()
    before = [gpu.allocated for gpu in machine.gpus]
    alone = make()
    whole = machine.gpus[0].allocated - before[0]
    alone.shutdown()
    engine = make(tensor_parallel_size=2)
    taken = [gpu.allocated - old for gpu, old in zip(machine.gpus, before, strict=True)]
    assert 0 < taken[1] <= taken[0] < whole
    memory, plan = engine.snapshot().memory, engine.plan
    assert memory.kv_cache == plan.kv_cache == plan.num_blocks * plan.bytes_per_block
    assert memory.weights < 0.6 * alone.model_info.weights_bytes
    tokens_of(engine)
    engine.shutdown()
    gc.collect()
    assert [gpu.allocated for gpu in machine.gpus] == before


def test_the_gpu_with_least_memory_decides(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, checkpoint = resolve(
        EngineConfig(
            model=str(models["llama"]), device="cuda:0", dtype="float32", num_threads=1,
            max_num_seqs=512, max_model_len=256, tensor_parallel_size=2,
        )
    )  # fmt: skip
    whole = plan_memory(checkpoint, config)
    alone = plan_memory(checkpoint, config.replace(tensor_parallel_size=1))
    assert whole.num_blocks == alone.num_blocks and 2 * whole.kv_cache == alone.kv_cache
    assert whole.weights == pytest.approx(alone.weights / 2, rel=0.1)
    needed = whole.weights + whole.activations + whole.kv_cache // 2 + whole.reserve
    for gpu in machine.gpus:
        free = needed + 2**20 * gpu.index
        monkeypatch.setattr(gpu, "others", gpu.total - gpu.allocated - free)
    least = plan_memory(checkpoint, config)
    assert least.num_blocks == pytest.approx(whole.num_blocks / 2, abs=2)
    monkeypatch.setattr(machine.gpus[1], "others", machine.gpus[1].others + 2**22)
    assert plan_memory(checkpoint, config).num_blocks < least.num_blocks


def test_memory_that_runs_out_on_the_second_shrinks_the_cache(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(tensor_parallel_size=2)
    blocks = engine.plan.num_blocks
    gpu = machine.gpus[1]
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {name: [] for name in ids}
    for index in range(1000):
        if index == 3:
            gpu.denied = frozenset({gpu.asked + 5})
        for event in engine.step():
            found[event.request_id] += event.token_ids
        if not engine.has_unfinished:
            break
    gpu.denied = frozenset()
    assert [found[name] for name in ids] == wanted
    assert engine.times_shrunk >= 1 or engine.plan.num_blocks == blocks
    assert any("cuda" in notice for notice in engine.model_info.notices)


def test_too_few_gpus_and_layers_on_the_cpu_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 4 from cuda:0 .* 4 GPUs.*has 2"):
        make(tensor_parallel_size=4)
    with pytest.raises(ConfigError, match="tensor_parallel_size 2 from cuda:1"):
        make(device="cuda:1", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="gpu_layers is 1"):
        make(tensor_parallel_size=2, gpu_layers="1")


def test_from_one_gpu_to_two_while_a_request_runs(make: Make, without_triton: None) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine: LLMEngine = make()
    assert isinstance(engine.config, EngineConfig)
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {name: [] for name in ids}
    for size in (2, 1):
        for _ in range(3):
            for event in engine.step():
                found[event.request_id] += event.token_ids
        engine.reconfigure(tensor_parallel_size=size)
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
    assert [found[name] for name in ids] == wanted


def test_a_change_counts_what_each_gpu_would_have_back(make: Make) -> None:
    engine = make(tensor_parallel_size=2)
    host = engine._host
    parts, cache = host.assembly.loaded.bytes_on, engine.plan.kv_cache
    assert host.assembly.taken == {
        "cpu": 0, "cuda:0": parts["cuda:0"] + cache, "cuda:1": parts["cuda:1"] + cache
    }  # fmt: skip
    assert host.plan_for(engine.config).activations == engine.plan.activations
    alone = engine.config.replace(tensor_parallel_size=1)
    # a step of one is no step of two: it is estimated until it is measured
    estimated = plan_memory(host.assembly.checkpoint, alone).activations
    assert host.plan_for(alone).activations == estimated
