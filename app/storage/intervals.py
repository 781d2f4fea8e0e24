"""95 % confidence intervals of repeated measurements, and of their differences. No Qt.

    one run       no interval
    mean          Student's t over the repetitions
    difference    Welch (Biometrika 34, 1947): two means whose variances differ
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from engine.units import change_text, percent_text

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, two-sided 95 %, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook,
1.3.6.7.2); the last one serves for more."""
ONE_RUN = "one run: no interval"
WIDE = "(spread above 100 %)"


class Difference(NamedTuple):
    """Of two figures, relative to the first: `half` of its 95 % interval, None for one run of
    either."""

    change: float
    half: float | None

    def __str__(self) -> str:
        """ "+4.1 % ±1.2"; "+4.1 %" without an interval."""
        known = "" if self.half is None else f"±{100 * self.half:,.1f}"
        return f"{change_text(self.change)} {spread_text(self.half, known, self.change)}".rstrip()


def spread_text(half: float | None, known: str = "", change: float = 0.0) -> str:
    """ "±3 %" of 0.03, or `known`: half of an interval, relative to its figure, which may be a
    `change`. "" without one."""
    if half is None:
        return ""
    return WIDE if is_wide(half, change) else known or f"±{percent_text(half)}"


def is_wide(half: float, change: float = 0.0) -> bool:
    """Whether it says nothing: above 100 %, with 0 or the opposite of `change` in the interval."""
    return half > max(1.0, abs(change))


def half_interval(samples: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean; None for one sample."""
    if len(samples) < 2:
        return None
    return _t_975(len(samples) - 1) * math.sqrt(_squared_error(samples))


def half_of_difference(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the difference of the means; None for one sample of
    either."""
    if min(len(before), len(after)) < 2:
        return None
    one, other = _squared_error(before), _squared_error(after)
    if not one + other:
        return 0.0
    freedom = (one + other) ** 2 / (one**2 / (len(before) - 1) + other**2 / (len(after) - 1))
    return _t_975(freedom) * math.sqrt(one + other)


def difference_of(
    before: float | None, after: float | None,
    samples_before: Sequence[float], samples_after: Sequence[float],
) -> Difference | None:  # fmt: skip
    """Of two figures; None without them, or from 0. Its interval is that of the means of the
    samples: the figure in each repetition."""
    if not before or after is None:
        return None
    half = half_of_difference(samples_before, samples_after)
    return Difference(after / before - 1, None if half is None else half / abs(before))


def _squared_error(samples: Sequence[float]) -> float:
    """Of the mean."""
    return statistics.variance(samples) / len(samples)


def _t_975(freedom: float) -> float:
    """For whole degrees of freedom below, which is the wider interval."""
    return _T_975[min(max(math.floor(freedom + 1e-9), 1), len(_T_975)) - 1]
