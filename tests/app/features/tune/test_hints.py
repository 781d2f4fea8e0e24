"""What the line under a setting says, from snapshots of a known engine. No Qt."""

from __future__ import annotations

import dataclasses
import time

import pytest

from app.features.models.placement import (
    RANKS,
    STAGES,
    Places,
    layers_moved,
    layers_now,
    nowhere,
    parallel_refusal,
)
from app.features.tune.hints import Hints
from engine.config import EngineConfig
from engine.snapshot import EngineSnapshot, StepEntry, StepRecord, ThreadFigures, ThreadsOf
from tests.app.fakes import Script, snapshot_at_rest
from tests.figures import numbers


@pytest.fixture(scope="module")
def idle() -> EngineSnapshot:
    """The snapshot of a loaded engine that does nothing, at time 1000."""
    return dataclasses.replace(snapshot_at_rest("/m", Script(load_step_s=0.0)), time=1000.0)


def step(start: float, duration: float, *entries: StepEntry) -> StepRecord:
    return StepRecord(int(start * 10), start, duration, entries, len(entries), 0)


def test_nothing_is_said_before_a_snapshot() -> None:
    assert Hints().hint("block_size") == ""


def test_an_idle_engine(idle: EngineSnapshot) -> None:
    hints = Hints()
    hints.update(idle)
    assert numbers(hints.hint("max_num_seqs")) == [0, 0]
    assert hints.hint("max_num_batched_tokens")
    assert numbers(hints.hint("block_size")) == [15]
    assert numbers(hints.hint("watermark")) == [6, 128]
    assert numbers(hints.hint("enable_prefix_caching")) == [40, 100]
    assert str(idle.model.max_model_len) in hints.hint("max_model_len").replace(",", "")
    assert hints.hint("seed") == ""


def test_the_cache_names_its_precision(idle: EngineSnapshot) -> None:
    hints = Hints()
    plan = dataclasses.replace(
        idle.memory.plan, bytes_per_block=16 * 1056, key_dtype="int8", value_dtype="bfloat16"
    )
    hints.update(dataclasses.replace(idle, memory=dataclasses.replace(idle.memory, plan=plan)))
    assert numbers(hints.hint("kv_cache_dtype")) == [8, 16, 1.03]


def test_what_was_captured_is_said(idle: EngineSnapshot) -> None:
    hints = Hints()
    hints.update(idle)
    assert hints.hint("enforce_eager")
    words = "CUDA graphs: 5 sizes up to 16 requests, 12 MiB"
    model = dataclasses.replace(idle.model, kernels={"decode": words})
    hints.update(dataclasses.replace(idle, model=model))
    assert hints.hint("enforce_eager") == words


def test_steps_are_summed_over_the_last_minute(idle: EngineSnapshot) -> None:
    prefill, decode = StepEntry("a", "prefill", 512), StepEntry("b", "decode", 1)
    steps = (
        step(930.0, 0.5, StepEntry("a", "prefill", 4096)),  # too long ago
        step(990.0, 0.058, prefill),
        step(990.5, 0.030, prefill, decode),
        step(995.0, 0.002, decode),
    )
    hints = Hints()
    hints.update(dataclasses.replace(idle, steps=steps))
    assert numbers(hints.hint("max_num_batched_tokens")) == [30, 513]
    assert numbers(hints.hint("enable_chunked_prefill")) == [2, 1]
    assert numbers(hints.hint("batching")) == [1.3]
    assert "30.0 ms" in hints.hint("num_threads")
    hints.update(dataclasses.replace(idle, time=1100.0))
    assert hints.hint("max_num_batched_tokens")


def test_threads_of_the_steps_are_told(idle: EngineSnapshot) -> None:
    hints = Hints()
    steps = (step(999.0, 0.002, StepEntry("a", "decode", 1)),)
    hints.update(dataclasses.replace(idle, steps=steps, threads=None))
    assert hints.hint("adaptive_threads") == ""  # a server of before tells nothing of them
    assert numbers(hints.hint("num_threads")) == [2]
    found = (ThreadsOf(1, 1, 1), ThreadsOf(4, 7, 2))
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(4, 1, 3, 1.04, found)))
    assert numbers(hints.hint("num_threads")) == [1, 4, 2]
    assert numbers(hints.hint("adaptive_threads")) == [1, 1, 1, 4, 7, 2]
    hints.update(dataclasses.replace(idle, threads=ThreadFigures(1, 1, 1, None)))
    assert hints.hint("adaptive_threads")


NO_GPU = Places(0, 1)


