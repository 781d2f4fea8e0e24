"""Axes: round ticks, calm ranges, numbers as text."""

from __future__ import annotations

import math
from typing import NamedTuple

MINUS = "\N{MINUS SIGN}"


class Range(NamedTuple):
    low: float
    high: float

    @property
    def span(self) -> float:
        return self.high - self.low


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

    It grows at once and shrinks only when the data fills less than half of it, so the axis does
    not breathe with every sample. From zero on it is at least `least_span` long: nothing at all
    is not magnified.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return before or Range(0.0, 1.0)
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
        before.low <= low + tolerance
        and high <= before.high + tolerance
        and (before.low == 0) == (wanted.low == 0)
    )


def tick_text(value: float, step: float) -> str:
    """A tick's number with just the decimals that the distance of the ticks asks for."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if step > 0 and abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1  # 2.5, 0.25
    return number(value, decimals)


def number(value: float, decimals: int) -> str:
    """A number with `decimals` decimals, thousands separated, a real minus sign; – for nothing."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:,.{decimals}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.lstrip("-")


def figure(value: float) -> str:
    """A measured value with about three digits: 7.4, 31, 1,204."""
    return number(value, 0 if abs(value) >= 9.95 or value == 0 else 1)


def seconds_text(seconds: float, step: float) -> str:
    """A place on the time axis relative to now: -30 s, -5 min, now."""
    if seconds == 0:
        return "now"
    if step >= 60:
        return f"{number(seconds / 60, 0 if step % 60 == 0 else 1)} min"
    return f"{number(seconds, 0 if step >= 1 else 1)} s"


def time_ticks(window: float, max_ticks: int) -> tuple[list[float], float]:
    """Places on an axis from -window to 0 seconds, and their distance."""
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600):
        if window / step <= max_ticks:
            return [-float(k * step) for k in range(int(window // step), -1, -1)], float(step)
    return [-window, 0.0], window


def duration_text(seconds: float) -> str:
    """A length of time in words: 30 s, 2 min, 1 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:g} s"
