"""What of a model fits this machine, at each precision. Imports no Qt.

`fits` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.models.estimate import SHORTEST_CONTEXT, Estimate, Held, Need
from app.precision.choices import ROUNDED
from engine.config import SETTINGS, EngineConfig

ROUND = 256  # tokens: the longest context is no exact science


@dataclass(frozen=True, slots=True)
class Fit:
    """precisions: names that need the same. need: at the context that was asked for. longest: the
    longest context that fits, 0 where not even a short one does."""

    precisions: str
    need: Need
    longest: int

    @property
    def text(self) -> str:
        """The verdict in a few words."""
        if not self.longest:
            return "does not fit"
        if self.need.fits and self.need.layers:
            return f"fits with {self.need.layers}"
        if self.need.fits:
            return f"fits, up to {self.longest:,} tokens"
        return f"fits up to {self.longest:,} tokens only"


def fits(
    config: EngineConfig, in_use: Held, estimator: Callable[[EngineConfig, Held], Estimate]
) -> list[Fit]:
    """One entry per precision that differs in memory, the largest first: number formats, then
    weights that are rounded while they are loaded, unless the checkpoint is quantized already.
    Empty for a model that is not supported."""
    formats = {dtype: {"dtype": dtype} for dtype in SETTINGS["dtype"].choices if dtype != "auto"}
    rounded = {method: {"quantization": method} for method in ROUNDED}
    plain = _rows(config, in_use, estimator, formats)
    if not plain:
        return []
    few = _rows(config, in_use, estimator, rounded)
    return plain + [replace(fit, precisions=f"{fit.precisions} weights") for fit in few]


def _rows(
    config: EngineConfig,
    in_use: Held,
    estimator: Callable[[EngineConfig, Held], Estimate],
    changes: Mapping[str, Mapping[str, Any]],
) -> list[Fit]:
    """One entry per change of `config` that differs in memory, the largest first."""
    found: dict[int, Fit] = {}
    for name, change in changes.items():
        estimate = estimator(config.replace(**change), in_use)
        if estimate.need is None:
            continue
        need = estimate.need
        same = found.get(need.everywhere)
        names = f"{same.precisions}, {name}" if same else name
        found[need.everywhere] = Fit(names, need, longest(need, estimate.report.context_length))
    return [found[needed] for needed in sorted(found, reverse=True)]


def longest(need: Need, limit: int | None) -> int:
    """The longest context of one request that fits, in tokens; the model's own where that does."""
    tokens = need.most_tokens
    if limit is not None and tokens >= limit:
        return limit
    tokens -= tokens % ROUND
    return tokens if tokens >= SHORTEST_CONTEXT else 0
