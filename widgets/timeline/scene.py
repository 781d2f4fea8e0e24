"""What is on the screen of a timeline: the rows, the cells, and the bars of a range of steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PySide6.QtGui import QImage

from widgets.pixels import to_image
from widgets.theme import theme
from widgets.timeline.history import Kind, Span, StepHistory
from widgets.timeline.picture import Colors, paint_bars, paint_cells

BARS_HEIGHT = 30
ROW_HEIGHTS = (18, 14, 10, 8, 6)
"""Pixels of a row: the first that has room for all requests, else the last, for the newest."""


class Scene(NamedTuple):
    """What is on the screen: steps start to end - 1, a row for each of `numbers`."""

    start: int
    end: int
    numbers: list[int]
    num_above: int  # requests for which there was no room
    row_height: int
    spans: list[Span]
    longest: float
    cells: QImage
    bars: QImage


def make_scene(history: StepHistory, start: int, end: int, pitch: int, room: int) -> Scene:
    """The steps start to end - 1 of `history`, `pitch` pixels each, in `room` pixels of height."""
    ordinals, numbers, kinds = history.cells(start, end)
    spans = history.spans(start, end)
    waiting = np.array([span.number for span in spans], np.int64)
    everyone = np.union1d(numbers, waiting)
    fits = [height for height in ROW_HEIGHTS if height * len(everyone) <= room]
    row_height = fits[0] if fits else ROW_HEIGHTS[-1]
    rows = everyone[-max(1, room // row_height) :]
    matrix = np.full((max(1, len(rows)), end - start), Kind.NOTHING, np.uint8)
    if len(rows):
        shown = numbers >= rows[0]
        place = np.searchsorted(rows, numbers[shown])
        matrix[place, ordinals[shown] - start] = kinds[shown]
    durations = history.durations(start, end)
    longest = float(durations.max())
    colors = _colors()
    return Scene(
        start, end, rows.tolist(), len(everyone) - len(rows), row_height, spans, longest,
        to_image(paint_cells(matrix, pitch, row_height, colors)),
        to_image(paint_bars(durations, longest, pitch, BARS_HEIGHT, colors)),
    )  # fmt: skip


def _colors() -> Colors:
    table = theme()
    series = table.series
    return Colors(
        table.panel, series.prefill, series.cached, series.decode, series.draft, series.preempted,
        table.text, series.other, series.queued,
    )  # fmt: skip
