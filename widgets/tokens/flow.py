"""Tokens in rows, as text runs. No Qt.

row 0   | The | quick | br | own |
row 1   | fox | ↵ |                  a token that breaks the line is the last of its row
row 2   | ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where a token is: its row, its left edge and its width in pixels."""

    row: int
    left: float
    width: float


def flow(widths: Sequence[float], breaks: Sequence[bool], room: float) -> list[Place]:
    """A place for every token in rows of `room` pixels; a wider token gets the whole row.
    `breaks`: after which tokens a row ends."""
    places: list[Place] = []
    row, left = 0, 0.0
    for width, ends_row in zip(widths, breaks, strict=True):
        width = min(width, room)
        if left and left + width > room:
            row, left = row + 1, 0.0
        places.append(Place(row, left, width))
        left += width
        if ends_row:
            row, left = row + 1, 0.0
    return places
