from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.plot.clock import RedrawClock
from widgets.plot.series import Series
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import apply_theme

NOW = 500.0


@pytest.fixture
def clock(qapp: QApplication) -> Iterator[RedrawClock]:
    apply_theme(qapp, "light")
    made = RedrawClock(rate_hz=50)
    yield made
    made._timer.stop()
    apply_theme(qapp, "light")


@pytest.fixture
def chart(qtbot: QtBot) -> Iterator[TimeChart]:
    """A chart of three values, the last of them at `NOW`."""
    clock = RedrawClock()
    made = TimeChart(
        "ITL", "ms", (Series("p50", "p50", "p50"),), clock=clock, time_source=lambda: NOW
    )
    qtbot.addWidget(made)
    clock.setParent(made)
    made.resize(420, 200)
    made.extend("p50", [400.0, 450.0, 500.0], [10.0, 12.0, 14.0])
    made.show()
    made.redraw()
    yield made
    clock._timer.stop()


class Drawn:
    """What a curve has drawn."""

    def __init__(self, item: object) -> None:
        self.runs = item._runs  # type: ignore[attr-defined]

    def y(self) -> np.ndarray:
        return np.array([point.y() for run in self.runs for point in run])
