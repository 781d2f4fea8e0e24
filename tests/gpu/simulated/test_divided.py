"""A model whose first layers are computed by the CPU: the tokens of one that is on one device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineConfig, SamplingParams
from engine.errors import DraftModelError, OutOfMemoryError
from engine.evaluate import EvaluationTask, run
from engine.host import loading
from engine.host.resolve import resolve
from engine.memory.model_sizes import model_sizes
from engine.memory.plan import plan_memory
from engine.models.checkpoint import Checkpoint
from engine.snapshot import MemoryPlan
from tests.engine import tiny_heads, tiny_models
from tests.gpu.bench import divided_cells
from tests.gpu.bench.bench import Bench
from tests.gpu.engines import PARAMS, PROMPTS, Engines, Make, tokens_of
from tests.gpu.simulated.machine import machine

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("small_workspace")

slow = pytest.mark.slow
"""Not among those that are run with all others: seconds each, in the interpreter."""


@pytest.fixture
def make(models: dict[str, Path]) -> Iterator[Make]:
    engines = Engines(
        models.__getitem__, num_threads=1, kv_cache_memory_bytes=2**18, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64, gpu_layers="1",
    )  # fmt: skip
    yield engines.make
    engines.shutdown()


@pytest.mark.parametrize("changes", [{}, {"enforce_eager": True}])
def test_the_tokens_of_the_cpu_and_one_wait_a_step(make: Make, changes: dict[str, Any]) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(**changes)
    assert ("decode" in engine.model_info.kernels) == (not changes), engine.model_info.notices
    assert "1 of 2 layers are on cuda:0" in " ".join(engine.model_info.notices)
    assert not engine._loop.async_scheduling and engine.plan.host_layers == 1
    outcomes = {k: t for k, t in engine.model_info.kernels.items() if t.startswith("original")}
    assert not outcomes  # both halves were compared with what was replaced in them
    before = machine.waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert tokens_of(engine) == wanted
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert machine.waits == before
    engine._loop.async_scheduling = True  # it never would: the CPU waits for the tokens then
    assert tokens_of(engine) == wanted


@pytest.mark.parametrize(
    "family",
    ["gemma2", *(pytest.param(name, marks=slow) for name in ("gpt2", "gpt_oss", "qwen3_moe"))],
)
def test_families(make: Make, family: str) -> None:
    """Tied embeddings, windows, learned positions, sinks, experts."""
    wanted = tokens_of(make(family, device="cpu"))
    engine = make(family)
    assert "decode" in engine.model_info.kernels, engine.model_info.notices
    before = machine.waits
    assert tokens_of(engine) == wanted
    assert machine.waits == before


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"quantization": "int8", "quantization_head": "int8"}),
        pytest.param("llama", {"quantization": "int4"}, marks=slow),
        pytest.param("gemma2", {"quantization": "nf4", "quantization_head": "int8"}, marks=slow),
        pytest.param("qwen3_moe", {"quantization": "int4", "dtype": "bfloat16"}, marks=slow),
        pytest.param("llama", {"kv_cache_dtype": "int8"}, marks=slow),
        pytest.param("llama", {"kv_cache_dtype": "k=fp8,v=int8"}, marks=slow),
    ],
)
def test_few_bits_in_both_halves(
    make: Make, family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What both devices round is the same; products differ by their order."""
    monkeypatch.setattr("engine.kernels.quantized.measure_tile_rows", lambda _: None)  # slow
    whole, divided = make(family, device="cpu", **changes), make(family, **changes)
    for engine in (whole, divided):
        found = tokens_of(engine)
        assert all(tokens for tokens in found)
    halves = divided.snapshot().memory
    assert halves.host_weights > 0 and halves.weights > 0
    assert halves.host_kv_cache == halves.kv_cache == divided.plan.host_kv_cache


