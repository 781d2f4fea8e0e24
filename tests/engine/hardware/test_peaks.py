"""The measurement of a machine's peaks, and what is made of those of two devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from engine import LLMEngine, llm_engine
from engine.config import EngineConfig
from engine.hardware import peaks
from engine.hardware.peaks import (
    Peaks,
    PeaksCancelledError,
    measure_peaks,
    peaks_for,
)
from engine.snapshot import ModelInfo
from tests.tiers import tiered

GPU = Peaks(4e12, 8e14, "bfloat16", 8, "GPU", 1.0)
MODEL = ModelInfo(
    name="Llama", path="", architecture="LlamaForCausalLM", dtype="bfloat16", device="cuda:0",
    num_parameters=8 * 10**9, weights_bytes=16 * 10**9, num_layers=32, hidden_size=4096,
    num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128_256, max_model_len=8192,
    is_dummy=False, has_chat_template=True, output_bytes=10**9, lookup_bytes=10**9,
    device_name="GPU and CPU",
)  # fmt: skip
CPU = Peaks(6e10, 1e12, "bfloat16", 8, "CPU", 2.0)


@pytest.mark.parametrize("host_layers", [1, 16, 31])
def test_one_device_after_the_other(
    host_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output head is on the GPU, and of the embeddings nearly nothing is read."""
    measured = {"cuda:0": GPU, "cpu": CPU}
    monkeypatch.setattr(peaks, "measure_peaks", lambda d, n, device, stop=None: measured[device])
    config = EngineConfig(device="cuda:0", dtype="bfloat16", num_threads=8)
    assert peaks_for(config, MODEL) is GPU
    both = peaks_for(config, MODEL, host_layers)
    in_layers = MODEL.body_bytes / (MODEL.body_bytes + MODEL.output_bytes)
    share = host_layers / MODEL.num_layers * in_layers
    assert 0.0 < share < 1.0
    seconds = (1 - share) / GPU.read_bytes_per_s + share / CPU.read_bytes_per_s
    assert 1 / both.read_bytes_per_s == pytest.approx(seconds)
    assert 1 / both.flops_per_s == pytest.approx(
        (1 - share) / GPU.flops_per_s + share / CPU.flops_per_s
    )
    assert (both.machine, both.dtype, both.num_threads) == (MODEL.device_name, "bfloat16", 8)


@pytest.mark.parametrize("turns", tiered([0, 2, 6], [2]))
def test_it_ends_before_the_next_turn(turns: int) -> None:
    """2 is among the sums, 6 among the products."""
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(len(asked))
        return len(asked) > turns

    before = torch.get_num_threads()
    with pytest.raises(PeaksCancelledError):
        measure_peaks("float32", 1, cancelled=cancelled)
    assert len(asked) == turns + 1
    assert torch.get_num_threads() == before


def test_the_best_of_two_measurements_counts() -> None:
    """Whatever else runs can only lower a rate."""
    busy = dataclasses.replace(GPU, read_bytes_per_s=5e12, flops_per_s=1e14, busy_cores=2.0)
    later = dataclasses.replace(busy, measured_at=GPU.measured_at + 60)
    both = later.with_best_of(GPU)
    assert both == GPU.with_best_of(later)
    assert (both.read_bytes_per_s, both.flops_per_s) == (5e12, GPU.flops_per_s)
    assert both.measured_at == GPU.measured_at and not both.is_disturbed


def test_no_peak_is_below_what_the_engine_reaches(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's bfloat16 product is slower than ours on processors without matrix units."""
    low = Peaks(1.0, 1.0, "float32", 1, "here", 1.0)
    engine = make_engine()
    monkeypatch.setattr(llm_engine, "peaks_for", lambda *_: low)
    mended = engine.measure_peaks()
    assert mended.flops_per_s > 1e8 and mended.weight_rates
    high = dataclasses.replace(low, flops_per_s=1e18)
    monkeypatch.setattr(llm_engine, "peaks_for", lambda *_: high)
    assert engine.measure_peaks().flops_per_s == 1e18
