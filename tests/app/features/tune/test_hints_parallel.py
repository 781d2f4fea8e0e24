"""What the lines under the settings of tensor and pipeline parallelism say. No Qt."""

from __future__ import annotations

import dataclasses

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
from engine.snapshot import EngineSnapshot
from tests.app.features.tune.test_hints import step
from tests.figures import numbers

NO_GPU = Places(0, 1)


def divided(idle: EngineSnapshot, count: int, device: str, threads: int = 8) -> EngineSnapshot:
    """The engine with so many ranks."""
    config = EngineConfig(device=device, num_threads=threads, tensor_parallel_size=count)
    model = dataclasses.replace(idle.model, device=device, device_name="A device", num_ranks=count)
    return dataclasses.replace(idle, config=config, model=model)


@pytest.mark.parametrize(
    ("count", "threads", "nodes", "figures"),
    [
        (1, 1, 1, [1, 1]),
        (1, 8, 2, [8, 2]),
        (1, 8, 0, [8]),
        (2, 2, 1, [2, 1, 1]),
        (2, 8, 2, [2, 4]),  # a node for each
        (4, 8, 2, [4, 2, 2]),
        (2, 8, 0, [2, 4]),
        (4, 2, 1, [4, 1, 2, 1]),  # more than the threads
    ],
)
def test_ranks_on_the_cpu(
    idle: EngineSnapshot, count: int, threads: int, nodes: int, figures: list[int]
) -> None:
    """The same is said of what is, and of what is only chosen."""
    hints = Hints()
    hints.places = Places(0, nodes)
    hints.update(divided(idle, count, "cpu", threads))
    words = hints.hint(RANKS)
    assert numbers(words) == figures and ("NUMA" in words) == (nodes > 0)
    hints.update(divided(idle, 1, "cpu", 3))
    assert hints.ranks(count, "cpu", threads) == words
    assert numbers(hints.ranks(2, "cpu", None))[:2] == [2, 1]


@pytest.mark.parametrize(
    ("count", "device", "gpus", "now", "wanted"),
    [
        (1, "cuda:0", 0, [0], []),
        (1, "cuda:1", 4, [1, 4], []),
        (1, "cuda:0", 1, [0, 1], []),
        (2, "cuda:0", 2, [0, 1, 24.0], [0, 1, 12.0]),
        (4, "cuda:2", 8, [2, 5, 24.0], [2, 5, 6.01]),
    ],
)
def test_ranks_on_gpus(
    idle: EngineSnapshot, count: int, device: str, gpus: int, now: list[float],
    wanted: list[float],
) -> None:  # fmt: skip
    hints = Hints()
    hints.places = Places(gpus, 2)
    assert hints.ranks(count, device, None) == ""  # of no model anything is known
    seen = divided(idle, count, device)
    hints.update(seen)
    assert numbers(hints.hint(RANKS)) == now
    assert numbers(hints.ranks(count, device, None)) == wanted
    assert hints.hint("device") == "A device" + f" · TP {count}" * (count > 1)
    if count > 1:
        assert numbers(hints.hint("gpu_layers")) == [8, count]
        assert layers_moved(seen, "4") == ""
    else:
        assert device in layers_now(seen) and numbers(layers_now(seen))[0] == 8


def test_the_exchange_of_the_last_minute_is_told(idle: EngineSnapshot) -> None:
    steps = tuple(
        dataclasses.replace(step(at, 0.05), model_s=0.04, exchange_s=exchange)
        for at, exchange in ((930.0, 0.04), (990.0, 0.002), (991.0, 0.006))  # one too long ago
    )
    hints = Hints()
    hints.places = NO_GPU
    hints.update(dataclasses.replace(divided(idle, 2, "cpu"), steps=steps))
    assert numbers(hints.hint(RANKS))[-2:] == [1, 10]
    hints.update(dataclasses.replace(divided(idle, 2, "cpu"), time=1100.0))
    assert numbers(hints.hint(RANKS)) == [2, 4, 1]


