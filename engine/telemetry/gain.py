"""The gain of a setting: estimated, measured, and both together. No torch."""

from __future__ import annotations

import math
from typing import NamedTuple

from engine.units import factor_text

WORTH = 1.02
"""Smaller gains are not measurable."""
THROUGHPUT = "throughput"
"""Tokens per second at the same load: the reciprocal of the time of its steps."""
DECODE = "decode throughput"


class GainEstimate(NamedTuple):
    """What a setting would gain: a factor between `low` and `high` (at least 1).

    setting: its name in EngineConfig; value: what to set. gains: what becomes larger (THROUGHPUT,
    DECODE). why: the derivation. is_bound: no gain exceeds `high`. is_on: it is set already.
    """

    setting: str
    label: str
    value: str
    low: float
    high: float
    gains: str
    why: str
    is_bound: bool = False
    is_on: bool = False

    @property
    def is_worth_trying(self) -> bool:
        return not self.is_on and self.high >= WORTH

    @property
    def text(self) -> str:
        """ "1.15× to 1.42× throughput"; "Up to 2.00× decode throughput"; "Enabled"; "No gain
        expected"."""
        if self.is_on:
            return "Enabled"
        if self.high < WORTH:
            return "No gain expected"
        low, high = factor_text(self.low), factor_text(self.high)
        if self.is_bound:
            return f"Up to {high} {self.gains}"
        if low == high:
            return f"About {high} {self.gains}"
        return f"{low} to {high} {self.gains}"


class MeasuredGain(NamedTuple):
    """What a setting gained when it was changed: a factor, and its relative uncertainty."""

    factor: float
    noise: float = 0.0


def corrected(estimate: GainEstimate, measured: MeasuredGain | None) -> GainEstimate:
    """The estimate, widened to include the gain measured on this machine, model and setting."""
    if measured is None or estimate.is_on or not 0 < measured.factor < math.inf:
        return estimate
    least, most = measured.factor * (1 - measured.noise), measured.factor * (1 + measured.noise)
    why = f"{estimate.why} Measured here: {factor_text(measured.factor)}"
    if least > estimate.high:
        why += ", more than estimated; the range includes it now."
        return estimate._replace(high=max(1.0, most), why=why, is_bound=False)
    if most < estimate.low:
        why += ", less than estimated; the range includes it now."
        return estimate._replace(low=least, why=why)
    return estimate._replace(why=f"{why}, as estimated.")
