"""Texts and models to measure: the tiny llama, and the same with its weights disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import NUM_TOKENS


@pytest.fixture(scope="module")
def words() -> list[int]:
    (ids,) = tiny_models.make_prompts([2 * NUM_TOKENS], seed=3)
    # "t2" ends a text: the tokenizer finds it in "t25" too
    return [i for i in ids if not str(i).startswith("2")][:NUM_TOKENS]


@pytest.fixture(scope="module")
def text(words: list[int]) -> str:
    return " ".join(f"t{i}" for i in words)


@pytest.fixture(scope="module")
def other_model() -> Any:
    """The tiny llama with its weights disturbed: what a coarse quantization might do."""
    model = tiny_models.make_model("llama")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


@pytest.fixture(scope="module")
def other_folder(other_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(other_model, tmp_path_factory.mktemp("other-llama"))


@pytest.fixture
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    yield
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
