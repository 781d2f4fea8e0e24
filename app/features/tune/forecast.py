"""`Forecast`: the load of the last minute at other settings, as curves and figures. No Qt.

    measured   ------'^\\_/^`-----|now          charts draw both over the same time
    predicted  - - -,_  _ -' - - - |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.simulate.replay import replay
from engine.simulate.step_time import Measured
from engine.simulate.traffic import Load, fitted
from engine.snapshot import EngineSnapshot
from engine.units import change_text, counted, duration_text, from_to, rate_text
from widgets.live.metric_store import MetricStore
from widgets.plot.series import Floats

Curves = dict[str, tuple[Floats, Floats]]
"""Times and values, by the name of the live chart that shows them."""


class Headline(NamedTuple):
    """Of a range: p50 of the ITL and of the TTFT in ms, output tokens per second, as in the result
    of a change. None: nothing measured."""

    itl: float | None
    ttft: float | None
    output: float | None

    @classmethod
    def of(cls, store: MetricStore, start: float, end: float) -> Headline:
        found = {key: level for key, (_, level) in store.observed(start, end).items()}
        return cls(found["itl"], found["ttft"], found["output"] if found["ttft"] else None)


NOTHING = Headline(None, None, None)


@dataclass(frozen=True)
class Forecast:
    """`changes`: the settings of the prediction. `curves`: of the time `start` to `end`. `beyond`:
    the largest batch that was measured, where the prediction has larger ones; else 0."""

    changes: Mapping[str, Any]
    start: float
    end: float
    curves: Curves
    headline: Headline
    beyond: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def words(self, now: Headline) -> str:
        """ "Predicted for the load of the last 60 s: ITL p50 9.1 → 12.3 ms, ..."; `now`: measured
        in them."""
        pairs = [
            f"{name} {from_to(before, after, unit)}".strip()
            for name, unit, before, after in _rows(now, self.headline)
            if before is not None and after is not None
        ]
        if not pairs:
            return ""
        span = duration_text(self.seconds, 2)
        found = f"Predicted for the load of the last {span}: {', '.join(pairs)}"
        return f"{found}. Extrapolated: {self._measured}." if self.beyond else found

    @property
    def _measured(self) -> str:
        return f"no measured step had more than {counted(self.beyond, 'request')}"

    def outcome(self, measured: Headline) -> str:
        """ "Predicted ITL p50 12.1 ms, measured 12.9 ms (error -6.2 %); ..."."""
        parts = []
        for name, unit, expected, found in _rows(self.headline, measured):
            if expected is not None:
                text = f"{name} {_value(expected, unit)}".strip()
                if found:
                    error = change_text(expected / found - 1)
                    text += f", measured {_value(found, unit)} (error {error})"
                parts.append(text)
        return f"Predicted {'; '.join(parts)}" if parts else ""


def _rows(
    one: Headline, other: Headline
) -> Iterable[tuple[str, str, float | None, float | None]]:
    """Name, unit and both values of each figure."""
    names = ("ITL p50", "ms"), ("TTFT p50", "ms"), ("", "tok/s")
    for (name, unit), a, b in zip(names, one, other, strict=True):
        yield name, unit, a, b


def _value(value: float, unit: str) -> str:
    return duration_text(value / 1e3) if unit == "ms" else rate_text(value)


def forecast(
    like: EngineSnapshot, samples: Sequence[Measured], load: Load, changes: Mapping[str, Any]
) -> Forecast:
    """samples: measured steps. Raises ConfigError for too few, and what `replay` raises."""
    times, largest = fitted(samples), 0
    store = MetricStore()
    running: list[tuple[float, float]] = []
    usage: list[tuple[float, float]] = []
    for snapshot in replay(like, times, load, changes):
        store.update(snapshot)
        largest = max(largest, *(len(step.entries) for step in snapshot.steps), 0)
        running.append((snapshot.time, snapshot.num_running))
        highest = max((step.kv_usage or 0.0 for step in snapshot.steps), default=snapshot.kv_usage)
        usage.append((snapshot.time, highest * 100))
    seconds = range(int(load.start) + 1, int(store.last_time) + 1)
    rates = [(float(second), store.rate_at("out", second)) for second in seconds]
    curves = {key: (store.line(key).p50.times, store.line(key).p50.values) for key in _LINES}
    curves["requests"] = _curve(running)
    curves["cache"] = _curve(usage)
    curves["tokens"] = _curve([(at, rate) for at, rate in rates if rate is not None])
    most = max(sample.work.requests for sample in samples)
    return Forecast(
        dict(changes), load.start, load.end, curves,
        Headline.of(store, load.start, load.end), most if largest > most else 0,
    )  # fmt: skip


_LINES = ("ttft", "itl")


def _curve(points: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]
