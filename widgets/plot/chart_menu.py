"""What a chart offers: its context menu, and its keys."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtGui import QActionGroup
from PySide6.QtWidgets import QMenu

from engine.units import duration_text
from widgets.plot.table import save_table

if TYPE_CHECKING:
    from widgets.plot.time_chart import TimeChart

KEYS = [
    ("Table of values", "T"),
    ("Logarithmic axis", "L"),
    ("Move cursor", "Left, Right"),
    ("Zoom", "Ctrl+drag, Ctrl+scroll"),
    ("Zoom to range", "Z, arrows, Z"),
    ("Zoom out", "Esc, double-click"),
    ("Select range (Tune)", "drag, or Enter, arrows, Enter"),
]
"""What the keyboard and the mouse do on a chart."""
WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
"""Time ranges in the menu, in seconds."""


def extend_menu(menu: QMenu, chart: TimeChart) -> None:
    """Add what is about time and axes to the menu of every plot."""
    if len(chart.group.charts) > 1:
        menu.addAction("Save all charts as CSV…", partial(_ask_for_all, chart))
    menu.addSeparator()
    zoom_out = menu.addAction("Zoom out", chart.group.zoom_out)
    zoom_out.setEnabled(chart.group.zoom is not None)
    choices = [
        ("Fit axis to data", chart.fits_data, chart.set_fit_to_data),
        ("Pause", chart.is_paused, chart.set_paused),
    ]
    if chart.may_be_log:
        choices.insert(1, ("Logarithmic axis", chart.is_log, chart.set_log))
    for text, value, change in choices:
        action = menu.addAction(text)
        action.setCheckable(True)
        action.setChecked(value)
        action.toggled.connect(change)
    lengths = menu.addMenu("Time range")
    group = QActionGroup(lengths)
    for seconds in WINDOWS_S:
        action = lengths.addAction(duration_text(seconds))
        action.setCheckable(True)
        action.setChecked(seconds == chart.window_s)
        action.triggered.connect(partial(_choose_window, chart, seconds))
        group.addAction(action)


def _choose_window(chart: TimeChart, seconds: float, *_: object) -> None:
    chart.choose_window(seconds)


def _ask_for_all(chart: TimeChart) -> None:
    def save(path: Path) -> None:
        save_table(chart.group.values_table(), path)

    chart.ask("charts", ".csv", save, "charts")
