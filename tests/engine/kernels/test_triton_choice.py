"""Whether Triton's kernels are used, and why not."""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from engine.kernels.select import choose_attention, uses_triton
from engine.kernels.triton import support

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there, asked anew in every test."""
    monkeypatch.setattr(support, "problem", support.problem.__wrapped__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))


def test_the_cpu_has_kernels_of_its_own() -> None:
    assert not uses_triton(torch.device("cpu"))
    assert "NVIDIA" in support.problem(torch.device("cpu"))


def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "is_available", lambda: False)
    assert not uses_triton(GPU)
    choice = choose_attention(GPU, 128)
    assert choice.implementation == "torch" and "not installed" in choice.reason


def test_a_gpu_before_ampere_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not uses_triton(GPU) and "before Ampere" in choose_attention(GPU, 64).reason


def test_a_compiler_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds a launcher in C when the first kernel is launched."""
    probe = pytest.importorskip("engine.kernels.triton.probe")

    def fails(device: torch.device) -> NoReturn:
        raise RuntimeError("Failed to find C compiler. Please specify via CC.\nmore")

    monkeypatch.setattr(probe, "runs_on", fails)
    assert support.problem(GPU).endswith("Failed to find C compiler. Please specify via CC")
    assert choose_attention(GPU, 64).implementation == "torch"
    monkeypatch.setattr(probe, "runs_on", lambda device: False)
    assert "wrongly" in support.problem(GPU)
    monkeypatch.setattr(probe, "runs_on", lambda device: True)
    assert uses_triton(GPU) and choose_attention(GPU, 128).implementation == "triton"
    assert choose_attention(GPU, 576).implementation == "torch"
