"""The engine on the simulated device: the tokens of the CPU, one wait a step, no memory kept, and
nobody lost where memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kernels.quantized import make_expert_weights
from engine.models.layers.experts import QuantizedExperts
from engine.numerics.rounding import round_nf4
from engine.step.execute import InFlightStep
from tests.engine import tiny_heads, tiny_models
from tests.gpu.engines import PARAMS, PROMPTS, Engines, Make, tokens_of
from tests.gpu.simulated.machine import DEVICE, machine

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("small_workspace")

slow = pytest.mark.slow
"""Not among those that are run with all others: half a minute each, in the interpreter."""


@pytest.fixture
def make(models: dict[str, Path]) -> Iterator[Make]:
    engines = Engines(
        models.__getitem__, num_threads=1, kv_cache_memory_bytes=2**18, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64, gpu_layers="all",
    )  # fmt: skip
    yield engines.make
    engines.shutdown()


@pytest.mark.parametrize("changes", [{}, {"enforce_eager": True}])
def test_the_tokens_of_the_cpu_and_one_wait_a_step(
    make: Make, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(**changes)
    assert ("decode" in engine.model_info.kernels) == (not changes), engine.model_info.notices
    assert engine._loop.async_scheduling
    reads: list[InFlightStep] = []
    read = InFlightStep.read
    monkeypatch.setattr(InFlightStep, "read", lambda step: (reads.append(step), read(step))[1])
    before = machine.waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert tokens_of(engine) == wanted
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert machine.waits == before and len(reads) >= 7
    engine._loop.async_scheduling = False
    assert tokens_of(engine) == wanted


@pytest.mark.parametrize(
    "family",
    ["gemma2", "gpt_oss", pytest.param("gpt2", marks=slow), pytest.param("qwen3_moe", marks=slow)],
)
def test_families(make: Make, family: str) -> None:
    """Soft caps and windows, learned positions, sinks, experts."""
    wanted = tokens_of(make(family, device="cpu"))
    engine = make(family)
    before = machine.waits
    assert "decode" in engine.model_info.kernels, engine.model_info.notices
    assert tokens_of(engine) == wanted
    assert machine.waits == before


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        ("llama", "in stripes"),
        pytest.param("llama", "nf4", marks=slow),
        pytest.param("llama", "int4", marks=slow),
        pytest.param("llama", "int8", marks=slow),
        pytest.param("qwen3_moe", "fp8", marks=slow),
        pytest.param("qwen3_moe", "nf4", marks=slow),
    ],
)
def test_weights_in_few_bits(
    make: Make, family: str, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replayed steps give the tokens of the launched ones, and wait for nothing. In stripes is
    what no kernel of ours takes."""
    if quantization == "in stripes":
        quantization = "nf4"
        monkeypatch.setattr("engine.kernels.quantized.packed_fits", lambda codes: False)
    monkeypatch.setattr("engine.kernels.quantized.measure_tile_rows", lambda _: None)  # slow
    engine = make(family, quantization=quantization, dtype="bfloat16", max_num_seqs=1)
    assert "decode" in engine.model_info.kernels, engine.model_info.notices
    before = machine.waits
    found = tokens_of(engine)
    assert machine.waits == before
    engine.reconfigure(enforce_eager=True)
    assert "decode" not in engine.model_info.kernels
    assert tokens_of(engine) == found


def test_experts_in_few_bits_ask_the_device_for_nothing() -> None:
    """However many tokens there are: one by one, and in tiles."""
    original = tiny_models.make_model("qwen3_moe").model.layers[0].mlp.experts
    held = QuantizedExperts(original)
    for name in (held.first_name, "down_proj"):
        codes = [round_nf4(weight) for weight in original.get_parameter(name).detach()]
        held.pack(name, [make_expert_weights([c], torch.float32, DEVICE) for c in codes])
    width = original.get_parameter("down_proj").shape[1]
    for count in (2, 20):
        chosen = torch.randint(0, held.num_experts, (count, 2), device=DEVICE)
        x = torch.randn(count, width, device=DEVICE)
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = held(x, chosen, torch.full((count, 2), 0.5, device=DEVICE))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert found.cpu().isfinite().all()


def drafting(method: str, models: dict[str, Path], folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "speculative_method": method, "speculative_adaptive": False,
        "num_speculative_tokens": 2, "max_num_seqs": 2,
    }  # fmt: skip
    if method == "ngram":
        return settings | {"prompt_lookup_min": 1}
    if method == "draft_model":
        return settings | {"speculative_model": str(models["llama"])}
    head = tiny_heads.make_head(tiny_models.make_model("llama"), layer_ids=(0, 1, 1))
    return settings | {"speculative_model": str(tiny_heads.save(head, folder / "head"))}


@pytest.mark.parametrize(
    "method",
    ["eagle3", pytest.param("ngram", marks=slow), pytest.param("draft_model", marks=slow)],
)
def test_drafts_change_no_token(
    make: Make, method: str, models: dict[str, Path], tmp_path: Path
) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make(**drafting(method, models, tmp_path))
    assert tokens_of(engine) == wanted
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0


@pytest.mark.usefixtures("without_triton")
def test_an_eagle_head_is_not_arranged_for_the_processor(
    make: Make, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever pays on this machine's."""
    wanted = tokens_of(make(device="cpu"))
    monkeypatch.setattr("engine.kernels.linear.blocked_choices", lambda dtype: {1: "blocked"})
    assert tokens_of(make(**drafting("eagle3", models, tmp_path))) == wanted


def test_settings_and_the_device_change_while_requests_run(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    engine = make()
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    changes: list[dict[str, Any]] = [
        {"block_size": 32}, {"enforce_eager": True}, {"device": "cpu"},
        {"device": "cuda:0", "enforce_eager": False},
    ]  # fmt: skip
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
        if changes:
            engine.reconfigure(**changes.pop(0))
    assert not changes and list(found.values()) == wanted


def test_unloading_gives_all_memory_back(make: Make) -> None:
    gc.collect()
    before = machine.allocated
    engine = make()
    tokens_of(engine)
    assert machine.allocated > before + 2**18
    engine.shutdown()
    gc.collect()
    assert machine.allocated <= before + 4096  # the tables of an empty sampler


@slow
def test_two_engines_share_the_device(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    one, other = make(), make(kv_cache_dtype="int8")
    assert tokens_of(one) == wanted
    tokens_of(other)
    other.shutdown()
    assert tokens_of(one) == wanted


@pytest.mark.usefixtures("without_triton")
@pytest.mark.parametrize("method", ["", "draft_model", "eagle3"])
def test_memory_that_is_refused_at_any_moment_costs_nobody_a_token(
    make: Make, method: str, models: dict[str, Path], tmp_path: Path
) -> None:
    options = drafting(method, models, tmp_path) if method else {}
    engine = make(**options)
    asked = machine.asked
    wanted = tokens_of(engine)
    times = machine.asked - asked

    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
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
