"""These tests need the simulated device, and it needs a process of its own: see
tests/gpu/test_simulated_device.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.kernels.triton import support
from tests.engine import tiny_models
from tests.gpu.engines import Engines, Make

if os.environ.get("SIMULATE_GPU") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    names = ("llama", "gemma2", "gpt2", "gpt_oss", "qwen3_moe")
    return {n: tiny_models.save(tiny_models.make_model(n), folder / n) for n in names}


@pytest.fixture(autouse=True)
def at_rest() -> Iterator[None]:
    """A test finds the first device the current one, and leaves nothing under way."""
    yield
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    torch.cuda.set_device(0)


@pytest.fixture
def make(models: dict[str, Path]) -> Iterator[Make]:
    """Small engines, on the first device unless they are made with another."""
    engines = Engines(
        models.__getitem__, num_threads=1, kv_cache_memory_bytes=2**18, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64,
    )  # fmt: skip
    yield engines.make
    engines.shutdown()


@pytest.fixture
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter copies all memory that a kernel is given, and back."""
    monkeypatch.setattr("engine.attention.gpu.WORKSPACE_BYTES", 2**18)


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Faster here than its interpreter, and what is left where it is not installed."""
    monkeypatch.setattr(support, "is_available", lambda: False)
    support._problem_of.cache_clear()
    yield
    support._problem_of.cache_clear()
