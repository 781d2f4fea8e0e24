"""Tests of what runs on an NVIDIA GPU.

Without a GPU the kernels run in Triton's interpreter, on tensors of the CPU, and what is marked
`gpu` is skipped. There hypothesis draws the same cases in every run; on a GPU, fresh ones.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]  # it is made for Linux and Windows

if os.environ.get("SIMULATE_GPU") == "1":
    from tests.gpu.simulated.install import install

    install()
HAS_GPU = torch.cuda.is_available()
slow_without_gpu: Callable[[Any], Any] = (lambda test: test) if HAS_GPU else pytest.mark.slow
"""For a test that takes Triton's interpreter a second or more."""
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared: before any is imported


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels run: the first GPU, or the CPU in the interpreter."""
    return torch.device("cuda:0" if HAS_GPU else "cpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