@slow
def test_logits_of_both_halves(make: Make) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
    found = []
    for changes in ({"device": "cpu"}, {}):
        engine = make(**changes)
        outputs = engine.generate(PROMPTS, params)
        found.append([[one.logprob for one in out.logprobs] for out in outputs])
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)


@slow
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_drafts_change_no_token(make: Make, method: str, models: dict[str, Path]) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(
        speculative_method=method, speculative_adaptive=False, num_speculative_tokens=2,
        prompt_lookup_min=1, speculative_model=str(models["llama"]),
    )  # fmt: skip
    assert tokens_of(engine) == wanted
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0


@slow
def test_a_head_that_reads_hidden_states_is_refused(
    make: Make, models: dict[str, Path], tmp_path: Path
) -> None:
    head = tiny_heads.make_head(tiny_models.make_model("llama"), layer_ids=(0, 1, 1))
    folder = str(tiny_heads.save(head, tmp_path / "head"))
    with pytest.raises(DraftModelError, match="the CPU has 1 layers of llama"):
        make(speculative_method="eagle3", speculative_model=folder)
    engine = make()
    wanted = tokens_of(engine)
    with pytest.raises(DraftModelError):
        engine.reconfigure(speculative_method="eagle3", speculative_model=folder)
    assert tokens_of(engine) == wanted


