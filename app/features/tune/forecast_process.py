"""`forecast_apart`: a forecast in a child process.

A replay is pure Python. In a thread of the engine's process it competes with the engine for the
GIL: steps take twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from app.features.tune.forecast import Forecast, Headline, forecast
from app.wire.snapshots import SnapshotReader, SnapshotWriter, WireSnapshot
from engine.hardware import garbage
from engine.limited_process import run_limited
from engine.simulate.step_time import Measured
from engine.simulate.traffic import Load
from engine.snapshot import EngineSnapshot

SECONDS, MAX_BYTES = 120.0, 2**31


class _Found(msgspec.Struct, array_like=True):
    """A `Forecast` as plain data, without its settings and times."""

    curves: dict[str, tuple[list[float], list[float]]]
    headline: Headline
    beyond: int


def forecast_apart(
    like: EngineSnapshot, samples: Sequence[Measured], load: Load, changes: Mapping[str, Any],
    check: Callable[[], None] = lambda: None,
) -> Forecast:  # fmt: skip
    """As `forecast`. check: is called every 50 ms; what it raises ends the process."""
    answer = run_limited(
        answered, SnapshotWriter().write(like), samples, load, dict(changes),
        seconds=SECONDS, max_bytes=MAX_BYTES, check=check,
    )  # fmt: skip
    found = msgspec.convert(answer, _Found)
    curves = {
        name: (np.array(times), np.array(values)) for name, (times, values) in found.curves.items()
    }
    return Forecast(
        dict(changes), load.start, load.end, curves, found.headline, found.beyond
    )


def answered(like: Any, samples: Any, load: Any, changes: dict[str, Any]) -> Any:
    """In the other process."""
    with garbage.paused():
        found = forecast(
            SnapshotReader().read(msgspec.convert(like, WireSnapshot)),
            msgspec.convert(samples, list[Measured]), msgspec.convert(load, Load), changes,
        )  # fmt: skip
    curves = {name: (x.tolist(), y.tolist()) for name, (x, y) in found.curves.items()}
    return _Found(curves, found.headline, found.beyond)
