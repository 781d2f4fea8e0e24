"""Steps of a fixed shape through the kernels of a GPU: padded, launched ahead and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.gpu import GPUAttention
from engine.batch.batch import Batch
from engine.runner.cuda_graphs import most_rows
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.engine.speculation.runs import use_proposer
from tests.engine.speculation.test_exactness import Scripted
from tests.gpu.conftest import HAS_GPU

pytest.importorskip("triton")


pytestmark = pytest.mark.skipif(HAS_GPU, reason="the interpreter's: kernels are native here")
PROMPTS = tiny_models.make_prompts((5, 21, 14), seed=2)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    folder = tiny_models.save(tiny_models.make_model("llama"), tmp_path)
    return EngineConfig(
        model=str(folder), device="cpu", dtype="float32", num_threads=1, block_size=16,
        max_num_seqs=4, max_model_len=64, kv_cache_memory_bytes=2**20,
        kv_cache_dtype="int8",
    )  # fmt: skip


def tokens(engine: LLMEngine) -> list[list[int]]:
    """Three requests of unlike lengths, one of which ends early."""
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 4, 5)]
    found = [output.token_ids for output in engine.generate(PROMPTS, params)]
    engine.shutdown()
    return found


def engine_on_kernels(
    config: EngineConfig, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> LLMEngine:
    """The backend with its tables in the interpreter, captured by a stand-in that runs what it
    captured again."""

    def on_kernels(
        config: EngineConfig, layers: Any, num_blocks: int, dtype: torch.dtype, **_: Any
    ) -> Any:
        return GPUAttention(
            layers, num_blocks, config.block_size, dtype, config.kv_dtype,
            device=torch.device("cpu"), max_num_seqs=most_rows(config), max_model_len=64,
            max_num_batched_tokens=512, implementation="triton",
        )  # fmt: skip

    monkeypatch.setattr("engine.host.kv_cache.make_backend", on_kernels)
    for module in ("engine.runner.cuda_graphs", "engine.host.kv_cache"):
        monkeypatch.setattr(f"{module}.capture_for", lambda device: recording)
    return LLMEngine(config)


@pytest.mark.slow
def test_padded_and_replayed_steps_give_the_tokens_of_the_cpu(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tokens(LLMEngine(config))
    recording = Recording()
    engine = engine_on_kernels(config, recording, monkeypatch)
    engine._loop.async_scheduling = True
    assert engine.runner.graphs is not None and engine.runner.graphs.sizes == (1, 2, 4)
    assert not engine.runner.graphs.problem
    assert tokens(engine) == wanted
    assert recording.log.count("replay") == 4


class Running(Recording):
    """Runs what it times, once."""

    num_read = 0

    def seconds(self, run: Any) -> float:
        run()
        del self.log[:]
        self.num_read += 1
        return super().seconds(run)


@pytest.mark.slow
def test_drafts_are_verified_in_rows(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one sequence, whose keys and values the same launch stores. To measure what they
    read changes nothing in the cache."""
    config = config.replace(
        speculative_method="ngram", prompt_lookup_min=1, num_speculative_tokens=2, max_num_seqs=2,
        speculative_adaptive=False, kv_cache_memory_bytes=2**16,
    )  # fmt: skip
    wanted = tokens(LLMEngine(config))
    recording = Running()
    engine = engine_on_kernels(config, recording, monkeypatch)
    graphs = engine.runner.graphs
    assert graphs is not None and graphs.sizes == (1, 2, 4, 6)
    assert recording.num_read == 2 * 4 + 1
    for cache in engine.runner.backend.caches.values():
        assert not cache.keys.tensors.elements.any() and not cache.values.tensors.elements.any()
    widths: list[int] = []
    plain = graphs.execute

    def noted(batch: Batch, drawn: Any = None, **rest: Any) -> Any:
        widths.append(batch.num_tokens - batch.num_requests)
        return plain(batch, drawn, **rest)

    monkeypatch.setattr(graphs, "execute", noted)
    texts = [prompt + found for prompt, found in zip(PROMPTS, wanted, strict=True)]
    use_proposer(engine, Scripted(texts, wrong=0.3))
    assert tokens(engine) == wanted
    assert max(widths) > 0
