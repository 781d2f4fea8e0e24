"""What this machine has, and which models fit it. Imports no Qt.

Both functions import torch: call them off the GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.models.estimate import Estimate, Held
from app.models.fit import Fit, longest
from app.models.sources import shape_sources
from app.torch_build import Advice, advice, torch_build
from app.units import format_bytes
from engine.config import EngineConfig

CONTEXT = 4096
"""Tokens of context at which models are compared."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """rows: (what, how much), to be read; advice: what could be better, or None."""

    rows: tuple[tuple[str, str], ...]
    advice: Advice | None = None


def machine_facts() -> MachineFacts:
    """Measured now."""
    from engine.machine import machine_info

    info, build = machine_info(), torch_build()
    cores = f"{info.physical_cores} physical, {info.logical_cores} logical"
    free, total = format_bytes(info.available_memory), format_bytes(info.total_memory)
    precision = "bfloat16 is fast here" if info.fast_bf16 else "float32 is the fastest here"
    return MachineFacts(
        (
            ("CPU", info.cpu),
            ("Cores", f"{cores}; {info.default_threads} threads for products"),
            ("Memory", f"{free} free of {total}"),
            ("GPU", ", ".join(_gpus()) or "none found"),
            ("Precision", precision),
            ("PyTorch", build.text),
        ),
        advice(info.gpus, build),
    )


def _gpus() -> list[str]:
    from engine.nvml import told_now

    return [
        f"{gpu.name}, {format_bytes(gpu.total - gpu.used)} free of {format_bytes(gpu.total)}"
        for gpu in told_now()
    ]


def shape_fits(
    in_use: Held, estimator: Callable[[EngineConfig, Held], Estimate]
) -> list[tuple[str, Fit]]:
    """Known model sizes, in the precision that would be chosen, at CONTEXT tokens."""
    found = []
    for source in shape_sources():
        config = EngineConfig(model=source.path, load_format="dummy", max_model_len=CONTEXT)
        estimate = estimator(config, in_use)
        if estimate.need is not None:
            limit = estimate.report.context_length
            fit = Fit(estimate.need.dtype, estimate.need, longest(estimate.need, limit))
            found.append((f"{source.title} in {estimate.need.dtype}", fit))
    return found
