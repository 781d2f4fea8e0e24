"""Whether a model fits on this machine, by precision. Imports no Qt.

`fits` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.features.models.estimate import SHORTEST_CONTEXT, Estimator, Held, Need
from app.features.models.precision import ROUNDED
from app.features.models.torch_build import Advice, advice, torch_build
from app.storage.model_sources import shape_sources
from engine.config import SETTINGS, EngineConfig
from engine.units import bytes_text, counted, precision_name

ROUND = 256  # tokens: the longest context is an estimate


@dataclass(frozen=True, slots=True)
class Fit:
    """name: of the precisions with equal memory, or of a model. need: at the requested context.
    longest: the longest context that fits, 0 for none."""

    name: str
    need: Need
    longest: int

    @property
    def text(self) -> str:
        """The verdict."""
        if not self.longest:
            return "does not fit"
        if self.need.fits and self.need.layers:
            return f"fits with {self.need.layers}"
        if self.need.fits:
            return f"fits up to {self.longest:,} tokens"
        return f"fits only up to {self.longest:,} tokens"


def fits(config: EngineConfig, in_use: Held, estimator: Estimator) -> list[Fit]:
    """One entry per precision that differs in memory, largest first: dtypes, then weights
    quantized at load, unless the checkpoint is quantized. Empty for an unsupported model."""
    formats = {dtype: {"dtype": dtype} for dtype in SETTINGS["dtype"].choices if dtype != "auto"}
    rounded = {method: {"quantization": method} for method in ROUNDED}
    plain = _rows(config, in_use, estimator, formats)
    if not plain:
        return []
    few = _rows(config, in_use, estimator, rounded)
    return plain + [replace(fit, name=f"{fit.name} weights") for fit in few]


def _rows(
    config: EngineConfig,
    in_use: Held,
    estimator: Estimator,
    changes: Mapping[str, Mapping[str, Any]],
) -> list[Fit]:
    """One entry per change of `config` that differs in memory, largest first."""
    found: dict[int, Fit] = {}
    for name, change in changes.items():
        estimate = estimator(config.replace(**change), in_use)
        if estimate.need is None:
            continue
        need = estimate.need
        same = found.get(need.everywhere)
        label = precision_name(name)
        names = f"{same.name}, {label}" if same else label
        found[need.everywhere] = Fit(names, need, longest(need, estimate.report.context_length))
    return [found[needed] for needed in sorted(found, reverse=True)]


def longest(need: Need, limit: int | None) -> int:
    """The longest context of one request that fits, in tokens; at most the model's `limit`."""
    tokens = need.most_tokens
    if limit is not None and tokens >= limit:
        return limit
    tokens -= tokens % ROUND
    return tokens if tokens >= SHORTEST_CONTEXT else 0


CONTEXT = 4096
"""Context in tokens for comparing models."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """rows: (name, value); advice: a possible improvement, or None."""

    rows: tuple[tuple[str, str], ...]
    advice: Advice | None = None


def machine_facts() -> MachineFacts:
    """Measured now."""
    from engine.hardware.machine import machine_info
    from engine.hardware.nvml import told_now

    gpus = [
        f"{gpu.name}, {bytes_text(gpu.total - gpu.used)} free of {bytes_text(gpu.total)}"
        for gpu in told_now()
    ]
    info, build = machine_info(), torch_build()
    cores = f"{info.physical_cores} physical, {info.logical_cores} logical"
    free, total = bytes_text(info.available_memory), bytes_text(info.total_memory)
    precision = "BF16 is fast on this CPU" if info.fast_bf16 else "FP32 is fastest on this CPU"
    return MachineFacts(
        (
            ("CPU", info.cpu),
            ("Cores", f"{cores}; {counted(info.default_threads, 'compute thread')}"),
            ("Memory", f"{free} free of {total}"),
            ("GPU", ", ".join(gpus) or "none"),
            ("Precision", precision),
            ("PyTorch", build.text),
        ),
        advice(info.gpus, build),
    )


def shape_fits(in_use: Held, estimator: Estimator) -> list[Fit]:
    """Common model sizes at their default precision and CONTEXT tokens."""
    found = []
    for source in shape_sources():
        config = EngineConfig(model=source.path, load_format="dummy", max_model_len=CONTEXT)
        estimate = estimator(config, in_use)
        if (need := estimate.need) is not None:
            name = f"{source.title}, {precision_name(need.dtype)}"
            found.append(Fit(name, need, longest(need, estimate.report.context_length)))
    return found
