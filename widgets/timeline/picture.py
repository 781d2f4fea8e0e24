"""Pixels of the timeline's cells and of the bars below them. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage

from widgets.theme.tables import Pixels, Theme, to_image
from widgets.theme.theme import theme
from widgets.timeline.history import FINISHED, RESUMED, Kind, Span, StepHistory

_HATCH = 4
"""Distance of the hatch lines in an idle slot."""
_LOW = 0.62
"""Height of a decode cell, as a share of a prefill's: steps with many tokens stand out."""


_COLORS = ("panel", "prefill", "prefill", "decode", "draft", "preempted", "panel")
"""Of a cell, by `Kind`."""


def paint_cells(kinds: NDArray[np.uint8], pitch: int, row_height: int, colors: Theme) -> Pixels:
    """kinds[rows, columns] as pixels [rows * row_height, columns * pitch]."""
    rows, columns = kinds.shape
    table = np.array([colors.pixel(name) for name in _COLORS], np.uint32)
    done = kinds & np.uint8(0xFF ^ FINISHED ^ RESUMED)
    cells = table[done]
    is_low = (done == Kind.DECODE) | (done == Kind.DRAFT)
    background = colors.pixel("panel")
    low_cells = np.where(is_low, np.uint32(background), cells)
    image = np.full((rows, row_height, columns, pitch), background, np.uint32)
    width = pitch - 1 if pitch >= 4 else pitch
    height = row_height - 2 if row_height >= 6 else row_height
    margin = (row_height - height) // 2
    inset = round(height * (1 - _LOW) / 2)
    for line in range(height):
        shown = cells if inset <= line < height - inset else low_cells
        image[:, margin + line, :, :width] = shown[:, :, None]
    body = slice(margin, margin + height)
    row, column = np.nonzero(done == Kind.CACHED)
    image[row, body, column, : max(1, width // 2)] = colors.pixel("cached")
    row, column = np.nonzero(kinds & RESUMED)
    image[row, :, column, : max(1, width // 3)] = colors.pixel("preempted")
    row, column = np.nonzero(done == Kind.HELD)
    image[row, body, column] = _hatched(column, pitch, height, colors)
    if width >= 3:
        row, column = np.nonzero(kinds & FINISHED)
        image[row, body, column, width - 1] = colors.pixel("text")
    return image.reshape(rows * row_height, columns * pitch)


def _hatched(columns: NDArray[np.int64], pitch: int, height: int, colors: Theme) -> Pixels:
    """An idle slot of `columns` steps, with continuous hatching."""
    x = columns[:, None, None] * pitch + np.arange(pitch)
    lines = (x + np.arange(height)[None, :, None]) % _HATCH == 0
    return np.where(lines, colors.pixel("queued"), colors.pixel("panel")).astype(np.uint32)


def paint_bars(
    durations: NDArray[np.float64], longest: float, pitch: int, height: int, colors: Theme
) -> Pixels:
    """A bar per step, from below: pixels [height, columns * pitch]. `longest`: seconds of a full
    bar."""
    columns = len(durations)
    background = colors.pixel("panel")
    image = np.full((height, columns, pitch), background, np.uint32)
    width = pitch - 1 if pitch >= 4 else pitch
    levels = np.ceil(np.clip(durations / longest, 0, 1) * height) if longest > 0 else durations * 0
    lines = np.arange(height, 0, -1)[:, None]
    image[:, :, :width] = np.where(lines <= levels, colors.pixel("other"), background)[:, :, None]
    return image.reshape(height, columns * pitch)


BARS_HEIGHT = 30


class Scene(NamedTuple):
    """What is visible: steps start to end - 1, a row for each of `numbers`."""

    start: int
    end: int
    numbers: list[int]
    num_above: int  # requests above the first row
    num_below: int  # and below the last
    row_height: int
    spans: list[Span]
    longest: float
    cells: QImage
    bars: QImage


def make_scene(
    history: StepHistory, start: int, end: int, pitch: int, room: int, heights: Sequence[int],
    below: int = 0,
) -> Scene:
    """The steps start to end - 1 of `history`, `pitch` pixels each, in `room` pixels of height.
    heights: of a row, the first with room for all requests, else the last; `below`: requests to
    leave below the last row, where there is no room for all."""
    ordinals, numbers, kinds = history.cells(start, end)
    spans = history.spans(start, end)
    waiting = np.array([span.number for span in spans], np.int64)
    everyone = np.union1d(numbers, waiting)
    fits = [height for height in heights if height * len(everyone) <= room]
    row_height = fits[0] if fits else heights[-1]
    shown = max(1, room // row_height)
    last = len(everyone) - min(below, max(0, len(everyone) - shown))
    rows = everyone[max(0, last - shown) : last]
    matrix = np.full((max(1, len(rows)), end - start), Kind.NOTHING, np.uint8)
    if len(rows):
        is_shown = (numbers >= rows[0]) & (numbers <= rows[-1])
        place = np.searchsorted(rows, numbers[is_shown])
        matrix[place, ordinals[is_shown] - start] = kinds[is_shown]
    durations = history.durations(start, end)
    longest = float(durations.max())
    return Scene(
        start, end, rows.tolist(), last - len(rows), len(everyone) - last, row_height, spans,
        longest, to_image(paint_cells(matrix, pitch, row_height, theme())),
        to_image(paint_bars(durations, longest, pitch, BARS_HEIGHT, theme())),
    )  # fmt: skip
