"""A model whose weights were arranged for the CPU is the same model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.errors import LoadCancelled
from engine.kernels import registry as select
from engine.kernels.linear import BlockedWeights, Linear
from engine.kernels.measure import Choice
from engine.models.plain_weights import arrange_weights
from tests.engine import tiny_models
from tests.tiers import first_fast

BLOCKS = (Choice("linear, blocked weights", "float32", 1, "onednn", "asked for by the test"),)
PROMPTS = tiny_models.make_prompts((5, 30, 17))


@pytest.fixture(autouse=True)
def blocks_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every machine, whatever it would measure."""
    monkeypatch.setattr(select, "_blocked_choices", lambda dtype: BLOCKS)


def folder_of(family: str, tmp_path: Path, **changes: Any) -> tuple[Any, Path]:
    model = tiny_models.make_model(family, intermediate_size=128, vocab_size=192, **changes)
    return model, tiny_models.save(model, tmp_path)


def linears(engine: LLMEngine) -> Iterator[tuple[str, Linear]]:
    for name, module in engine._host.runner.model.named_modules():
        if isinstance(module, Linear):
            yield name, module


@pytest.mark.parametrize(
    "family", first_fast(2, ["llama", "mixtral", "qwen2", "gpt_neox", "gemma2"])
)
def test_it_writes_what_transformers_writes(family: str, tmp_path: Path) -> None:
    model, folder = folder_of(family, tmp_path)
    prompts = [[token % 192 for token in prompt] for prompt in PROMPTS]
    expected = [tiny_models.reference(model, prompt, 12) for prompt in prompts]
    engine = LLMEngine(EngineConfig(model=str(folder), dtype="float32", num_threads=1))
    assert any(isinstance(module.packed, BlockedWeights) for _, module in linears(engine))
    assert "blocked" in engine.model_info.kernels["linear"]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    for output, wanted in zip(engine.generate(prompts, params), expected, strict=True):
        assert list(output.token_ids) == wanted.token_ids
        found = [entry.logprob for entry in output.logprobs]
        assert found == pytest.approx(wanted.logprobs, abs=1e-4)
    engine.shutdown()


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_that_the_embedding_shares_stays_plain(is_tied: bool, tmp_path: Path) -> None:
    _, folder = folder_of("llama", tmp_path, tie_word_embeddings=is_tied)
    engine = LLMEngine(EngineConfig(model=str(folder), dtype="float32", num_threads=1))
    found = {name: isinstance(module.packed, BlockedWeights) for name, module in linears(engine)}
    assert found.pop("lm_head") is not is_tied
    assert found and all(found.values())
    engine.shutdown()


def test_memory_is_that_of_the_plain_weights(tmp_path: Path, monkeypatch: Any) -> None:
    _, folder = folder_of("llama", tmp_path)
    sizes = []
    for choices in (BLOCKS, ()):
        monkeypatch.setattr(select, "_blocked_choices", lambda dtype, c=choices: c)
        engine = LLMEngine(EngineConfig(model=str(folder), dtype="float32", num_threads=1))
        is_blocked = any(isinstance(m.packed, BlockedWeights) for _, m in linears(engine))
        assert is_blocked is bool(choices)
        sizes.append(engine.model_info.weights_bytes)
        engine.shutdown()
    assert sizes[0] == sizes[1]


def test_arranging_can_be_cancelled(tmp_path: Path) -> None:
    _, folder = folder_of("llama", tmp_path)
    stages: list[str] = []
    with pytest.raises(LoadCancelled):
        LLMEngine(
            EngineConfig(model=str(folder), dtype="float32", num_threads=1),
            progress=lambda stage, done, total: stages.append(stage),
            cancelled=lambda: "Repacking weights" in stages,
        )
    assert stages.count("Repacking weights") == 1


def test_without_weights_on_the_cpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(dtype: torch.dtype) -> tuple[()]:
        raise AssertionError("the CPU computes nothing of this model")

    monkeypatch.setattr(select, "_blocked_choices", measured)
    elsewhere = nn.Sequential(Linear(64, 64))  # on the meta device
    assert not arrange_weights(elsewhere, torch.float32, lambda *_: None, lambda: False)
