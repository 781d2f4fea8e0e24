"""Whether Triton's kernels are used, and why not."""

from __future__ import annotations

from functools import cache
from typing import NoReturn

import pytest
import torch

from engine.attention import choices as attention
from engine.attention import gpu as gpu_choice
from engine.attention import varlen as varlen_trial
from engine.attention.interface import LayerSpec
from engine.hardware.devices import Gpu
from engine.kernels.measure import Choice
from engine.kernels.triton import support
from engine.numerics.kv_dtype import PLAIN

GPU = torch.device("cuda:0")


def choose_attention(width: int, block_size: int = 16) -> Choice:
    layers = [LayerSpec(2, width, width)]
    return gpu_choice.choose_attention(GPU, layers, torch.bfloat16, PLAIN, block_size)


@pytest.fixture(autouse=True)
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there, asked anew in every test."""
    monkeypatch.setattr(support, "_problem_of", support._problem_of.__wrapped__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(varlen_trial, "_problem_of", _wants_large_blocks)


def _wants_large_blocks(
    device: torch.device, dtype: torch.dtype, width: int, block_size: int
) -> str:
    return "blocks of 256" if block_size % 256 else ""


def test_the_cpu_has_kernels_of_its_own() -> None:
    assert not support.is_usable(torch.device("cpu"))
    assert "NVIDIA" in support.problem(torch.device("cpu"))


def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "is_available", lambda: False)
    assert not support.is_usable(GPU)
    choice = choose_attention(128)
    assert choice.implementation == "torch" and choice.reason.startswith(support.problem(GPU))
    assert choice.reason.endswith(": blocks of 256")
    choice = choose_attention(128, block_size=512)
    assert choice.implementation == "varlen" and "Triton" in choice.reason


def test_a_gpu_before_ampere_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not support.is_usable(GPU) and "8.0" in choose_attention(64).reason


def test_a_compiler_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds a launcher in C when the first kernel is launched."""
    probe = pytest.importorskip("engine.kernels.triton.probe")

    def fails(device: torch.device) -> NoReturn:
        raise RuntimeError("Failed to find C compiler. Please specify via CC.\nmore")

    monkeypatch.setattr(probe, "runs_on", fails)
    assert support.problem(GPU).endswith("Failed to find C compiler. Please specify via CC")
    assert choose_attention(64).implementation == "torch"
    monkeypatch.setattr(probe, "runs_on", lambda device: False)
    assert "result" in support.problem(GPU)
    monkeypatch.setattr(probe, "runs_on", lambda device: True)
    assert support.is_usable(GPU) and choose_attention(128).implementation == "triton"
    assert choose_attention(576).implementation == "torch"


def test_memory_that_others_have_is_no_reason_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = pytest.importorskip("engine.kernels.triton.probe")
    monkeypatch.setattr(support, "_problem_of", cache(support._problem_of))
    left = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")]

    def full_at_first(device: torch.device) -> bool:
        if left:
            raise left.pop()
        return True

    monkeypatch.setattr(probe, "runs_on", full_at_first)
    assert "memory" in support.problem(GPU)
    assert support.problem(GPU) == "" and support.is_usable(GPU)


def test_people_are_told_what_each_block_size_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.choices.gpus", lambda: (Gpu(0, "card", 2**33, (8, 6)),))
    monkeypatch.setattr(support, "is_available", lambda: False)
    found = [choice for choice in attention.choices() if "cuda" in choice.operation]
    assert [(c.operation.partition(", ")[2], c.dtype, c.implementation) for c in found] == [
        ("cuda:0, block size 16", "bfloat16", "torch"),
        ("cuda:0, block size 256", "bfloat16", "varlen"),
    ]
    monkeypatch.setattr(support, "problem", lambda device: "")
    (only,) = gpu_choice.attention_choices(GPU)
    assert (only.operation, only.implementation) == ("attention, cuda:0", "triton")