def divided(idle: EngineSnapshot, count: int, device: str, threads: int = 8) -> EngineSnapshot:
    """The engine with so many ranks."""
    config = EngineConfig(device=device, num_threads=threads, tensor_parallel_size=count)
    model = dataclasses.replace(idle.model, device=device, device_name="A device", num_ranks=count)
    return dataclasses.replace(idle, config=config, model=model)


@pytest.mark.parametrize(
    ("count", "threads", "nodes", "words"),
    [
        (1, 1, 1, "1 group of 1 thread · 1 NUMA node"),
        (1, 8, 2, "1 group of 8 threads · 2 NUMA nodes"),
        (1, 8, 0, "1 group of 8 threads"),
        (2, 2, 1, "2 groups of 1 thread · 1 NUMA node"),
        (2, 8, 2, "2 groups of 4 threads · one NUMA node each"),
        (4, 8, 2, "4 groups of 2 threads · only 2 NUMA nodes"),
        (2, 8, 0, "2 groups of 4 threads"),
        (4, 2, 1, "4 groups of 1 thread, more than the 2 CPU threads · 1 NUMA node"),
    ],
)
def test_ranks_on_the_cpu(
    idle: EngineSnapshot, count: int, threads: int, nodes: int, words: str
) -> None:
    """The same is said of what is, and of what is only chosen."""
    hints = Hints()
    hints.places = Places(0, nodes)
    hints.update(divided(idle, count, "cpu", threads))
    assert hints.hint(RANKS) == words
    hints.update(divided(idle, 1, "cpu", 3))
    assert hints.ranks(count, "cpu", threads) == words
    assert hints.ranks(2, "cpu", None).startswith("2 groups of 1 thread ·" if nodes else "2 gr")


@pytest.mark.parametrize(
    ("count", "device", "gpus", "now", "wanted"),
    [
        (1, "cuda:0", 0, "cuda:0 computes all layers", ""),
        (1, "cuda:1", 4, "cuda:1 computes all layers · 4 GPUs here", ""),
        (1, "cuda:0", 1, "cuda:0 computes all layers · 1 GPU here", ""),
        (2, "cuda:0", 2, "cuda:0 and cuda:1", "cuda:0 and cuda:1"),
        (4, "cuda:2", 8, "cuda:2 to cuda:5", "cuda:2 to cuda:5"),
    ],
)
def test_ranks_on_gpus(
    idle: EngineSnapshot, count: int, device: str, gpus: int, now: str, wanted: str
) -> None:
    hints = Hints()
    hints.places = Places(gpus, 2)
    assert hints.ranks(count, device, None) == ""  # of no model anything is known
    seen = divided(idle, count, device)
    hints.update(seen)
    size = f" · weights {'' if count == 1 else '24.0 MiB'} on each"
    assert hints.hint(RANKS) == now + size * (count > 1)
    about = {2: "12.0 MiB", 4: "6.01 MiB"}.get(count)
    assert hints.ranks(count, device, None) == wanted + f" · weights about {about} on each" * (
        count > 1
    )
    assert hints.hint("device") == "A device" + f" · TP {count}" * (count > 1)
    if count > 1:
        assert hints.hint("gpu_layers") == f"all 8 on {count} GPUs, a part of each"
        assert layers_moved(seen, "4") == ""
    else:
        assert layers_now(seen).startswith(f"all 8 on {device} · a layer ")


def test_the_exchange_of_the_last_minute_is_told(idle: EngineSnapshot) -> None:
    steps = tuple(
        dataclasses.replace(step(at, 0.05), model_s=0.04, exchange_s=exchange)
        for at, exchange in ((930.0, 0.04), (990.0, 0.002), (991.0, 0.006))  # one too long ago
    )
    hints = Hints()
    hints.places = NO_GPU
    hints.update(dataclasses.replace(divided(idle, 2, "cpu"), steps=steps))
    assert hints.hint(RANKS).endswith("1 NUMA node · exchange 10 % of the model's time")
    hints.update(dataclasses.replace(divided(idle, 2, "cpu"), time=1100.0))
    assert hints.hint(RANKS).endswith("1 NUMA node")


