"""Steps of a fixed shape through the kernels of a GPU: padded, launched ahead and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.gpu import GPUAttention
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.gpu.conftest import HAS_GPU

pytest.importorskip("triton")


@pytest.mark.skipif(HAS_GPU, reason="the interpreter's: kernels are native here")
def test_padded_and_replayed_steps_give_the_tokens_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend with its tables in the interpreter, captured by a stand-in that runs what it
    captured again. Three requests of unlike lengths, one of which ends early."""
    folder = tiny_models.save(tiny_models.make_model("llama"), tmp_path)
    config = EngineConfig(
        model=str(folder), device="cpu", dtype="float32", num_threads=1, block_size=16,
        max_num_seqs=4, max_model_len=64, kv_cache_memory_bytes=2**20,
        kv_cache_dtype="int8",
    )  # fmt: skip
    prompts = tiny_models.make_prompts((5, 21, 14), seed=2)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 4, 5)]

    def tokens(engine: LLMEngine) -> list[list[int]]:
        found = [output.token_ids for output in engine.generate(prompts, params)]
        engine.shutdown()
        return found

    wanted = tokens(LLMEngine(config))
    recording = Recording()

    def on_kernels(config: EngineConfig, layers: Any, num_blocks: int, dtype: torch.dtype) -> Any:
        return GPUAttention(
            layers, num_blocks, config.block_size, dtype, config.kv_dtype,
            device=torch.device("cpu"), max_num_seqs=4, max_model_len=64,
            max_num_batched_tokens=512, implementation="triton",
        )  # fmt: skip

    monkeypatch.setattr("engine.assembly.make_backend", on_kernels)
    for module in ("engine.graphs", "engine.assembly"):
        monkeypatch.setattr(f"{module}.capture_for", lambda device: recording)
    engine = LLMEngine(config)
    engine.looks_ahead = True
    assert engine.runner.graphs is not None and engine.runner.graphs.sizes == (1, 2, 4)
    assert not engine.runner.graphs.problem
    assert tokens(engine) == wanted
    assert recording.log.count("replay") == 4