@pytest.mark.parametrize(
    ("changes", "places", "why"),
    [
        ({}, NO_GPU, None),
        ({"device": "cuda:0"}, Places(2, 1), None),
        ({"device": "cuda:0"}, Places(0, 1), None),  # the driver did not tell: the engine will
        ({"device": "cuda:0"}, Places(1, 1), [2, 2, 1]),
        ({"device": "cuda:1"}, Places(2, 1), [2, 2, 1, 2]),
        ({"device": "auto"}, Places(1, 1), [2, 2, 1]),
        ({"device": "auto"}, NO_GPU, None),
        ({"device": "cuda:0", "gpu_layers": "all"}, Places(2, 1), None),
        ({"device": "cuda:0", "gpu_layers": "3"}, Places(2, 1), []),
        ({"device": "cpu", "gpu_layers": "3"}, NO_GPU, None),
        ({"speculative_method": "eagle3"}, NO_GPU, [3]),
        ({"speculative_method": "ngram"}, NO_GPU, None),
        ({RANKS: 1, "device": "cuda:0", "gpu_layers": "3"}, Places(1, 1), None),
        ({RANKS: 4}, NO_GPU, [2, 4]),
        ({RANKS: 8}, NO_GPU, [4, 8]),
        ({RANKS: 3}, NO_GPU, [4, 3]),
    ],
)  # fmt: skip
def test_what_speaks_against_ranks_is_known_before(
    idle: EngineSnapshot, changes: dict[str, object], places: Places, why: list[int] | None
) -> None:
    """Of a model with 4 heads, 2 for keys and values."""
    config = EngineConfig(device="cpu", tensor_parallel_size=2).replace(**changes)
    found = parallel_refusal(RANKS, lambda name: getattr(config, name), places, idle.model)
    assert (numbers(found) if found else None) == why
    if "heads" in found:
        assert parallel_refusal(RANKS, lambda name: getattr(config, name), places, None) == ""
    with_stages = config.replace(pipeline_parallel_size=2)
    for rule in (RANKS, STAGES):
        found = parallel_refusal(rule, lambda name: getattr(with_stages, name), places, idle.model)
        is_about_both = "tensor" in found and "pipeline" in found
        assert is_about_both == (config.tensor_parallel_size > 1)


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
        (1, "cpu", 4, 8, [], []),
        (1, "cuda:0", 0, 8, [0], []),
        (1, "cuda:1", 4, 8, [1, 4], []),
        (2, "cuda:0", 2, 8, [0, 1, 4, 24.0], [0, 1, 4, 12.0]),
        (3, "cuda:2", 8, 10, [2, 4, 3, 4, 24.0], [2, 4, 3, 4, 8.01]),
    ],
)
def test_stages_are_on_gpus(
    idle: EngineSnapshot, count: int, device: str, gpus: int, layers: int, now: list[float],
    wanted: list[float],
) -> None:  # fmt: skip
    hints = Hints()
    hints.places = Places(gpus, 2)
    assert hints.stages(count, device) == ""  # of no model anything is known
    seen = staged(idle, count, device, layers)
    hints.update(seen)
    assert (numbers(hints.hint(STAGES)), numbers(hints.stages(count, device))) == (now, wanted)
    if count > 1:
        assert hints.hint("device") == f"A device · PP {count}"
        assert hints.hint(RANKS)
        assert numbers(hints.hint("gpu_layers")) == [layers, count, *now[2:-1]]
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
    assert hints.hint(STAGES)


def test_stages_beside_layers_in_ram(idle: EngineSnapshot) -> None:
    seen = staged(idle, 1, "cuda:0")
    plan = dataclasses.replace(seen.memory.plan, host_layers=3)
    memory = dataclasses.replace(seen.memory, plan=plan)
    hints = Hints()
    hints.update(dataclasses.replace(seen, memory=memory))
    assert "CPU" in hints.hint(STAGES) and "cuda:0" in hints.hint(STAGES)


@pytest.mark.parametrize(
    ("changes", "places", "why"),
    [
        ({}, Places(2, 1), None),
        ({}, Places(0, 1), None),  # the driver did not tell: the engine will
        ({"device": "cpu"}, Places(2, 1), []),
        ({}, Places(1, 1), [2, 2, 1]),
        ({"device": "cuda:1"}, Places(2, 1), [2, 2, 1, 2]),
        ({"device": "auto", STAGES: 3}, Places(2, 1), [3, 3, 2]),
        ({"gpu_layers": "all"}, Places(2, 1), None),
        ({"gpu_layers": "3"}, Places(2, 1), []),
        ({"speculative_method": "eagle3"}, Places(2, 1), [3]),
        ({"speculative_method": "draft_model"}, Places(2, 1), None),
        ({STAGES: 8}, Places(8, 1), [8, 8, 6]),
        ({STAGES: 6}, Places(8, 1), None),
        ({STAGES: 1, "device": "cpu", "gpu_layers": "3"}, Places(1, 1), None),
    ],
)  # fmt: skip
def test_what_speaks_against_stages_is_known_before(
    idle: EngineSnapshot, changes: dict[str, object], places: Places, why: list[int] | None
) -> None:
    """Of a model with 6 layers."""
    config = EngineConfig(device="cuda:0", pipeline_parallel_size=2).replace(**changes)
    model = dataclasses.replace(idle.model, num_layers=6)
    shown = lambda name: getattr(config, name)
    found = parallel_refusal(STAGES, shown, places, model)
    assert (numbers(found) if found else None) == why
    if why == [8, 8, 6]:
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
    assert numbers(why) == ([2] if is_idle else [])
