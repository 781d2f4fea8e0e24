"""Value and time axes: their ranges, ticks and units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from engine.units import number
from widgets.plot.series import Floats

_FEWEST_FOR_OUTLIERS = 8  # values; of fewer the axis holds all
_FAR = 3.0  # times what the axis must hold: outliers lie above
_MOST_TICKS = 8  # on a high axis
_DECADES = 6  # most of a logarithmic axis


class Range(NamedTuple):
    """The ends of a value axis. A logarithmic one is above zero."""

    low: float
    high: float
    is_log: bool = False

    @property
    def span(self) -> float:
        return self.high - self.low

    @property
    def ends(self) -> tuple[float, float]:
        """Its ends as drawn: logarithms on a logarithmic axis."""
        ends = self.low, self.high
        return (math.log10(ends[0]), math.log10(ends[1])) if self.is_log else ends

    def drawn(self, values: Floats) -> Floats:
        """Values as drawn: cut at the ends, NaN stays."""
        inside = np.clip(values, self.low, self.high)
        return np.log10(inside) if self.is_log else inside

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the lower end to 1 at the upper one and beyond."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / self.span

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def high_without_outliers(groups: Iterable[tuple[Floats, float]]) -> float:
    """The largest value that is no outlier; -inf without values.

    Each group comes with the share of its values that an axis must hold. Outliers are more than
    `_FAR` times as large as the largest of these."""
    ordered = [(np.sort(values[np.isfinite(values)]), share) for values, share in groups]
    ordered = [(values, share) for values, share in ordered if len(values)]
    held = max((_held(values, share) for values, share in ordered), default=-math.inf)
    if not math.isfinite(held):
        held = max((float(values[-1]) for values, _ in ordered), default=-math.inf)
    reach = _FAR * held if held > 0 else held
    near = [values[: np.searchsorted(values, reach, side="right")] for values, _ in ordered]
    return max((float(values[-1]) for values in near if len(values)), default=held)


def _held(ordered: Floats, share: float) -> float:
    """The largest value that the axis must hold of `ordered`."""
    if share == 0:
        return -math.inf
    count = len(ordered)
    if count >= _FEWEST_FOR_OUTLIERS:
        count = max(int(share * count), 1)
    return float(ordered[count - 1])


def log_range(least: float, high: float, before: Range | None) -> Range:
    """A logarithmic axis from the smallest positive value to the largest, at least one decade and
    at most six. It keeps `before` as `range_for` does."""
    if not (math.isfinite(high) and high > 0):
        return before if before and before.is_log else Range(0.1, 1.0, True)
    least = least if math.isfinite(least) and least > 0 else high
    low = max(_one_two_five(least, up=False), _one_two_five(high / 10**_DECADES, up=False))
    wanted = Range(min(low, _one_two_five(high / 10, up=False)), _one_two_five(high, up=True), True)
    if before and before.is_log and before.low <= wanted.low and wanted.high <= before.high:
        decades = math.log(wanted.high / wanted.low) / math.log(before.high / before.low)
        if decades > 0.5:
            return before
    return wanted


def _one_two_five(value: float, up: bool) -> float:
    """The next of 1, 2, 5 times a power of ten, at or beyond `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = [factor * power for factor in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)]
    if up:
        return next(step for step in steps if step >= value * (1 - 1e-9))
    return next(step for step in reversed(steps) if step <= value * (1 + 1e-9))


def log_ticks(shown: Range, max_ticks: int) -> list[float]:
    """1, 2 and 5 times each power of ten where there is room, else powers only, or some of them."""
    low, high = math.floor(math.log10(shown.low)), math.ceil(math.log10(shown.high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in range(low, high + 1) for f in factors]
        found = [v for v in found if shown.low * (1 - 1e-9) <= v <= shown.high * (1 + 1e-9)]
        if len(found) <= max_ticks:
            return found
    return found[:: -(-len(found) // max(max_ticks, 1))]


class Unit(NamedTuple):
    """A unit in which a chart shows its values: `factor` times the stored ones."""

    name: str
    factor: float = 1.0

    def text(self, value: float) -> str:
        """A stored value in this unit: about three digits."""
        shown = self.factor * value
        return number(shown, 1 if shown >= 9.995 else 2 if shown >= 0.9995 else 3)


def shown_unit(unit: str, high: float) -> Unit:
    """Milliseconds that reach beyond a second are shown in seconds, all of an axis."""
    return Unit("s", 1e-3) if unit == "ms" and high > 1000 else Unit(unit)


def round_step(span: float, max_ticks: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that gives at most `max_ticks` steps."""
    raw = span / max(max_ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0):
        if factor * power >= raw * (1 - 1e-9):
            return factor * power
    return 10.0 * power


def ticks(shown: Range, max_ticks: int) -> list[float]:
    """Round values inside `shown`, ascending."""
    if not shown.span > 0 or not math.isfinite(shown.span):
        return [shown.low]
    step = round_step(shown.span, max_ticks)
    first = math.ceil(shown.low / step - 1e-9)
    last = math.floor(shown.high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def range_for(
    low: float, high: float, before: Range | None, from_zero: bool, least_span: float = 1e-9
) -> Range:
    """The axis range for data between `low` and `high`.

    It grows at once and shrinks only when the data fills less than half of it, so that the axis
    does not change with every sample. From zero on it is at least `least_span` long: values near
    zero are not magnified."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return before if before and not before.is_log else Range(0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
        high = max(high, low + least_span / 1.1)
    span = max(high - low, abs(high) * 0.02, 1e-9)
    wanted = Range(low if from_zero else low - 0.05 * span, high + 0.10 * span)
    if before and _contains(before, wanted, low, high) and wanted.span > 0.5 * before.span:
        return before
    step = round_step(wanted.span, 10)
    rounded_low = math.floor(wanted.low / step + 1e-9) * step
    return Range(rounded_low, math.ceil(wanted.high / step - 1e-9) * step)


def _contains(before: Range, wanted: Range, low: float, high: float) -> bool:
    tolerance = 1e-9 * before.span
    return (
        not before.is_log
        and before.low <= low + tolerance
        and high <= before.high + tolerance
        and (before.low == 0) == (wanted.low == 0)
    )


def tick_text(value: float, step: float) -> str:
    """The number at a tick, with the decimals that the tick distance needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if step > 0 and abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1  # 2.5, 0.25
    return number(value, decimals)


def labelled_ticks(
    shown: Range, height: float, distance: float, factor: float = 1.0
) -> list[tuple[float, str]]:
    """Ticks of a value axis `height` pixels high, at least `distance` pixels apart. Their texts are
    in a unit `factor` times the values'."""
    most = min(max(int(height / distance), 2), _MOST_TICKS)
    if shown.is_log:
        values = log_ticks(shown, most)
        steps = [10.0 ** math.floor(math.log10(value) + 1e-9) for value in values]
    else:
        values = ticks(shown, most)
        steps = [round_step(shown.span, most)] * len(values)
    texts = (tick_text(v * factor, s * factor) for v, s in zip(values, steps, strict=True))
    return list(zip(values, texts, strict=True))


def seconds_text(seconds: float, step: float) -> str:
    """Label of the time axis relative to now: -30 s, -5 min, now."""
    if abs(seconds) < 1e-6:
        return "now"
    if step >= 60:
        return f"{number(seconds / 60, 0 if step % 60 == 0 else 1)} min"
    return f"{number(seconds, 0 if step >= 1 else 1)} s"


_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)


def time_ticks(low: float, high: float, max_ticks: int) -> tuple[list[float], float]:
    """Tick positions on a time axis from `low` to `high` seconds, and their distance."""
    for step in _TIME_STEPS:
        if (high - low) / step <= max_ticks:
            first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
            return [step * k for k in range(first, last + 1)], float(step)
    return [low, high], high - low