def test_layers_move_while_requests_run(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(max_num_seqs=2)
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    changes: list[dict[str, Any]] = [
        {"block_size": 32}, {"gpu_layers": "all"}, {"gpu_layers": "1"}, {"device": "cpu"},
        {"device": "cuda:0", "gpu_layers": "auto"},
    ]  # fmt: skip
    layers = []
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
        if changes:
            engine.reconfigure(**changes.pop(0))
            layers.append(engine.plan.host_layers)
    assert layers == [1, 0, 1, 0, 0] and list(found.values()) == wanted


def test_what_a_change_gives_back_in_ram_counts_as_free(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of both memories it is wanted in: the parts of a divided model, and a whole one."""
    engine = make()
    found: list[dict[str, Any]] = []

    def noted(*_: Any, **given: Any) -> MemoryPlan:
        found.append(given)
        return engine.plan

    monkeypatch.setattr("engine.host.model_host.plan_memory", noted)
    memory = engine.snapshot().memory
    own, host = memory.weights + memory.kv_cache, memory.host_weights + memory.host_kv_cache
    for changes in ({"max_model_len": 32}, {"device": "cpu"}):
        engine._host.plan_for(engine.config.replace(**changes))
    monkeypatch.undo()
    engine.reconfigure(device="cpu")
    memory = engine.snapshot().memory
    in_ram = memory.weights + memory.kv_cache
    monkeypatch.setattr("engine.host.model_host.plan_memory", noted)
    engine._host.plan_for(engine.config.replace(device="cuda:0"))
    given = [
        (one["in_use"].get(device, 0), one["in_use"]["cpu"])
        for one, device in zip(found, ("cuda:0", "cpu", "cuda:0"), strict=True)
    ]
    assert given == [(own, host), (host, host), (0, in_ram)]


@slow
def test_unloading_gives_all_memory_back(make: Make) -> None:
    gc.collect()
    before = machine.allocated
    engine = make()
    tokens_of(engine)
    assert machine.allocated > before + 2**17
    engine.shutdown()
    gc.collect()
    assert machine.allocated <= before + 4096  # the tables of an empty sampler


@pytest.mark.usefixtures("without_triton")
def test_as_many_layers_as_fit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others leave room for one of both layers."""
    config = {"gpu_layers": "auto", "enforce_eager": True}
    whole = make(**config)
    assert whole.plan.host_layers == 0
    wanted = tokens_of(whole)
    plan = plan_memory(Checkpoint.open(whole.config.model), whole.config)
    whole.shutdown()
    needed = plan.predicted + plan.reserve - 40_000  # of the weights, 77 KB are in a layer
    monkeypatch.setattr(machine, "others", machine.free + machine.others - needed)
    engine = make(**config)
    assert engine.plan.host_layers == 1
    assert " 64" in " ".join(engine.model_info.notices)
    assert tokens_of(engine) == wanted
    with pytest.raises(OutOfMemoryError, match="MiB needed"):
        make(gpu_layers="all")


@slow
def test_what_measures_it_loads_nothing_that_fits_whole_or_not_at_all() -> None:
    """And divides what is between, by the budget that it is given."""
    bench = Bench("cuda:0", quick=True)
    given = {"shape": "tiny", "precision": "bf16", "kv": "auto", "num_input": 40, "num_output": 6,
             "budget": 64, "most_s": 1.0}  # fmt: skip
    settings = divided_cells.settings_of("bf16", 1, 64, 64)
    config, checkpoint = resolve(bench.config("tiny", **settings))
    needed = plan_memory(checkpoint, config).predicted
    layer = model_sizes(checkpoint, torch.bfloat16).layer_weights[0]
    try:
        found = [
            divided_cells.measure(bench, budget_gb=size / 1e9, **given)
            for size in (2 * needed, needed // 2, needed - layer // 2)
        ]
    finally:
        bench.close()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found[0] == {"fits": True, "is_divided": False}
    assert not found[1]["fits"] and "does not fit either" in found[1]["why"]
    divided = found[2]
    assert divided["is_divided"] and (divided["host_layers"], divided["num_layers"]) == (1, 2)
    assert divided["host_weights_bytes"] > layer and divided["host_kv_cache_bytes"] > 0
    assert divided["num_input"] <= 40 and divided["itl_ms"]["p50"] > 0


@slow
def test_memory_that_is_refused_at_any_moment_costs_nobody_a_token(make: Make) -> None:
    engine = make()
    asked = machine.asked
    wanted = tokens_of(engine)
    times = machine.asked - asked

    @settings(max_examples=6, suppress_health_check=list(HealthCheck))
    @given(first=st.integers(1, times), count=st.integers(1, 2))
    def refused(first: int, count: int) -> None:
        engine.reconfigure(kv_cache_memory_bytes=2**18 + first)  # the cache as large as before
        start = machine.asked + first
        machine.denied = frozenset(range(start, start + count))
        try:
            assert tokens_of(engine) == wanted
        finally:
            machine.denied = frozenset()

    refused()


@pytest.mark.usefixtures("without_triton")
def test_a_plan_that_was_too_close_moves_another_layer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that needs more than was estimated is seen when it is measured."""
    wanted = tokens_of(make(device="cpu"))
    measure = loading.measure_activations
    seen: list[int] = []

    def costly(model: Any, *rest: Any) -> int:
        seen.append(len(seen))
        return 2**30 if len(seen) == 1 else measure(model, *rest)

    monkeypatch.setattr(loading, "measure_activations", costly)
    engine = make(gpu_layers="auto")
    assert engine.plan.host_layers == 1 and len(seen) == 2
    assert tokens_of(engine) == wanted
    seen.clear()
    with pytest.raises(OutOfMemoryError, match=r"1\.00 GiB"):
        make(gpu_layers="all")


@slow
def test_an_evaluation_has_its_sides_on_different_devices(
    models: dict[str, Path],
) -> None:
    """Divided against the CPU: the same model in float32; and divided in few bits."""
    text = " ".join(f"t{3 + i % 150}" for i in range(40))
    on_cpu = EngineConfig(
        model=str(models["llama"]), device="cpu", dtype="float32", num_threads=1, block_size=8,
        max_num_batched_tokens=32,
    )  # fmt: skip
    divided = on_cpu.replace(device="cuda:0", gpu_layers="1")
    few_bits = divided.replace(quantization="int8", kv_cache_dtype="int8")
    found = []
    for candidate in (divided, few_bits):
        report = run(EvaluationTask(candidate, reference=on_cpu, text=text, context_length=24))
        assert report.divergence is not None
        found.append(report.divergence.kl.mean)
    assert 0 <= found[0] < 1e-9 < found[1] < 1e-2
