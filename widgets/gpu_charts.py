"""Two charts of the GPUs: how busy they are, and what they draw and how warm they get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.snapshot import GpuFigures
from widgets.charts.clock import RedrawClock
from widgets.charts.scale import number
from widgets.charts.series import Series
from widgets.charts.time_chart import TimeChart


class GpuCharts:
    """`load` and `power`. Of several GPUs the busiest and the warmest is drawn; the power is that
    of all, of all their limits. What a GPU does not tell is not drawn."""

    def __init__(self, clock: RedrawClock, now: Callable[[], float]) -> None:
        self.load = _chart(
            "GPU load", "%", clock, now,
            _series("busy", "busy", "decode", "Share of the time in which anything was computed"),
            _series("reading", "memory", "kv_cached",
                    "Share of the time in which memory was read or written"),
            _series("clock", "clock", "other", "Multiprocessor clock, of its most"),
        )  # fmt: skip
        self.power = _chart(
            "GPU power and heat", "% · °C", clock, now,
            _series("power", "power", "prefill", "Power drawn, of the limit that is in force"),
            _series("heat", "°C", "preempted", "Temperature of the GPU in degrees Celsius"),
        )  # fmt: skip

    def update(self, at: float, gpus: Sequence[GpuFigures]) -> None:
        """What the driver told at the time `at`."""
        values = {
            "busy": _percent(_largest(g.utilization for g in gpus)),
            "reading": _percent(_largest(g.memory_utilization for g in gpus)),
            "clock": _percent(_largest(_of(g.clock_mhz, g.max_clock_mhz) for g in gpus)),
        }
        watts, limit = _sum(g.power_w for g in gpus), _sum(g.power_limit_w for g in gpus)
        heat = _largest(g.temperature_c for g in gpus)
        _append(self.load, at, values)
        _append(self.power, at, {"power": _percent(_of(watts, limit)), "heat": heat})
        self.load.set_note(_clock_words(gpus))
        self.power.set_note("" if watts is None else _power_words(watts, limit))


def _series(key: str, label: str, color: str, tip: str) -> Series:
    return Series(key, label, color, hold=True, text=lambda value: number(value, 0), tip=tip)


def _chart(
    title: str, unit: str, clock: RedrawClock, now: Callable[[], float], *series: Series
) -> TimeChart:
    chart = TimeChart(
        title, unit, series, clock=clock, value_template="100", time_source=now,
        empty_text=f"{title} appears when the driver tells of a GPU.",
    )  # fmt: skip
    chart.top = 100.0
    return chart


def _append(chart: TimeChart, at: float, values: dict[str, float | None]) -> None:
    for key, value in values.items():
        chart.set_available(key, value is not None)
        if value is not None:
            chart.append(key, at, value)


def _clock_words(gpus: Sequence[GpuFigures]) -> str:
    clocks = [f"{g.clock_mhz:,.0f} MHz" for g in gpus if g.clock_mhz is not None]
    return " · ".join(clocks)


def _power_words(watts: float, limit: float | None) -> str:
    return f"{watts:,.0f} W" + ("" if limit is None else f" of {limit:,.0f} W")


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _of(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