@pytest.mark.parametrize(
    ("changes", "places", "why"),
    [
        ({}, NO_GPU, ""),
        ({"device": "cuda:0"}, Places(2, 1), ""),
        ({"device": "cuda:0"}, Places(0, 1), ""),  # the driver did not tell: the engine will
        ({"device": "cuda:0"}, Places(1, 1), "2 ranks need 2 GPUs: there is 1 GPU here"),
        ({"device": "cuda:1"}, Places(2, 1),
         "2 ranks need 2 GPUs from cuda:1 on: there are 2 GPUs here"),
        ({"device": "auto"}, Places(1, 1), "2 ranks need 2 GPUs: there is 1 GPU here"),
        ({"device": "auto"}, NO_GPU, ""),
        ({"device": "cuda:0", "gpu_layers": "all"}, Places(2, 1), ""),
        ({"device": "cuda:0", "gpu_layers": "3"}, Places(2, 1),
         "CPU offload uses one GPU only: set GPU layers to auto or all"),
        ({"device": "cpu", "gpu_layers": "3"}, NO_GPU, ""),
        ({"speculative_method": "eagle3"}, NO_GPU, "an EAGLE-3 head drafts for one rank only"),
        ({"speculative_method": "ngram"}, NO_GPU, ""),
        ({RANKS: 1, "device": "cuda:0", "gpu_layers": "3"}, Places(1, 1), ""),
        ({RANKS: 4}, NO_GPU, "2 KV heads cannot be divided among 4 ranks"),
        ({RANKS: 8}, NO_GPU, "4 heads cannot be divided among 8 ranks"),
        ({RANKS: 3}, NO_GPU, "4 heads cannot be divided among 3 ranks"),
    ],
)  # fmt: skip
def test_what_speaks_against_ranks_is_known_before(
    idle: EngineSnapshot, changes: dict[str, object], places: Places, why: str
) -> None:
    """Of a model with 4 heads, 2 for keys and values."""
    config = EngineConfig(device="cpu", tensor_parallel_size=2).replace(**changes)
    found = parallel_refusal(RANKS, lambda name: getattr(config, name), places, idle.model)
    assert found == why
    if "heads" in why:
        assert parallel_refusal(RANKS, lambda name: getattr(config, name), places, None) == ""
    with_stages = config.replace(pipeline_parallel_size=2)
    for rule in (RANKS, STAGES):
        found = parallel_refusal(rule, lambda name: getattr(with_stages, name), places, idle.model)
        assert found.startswith("tensor and pipeline parallelism cannot be combined") == (
            config.tensor_parallel_size > 1
        )


def staged(idle: EngineSnapshot, count: int, device: str, layers: int = 8) -> EngineSnapshot:
    """The engine with so many stages."""
    config = EngineConfig(device=device, num_threads=8, pipeline_parallel_size=count)
    model = dataclasses.replace(
        idle.model, device=device, device_name="A device", num_stages=count, num_layers=layers
    )
    return dataclasses.replace(idle, config=config, model=model)


@pytest.mark.parametrize(
    ("count", "device", "gpus", "layers", "now", "wanted"),
    [
        (1, "cpu", 4, 8, "", ""),
        (1, "cuda:0", 0, 8, "all layers on cuda:0", ""),
        (1, "cuda:1", 4, 8, "all layers on cuda:1 · 4 GPUs here", ""),
        (2, "cuda:0", 2, 8, "cuda:0 and cuda:1 · 4 layers each · weights 24.0 MiB on the first",
         "cuda:0 and cuda:1 · 4 layers each · weights about 12.0 MiB on each"),
        (3, "cuda:2", 8, 10,
         "cuda:2 to cuda:4 · 3 or 4 layers each · weights 24.0 MiB on the first",
         "cuda:2 to cuda:4 · 3 or 4 layers each · weights about 8.01 MiB on each"),
    ],
)  # fmt: skip
def test_stages_are_on_gpus(
    idle: EngineSnapshot, count: int, device: str, gpus: int, layers: int, now: str, wanted: str
) -> None:
    hints = Hints()
    hints.places = Places(gpus, 2)
    assert hints.stages(count, device) == ""  # of no model anything is known
    seen = staged(idle, count, device, layers)
    hints.update(seen)
    assert (hints.hint(STAGES), hints.stages(count, device)) == (now, wanted)
    if count > 1:
        assert hints.hint("device") == f"A device · PP {count}"
        assert hints.hint(RANKS) == "not split: each layer is on one GPU"
        has = now.split(" · ")[1]
        assert hints.hint("gpu_layers") == f"all {layers} on {count} GPUs, {has}"
        assert layers_moved(seen, "4") == ""


