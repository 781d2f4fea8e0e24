"""`GpuCharts`: load, power and temperature of the GPUs, as the driver reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.snapshot import GpuFigures
from engine.units import whole
from widgets.plot.clock import RedrawClock
from widgets.plot.series import Series
from widgets.plot.time_chart import TimeChart


class GpuCharts:
    """`load` and `power`. Of several GPUs: the highest load and temperature, the sum of power and
    power limits. Values that the driver does not report are left out."""

    def __init__(self, clock: RedrawClock, now: Callable[[], float]) -> None:
        self.load = _chart(
            "GPU load", "%", clock, now,
            _series("busy", "busy", "decode", "Percentage of time with a kernel running"),
            _series("reading", "memory", "kv_cached",
                    "Percentage of time with memory reads or writes"),
            _series("clock", "clock", "other", "SM clock, % of maximum"),
        )  # fmt: skip
        self.power = _chart(
            "GPU power and temperature", "% · °C", clock, now,
            _series("power", "power", "prefill", "Power draw, % of the power limit"),
            _series("heat", "°C", "preempted", "GPU temperature, °C"),
        )  # fmt: skip

    def update(self, at: float, gpus: Sequence[GpuFigures]) -> None:
        """The driver's readings at time `at`."""
        values = {
            "busy": _percent(_largest(g.utilization for g in gpus)),
            "reading": _percent(_largest(g.memory_utilization for g in gpus)),
            "clock": _percent(_largest(_of(g.clock_mhz, g.max_clock_mhz) for g in gpus)),
        }
        watts, limit = _sum(g.power_w for g in gpus), _sum(g.power_limit_w for g in gpus)
        heat = _largest(g.temperature_c for g in gpus)
        _append(self.load, at, values)
        _append(self.power, at, {"power": _percent(_of(watts, limit)), "heat": heat})
        clocks = [f"{g.clock_mhz:,.0f} MHz" for g in gpus if g.clock_mhz is not None]
        self.load.set_note(" · ".join(clocks))
        of_limit = "" if limit is None else f" of {limit:,.0f} W"
        self.power.set_note("" if watts is None else f"{watts:,.0f} W{of_limit}")


def _series(key: str, label: str, color: str, tip: str) -> Series:
    return Series(key, label, color, hold=True, text=whole, tip=tip)


def _chart(
    title: str, unit: str, clock: RedrawClock, now: Callable[[], float], *series: Series
) -> TimeChart:
    return TimeChart(
        title, unit, series, clock=clock, value_template="100", top=100.0, time_source=now,
        empty_text=f"{title} appears when the driver reports a GPU.",
    )  # fmt: skip


def _append(chart: TimeChart, at: float, values: dict[str, float | None]) -> None:
    for key, value in values.items():
        chart.set_available(key, value is not None)
        if value is not None:
            chart.append(key, at, value)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _of(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
