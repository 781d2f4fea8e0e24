"""The operations of profiled steps against the machine's peaks. Pure Python: no torch.

Williams et al., "Roofline", 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from engine.hardware.peaks import Peaks
from engine.snapshot.profile import REST, Operation, StepsProfile
from engine.units import (
    bandwidth_text,
    bytes_text,
    compute_text,
    duration_text,
    operations_text,
    percent_text,
    short_figure,
)

HEADINGS = (
    "Operation", "Kernel", "Calls", "Time", "Share", "Bytes", "Operations", "Bandwidth", "Compute",
    "Bound", "% of roof",
)  # fmt: skip
"""Of `cells`: per step."""
ROUNDING = 0.005
"""Relative difference from a roof that is shown as 100 %."""


def bound_text(one: Operation, peaks: Peaks) -> str:
    """ "compute" where it takes longer to compute than to read and write, else "memory"."""
    compute_s = one.operations / peaks.flops_per_s
    return "compute" if compute_s > one.bytes / peaks.read_bytes_per_s else "memory"


def least_s(one: Operation, peaks: Peaks) -> float:
    """Seconds at the peaks."""
    return max(one.operations / peaks.flops_per_s, one.bytes / peaks.read_bytes_per_s)


def raised(peaks: Peaks, profiles: Iterable[StepsProfile]) -> Peaks:
    """With the compute rate of the fastest operation, where that exceeds the measured peak."""
    rates = (one.operations_per_s for profile in profiles for one in profile.operations)
    return replace(peaks, flops_per_s=max(peaks.flops_per_s, *rates, 0.0))


def roof_text(one: Operation, peaks: Peaks) -> str:
    """ "50 %" of the roof. What exceeds that of memory was read from a cache."""
    share = roof_share(one, peaks)
    return "above (cache)" if share > 1 + ROUNDING else percent_text(min(share, 1.0))


def roof_share(one: Operation, peaks: Peaks) -> float:
    """The time at the peaks over the measured one. Above 1 the data was in the CPU's cache."""
    return least_s(one, peaks) / one.seconds if one.seconds else 0.0


def cells(one: StepsProfile, peaks: Peaks) -> list[tuple[str, ...]]:
    """The rows of a table: of each operation, and of the rest of the steps' time."""
    steps = one.num_steps
    rows: list[tuple[str, ...]] = [
        (
            each.name, each.kernel, short_figure(each.calls / steps),
            duration_text(each.seconds / steps), percent_text(each.seconds / one.seconds),
            bytes_text(each.bytes / steps), operations_text(each.operations / steps or None),
            bandwidth_text(each.bytes_per_s or None), compute_text(each.operations_per_s or None),
            bound_text(each, peaks), roof_text(each, peaks),
        )
        for each in one.operations
    ]  # fmt: skip
    rest = REST, "", "", duration_text(one.rest_s / steps), percent_text(one.rest_s / one.seconds)
    return [*rows, (*rest, *[""] * (len(HEADINGS) - len(rest)))]


def as_dict(profile: StepsProfile, peaks: Peaks) -> dict[str, Any]:
    """For a report: with rates, shares of the steps' time and bounds."""
    return {
        "kind": profile.kind,
        "num_steps": profile.num_steps,
        "num_tokens": profile.num_tokens,
        "step_ms": 1e3 * profile.seconds / profile.num_steps,
        "rest_ms": 1e3 * profile.rest_s / profile.num_steps,
        "operations": [
            {
                **asdict(one),
                "bytes_per_s": one.bytes_per_s,
                "operations_per_s": one.operations_per_s,
                "share": one.seconds / profile.seconds,
                "bound": bound_text(one, peaks),
                "roof_share": roof_share(one, peaks),
            }
            for one in profile.operations
        ],
    }