def test_figures_of_a_plan_say_on_how_many_gpus_they_are(idle: EngineSnapshot) -> None:
    """The plan is that of each rank, and of the first stage."""
    names = ("kv_cache_memory_bytes", "kv_cache_dtype", "gpu_memory_utilization")
    hints = Hints()
    for seen, where in (
        (staged(idle, 2, "cuda:0"), "on the first of 2 GPUs"),
        (divided(idle, 2, "cuda:0"), "on each of 2 GPUs"),
        (divided(idle, 2, "cpu"), ""),
    ):
        hints.update(seen)
        found = [hints.hint(name) for name in names]
        assert [where in words if where else " of 2 GPUs" not in words for words in found] == (
            [True] * 3
        )
    hints.update(divided(idle, 2, "cuda:0"))
    assert hints.hint(STAGES) == "each GPU holds a shard of every layer"


def test_stages_beside_layers_in_ram(idle: EngineSnapshot) -> None:
    seen = staged(idle, 1, "cuda:0")
    plan = dataclasses.replace(seen.memory.plan, host_layers=3)
    memory = dataclasses.replace(seen.memory, plan=plan)
    hints = Hints()
    hints.update(dataclasses.replace(seen, memory=memory))
    assert hints.hint(STAGES) == "all layers on the CPU and cuda:0"


@pytest.mark.parametrize(
    ("changes", "places", "why"),
    [
        ({}, Places(2, 1), ""),
        ({}, Places(0, 1), ""),  # the driver did not tell: the engine will
        ({"device": "cpu"}, Places(2, 1),
         "pipeline parallelism requires NVIDIA GPUs; the device is cpu"),
        ({}, Places(1, 1), "2 stages need 2 GPUs: there is 1 GPU here"),
        ({"device": "cuda:1"}, Places(2, 1),
         "2 stages need 2 GPUs from cuda:1 on: there are 2 GPUs here"),
        ({"device": "auto", STAGES: 3}, Places(2, 1),
         "3 stages need 3 GPUs: there are 2 GPUs here"),
        ({"gpu_layers": "all"}, Places(2, 1), ""),
        ({"gpu_layers": "3"}, Places(2, 1),
         "CPU offload uses one GPU only: set GPU layers to auto or all"),
        ({"speculative_method": "eagle3"}, Places(2, 1),
         "an EAGLE-3 head drafts for one stage only"),
        ({"speculative_method": "draft_model"}, Places(2, 1), ""),
        ({STAGES: 8}, Places(8, 1), "8 stages need 8 layers: the model has 6"),
        ({STAGES: 6}, Places(8, 1), ""),
        ({STAGES: 1, "device": "cpu", "gpu_layers": "3"}, Places(1, 1), ""),
    ],
)  # fmt: skip
def test_what_speaks_against_stages_is_known_before(
    idle: EngineSnapshot, changes: dict[str, object], places: Places, why: str
) -> None:
    """Of a model with 6 layers."""
    config = EngineConfig(device="cuda:0", pipeline_parallel_size=2).replace(**changes)
    model = dataclasses.replace(idle.model, num_layers=6)
    shown = lambda name: getattr(config, name)
    assert parallel_refusal(STAGES, shown, places, model) == why
    if "the model has" in why:
        assert parallel_refusal(STAGES, shown, places, None) == ""


@pytest.mark.parametrize(
    ("device", "gpus", "count", "is_idle"),
    [
        ("cpu", 0, 1, True), ("cpu", 4, 1, True), ("cuda:0", 1, 1, True), ("auto", 1, 1, True),
        ("cuda:0", 2, 1, False), ("cuda:0", 0, 1, False),
        ("cpu", 4, 2, False), ("cuda:0", 1, 2, False),  # to be taken back
    ],
)  # fmt: skip
def test_stages_are_no_choice_where_there_are_not_several_gpus(
    device: str, gpus: int, count: int, is_idle: bool
) -> None:
    config = EngineConfig(device=device, pipeline_parallel_size=count)
    why = nowhere(lambda name: getattr(config, name), Places(gpus, 1))
    assert why == ("requires 2 or more NVIDIA GPUs" if is_idle else "")


def test_a_fast_engine_costs_little_to_explain(idle: EngineSnapshot) -> None:
    """30,000 steps a minute are kept as 60 sums."""
    decode = tuple(StepEntry(str(i), "decode", 1) for i in range(8))
    steps = tuple(step(940 + i * 0.002, 0.002, *decode) for i in range(30_000))
    hints = Hints()
    hints.update(dataclasses.replace(idle, steps=steps))
    assert len(hints._seconds) <= 62
    began = time.thread_time()
    for name in hints._makers:
        hints.hint(name)
    assert time.thread_time() - began < 0.1  # 30,000 steps one by one take longer
