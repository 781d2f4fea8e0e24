"""How long the steps took in which all conversations decode together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from engine.snapshot import StepRecord


def step_figures(steps: Sequence[StepRecord], num_requests: int) -> dict[str, Any]:
    """Milliseconds of a step (p50, p99, the longest), and from the start of one to the start of the
    next: what lies between two steps counts there too."""
    known = {step.index: step for step in steps if _is_decode(step, num_requests)}
    durations = [step.duration * 1e3 for step in known.values()]
    ordered = sorted(known.values(), key=lambda step: step.index)
    periods = [
        (after.start - before.start) * 1e3
        for before, after in pairwise(ordered)
        if after.index == before.index + 1
    ]
    return {
        "num_steps": len(durations),
        "step_ms": _percentiles(durations),
        "period_ms": _percentiles(periods),
    }


def _is_decode(step: StepRecord, num_requests: int) -> bool:
    return step.num_prefill_tokens == 0 and len(step.entries) == num_requests


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
        "max": max(values),
    }
