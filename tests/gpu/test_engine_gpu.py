"""The engine on a GPU: the tokens of the CPU, whatever is replayed or launched ahead, nothing that
waits for the device in a step, and no memory kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.sampling.sampler import Sampler, SamplingRow
from engine.speculation.proposer import Proposal
from engine.speculation.verify import Verification
from engine.step.execute import InFlightStep

pytestmark = pytest.mark.gpu

STARTER = Path(__file__).parents[2] / "resources" / "starter" / "chat"
PROMPTS = [
    "What is a KV cache?",
    "Once upon a time",
    "List three colours, and say why you like each of them.",
    "def add(a, b):",
    "The capital of France is",
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=1, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=2, top_p=0.9, max_tokens=35, logprobs=3),
    SamplingParams(temperature=0.9, seed=3, top_k=20, min_p=0.02, max_tokens=25, stop=("the",)),
    SamplingParams(
        temperature=0, repetition_penalty=1.2, frequency_penalty=0.3, max_tokens=30, ignore_eos=True
    ),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Products of float32 in float32, as on the CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def make(device: str, **settings: object) -> LLMEngine:
    config = EngineConfig(
        model=str(STARTER), device=device, dtype="float32", kv_cache_memory_bytes=2**25,
        max_num_seqs=8, max_num_batched_tokens=48, gpu_layers="all",
    )  # fmt: skip
    return LLMEngine(config.replace(**settings))


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return [output.token_ids for output in engine.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def on_cpu() -> list[list[int]]:
    engine = make("cpu")
    tokens = tokens_of(engine)
    engine.shutdown()
    return tokens


@pytest.mark.parametrize("enforce_eager", [True, False])
@pytest.mark.parametrize("async_scheduling", [True, False])
def test_the_tokens_of_the_cpu(
    on_cpu: list[list[int]], enforce_eager: bool, async_scheduling: bool
) -> None:
    engine = make("cuda:0", enforce_eager=enforce_eager)
    assert engine._loop.async_scheduling
    engine._loop.async_scheduling = async_scheduling
    assert ("decode" in engine.model_info.kernels) != enforce_eager, engine.model_info.notices
    found = tokens_of(engine)
    engine.check_integrity()
    engine.shutdown()
    assert found == on_cpu


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_replayed_steps_give_the_tokens_of_eager_ones(kv_cache_dtype: str) -> None:
    tokens = []
    for eager in (True, False):
        engine = make("cuda:0", kv_cache_dtype=kv_cache_dtype, enforce_eager=eager)
        engine._loop.async_scheduling = not eager
        tokens.append(tokens_of(engine))
        engine.shutdown()
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("enforce_eager", [True, False])
def test_nothing_waits_while_a_step_is_launched(
    enforce_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises at whatever waits for the device, but where tokens are read."""
    engine = make("cuda:0", enforce_eager=enforce_eager)
    read, reads = InFlightStep.read, []

    def allowed(flight: InFlightStep) -> object:
        reads.append(flight)
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(flight)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    tokens_of(engine)  # whatever is done once
    monkeypatch.setattr(InFlightStep, "read", allowed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens_of(engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(reads) >= 40
    engine.shutdown()


def launch_drafts(device: str, num_requests: int = 40) -> Verification:
    """Verification of drafts that another model drew at random, and of some that are certain."""
    vocab, places = 5000, 5
    sampler = Sampler(vocab, device)
    sampler.chunk_rows = 64  # in several chunks
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_requests * places, vocab, generator=generator) * 3
    logits[places + 2] = torch.nan
    q_logits = logits.nan_to_num() + torch.randn(logits.shape, generator=generator) * 0.3
    rows, proposals = [], []
    for i in range(num_requests):
        params = SamplingParams(temperature=0.8, top_p=0.9, logprobs=2 if i % 5 == 0 else None)
        own = [SamplingRow(f"r{i}", params, i, 9 + j, [1], [2] * j) for j in range(places)]
        chosen = q_logits[i * places : (i + 1) * places - 1]
        tokens, q = Sampler(vocab).draw_from(chosen, [r._replace(seed=99 + i) for r in own[:-1]])
        rows.append(own)
        kept = () if i % 3 == 0 else tuple(q.to(device))
        proposals.append(Proposal(tuple(tokens), kept))
    there = logits.to(device)
    torch.cuda.set_sync_debug_mode("default" if device == "cpu" else "error")
    try:
        return Verification(sampler, there, rows, proposals)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_while_drafts_are_verified() -> None:
    """Until all requests are read at once; then they have the tokens of the CPU."""
    launch_drafts("cuda:0").read()  # whatever is done once
    found, wanted = launch_drafts("cuda:0").read(), launch_drafts("cpu").read()
    assert [f.token_ids for f in found] == [w.token_ids for w in wanted]
    assert {len(f.token_ids) for f in found} >= {1, 2, 5}


def test_changed_settings_keep_the_tokens(on_cpu: list[list[int]]) -> None:
    engine = make("cuda:0")
    for change in ({"block_size": 32}, {"max_num_seqs": 3}, {"max_num_seqs": 70}, {"seed": 5}):
        engine.reconfigure(**change)
        assert tokens_of(engine) == on_cpu
    engine.shutdown()


def test_unloading_gives_all_memory_back() -> None:
    warm = make("cuda:0")
    tokens_of(warm)
    warm.shutdown()
    del warm
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0]
    engine = make("cuda:0")
    tokens_of(engine)
    assert torch.cuda.memory_allocated() > before + 2**25
    engine.shutdown()
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2**20
    assert torch.cuda.mem_get_info()[0] >= free - 64 * 2**20  # others may use the GPU as well


def test_step_times_add_up_on_the_device() -> None:
    engine = make("cuda:0")
    tokens_of(engine)
    steps = engine.snapshot().steps
    for step in steps:
        parts = step.schedule_s + step.draft_s + step.model_s + step.sample_s + step.commit_s
        assert parts <= step.duration + 1e-4
    assert sum(step.model_s for step in steps) > 0 and sum(step.sample_s for step in steps) > 0
    engine.shutdown()
