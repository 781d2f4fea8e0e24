"""What the tiny model says without drafts, and things that draft for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine
from tests.engine import tiny_heads, tiny_models
from tests.engine.speculation.runs import PROMPTS, results


@pytest.fixture(scope="session")
def plain(tiny_folder: Path) -> list[Any]:
    config = EngineConfig(model=str(tiny_folder), dtype="float32", num_threads=1, block_size=8,
                          kv_cache_memory_bytes=2**20, max_num_batched_tokens=512)  # fmt: skip
    engine = LLMEngine(config)
    found = results(engine)
    engine.shutdown()
    return found


@pytest.fixture(scope="session")
def draft_folder(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with noise in its weights: its drafts are sometimes right."""
    draft = copy.deepcopy(tiny_model)
    torch.manual_seed(5)
    for parameter in draft.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return tiny_models.save(draft, tmp_path_factory.mktemp("tiny-draft"))


@pytest.fixture(scope="session")
def tiny_head(tiny_model: Any, plain: list[Any]) -> tiny_heads.Head:
    """A random EAGLE-3 head whose last matrix is fitted to what the tiny model says: its first
    drafts are mostly right, and those after them seldom."""
    head = tiny_heads.make_head(tiny_model, layer_ids=(0, 1, 1))
    texts = [prompt + found[0] for prompt, found in zip(PROMPTS, plain, strict=True)]
    return tiny_heads.fitted(head, tiny_model, texts)


@pytest.fixture(scope="session")
def head_folder(tiny_head: tiny_heads.Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_heads.save(tiny_head, tmp_path_factory.mktemp("tiny-head"))
