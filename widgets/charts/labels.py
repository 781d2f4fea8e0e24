"""Where labels go, so that none covers another and none leaves the plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BESIDE = 5.0
"""Pixels between a line and its text, and from one text to the next line."""


def spread(wanted: Sequence[float], height: float, low: float, high: float) -> list[float]:
    """Centres for labels of `height`, as near to `wanted` as fits between `low` and `high`.

    Labels keep the order of `wanted`. Where there is no room for all of them they are packed
    evenly (and then do overlap).
    """
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    room = max(high - low, 0.0)
    distance = min(height, room / len(wanted))
    half = distance / 2
    placed = [min(max(wanted[i], low + half), high - half) for i in order]
    for i in range(1, len(placed)):  # push down...
        placed[i] = max(placed[i], placed[i - 1] + distance)
    limit = high - half
    for i in range(len(placed) - 1, -1, -1):  # ...and back up from the bottom
        placed[i] = min(placed[i], limit)
        limit = placed[i] - distance
    # A cluster that was pushed down moves up again to lie around its wanted centre.
    placed = _centred(placed, [wanted[i] for i in order], distance, low + half)
    result = [0.0] * len(wanted)
    for place, i in zip(placed, order, strict=True):
        result[i] = place
    return result


def _centred(placed: list[float], wanted: list[float], distance: float, low: float) -> list[float]:
    start = 0
    floor = low
    for end in range(1, len(placed) + 1):
        if end < len(placed) and placed[end] - placed[end - 1] <= distance * (1 + 1e-9):
            continue
        cluster = placed[start:end]
        lift = sum(p - w for p, w in zip(cluster, wanted[start:end], strict=True)) / len(cluster)
        lift = min(max(lift, 0.0), cluster[0] - floor)
        placed[start:end] = [p - lift for p in cluster]
        floor = placed[end - 1] + distance
        start = end
    return placed


class Flag(NamedTuple):
    """Where the text of a vertical line stands: a row from the top, and what it has of the width.
    Its end or its beginning is at the line."""

    row: int
    left: float
    right: float


def flags(
    lines: Sequence[float],
    widths: Sequence[float],
    plot: tuple[float, float],
    num_rows: int,
    least: float,
    taken: float = 0.0,
) -> list[Flag | None]:
    """A place beside its own line for the text of each, so that none covers another. `widths`:
    what the texts would like; `least`: below it a text says nothing, and has no place at all.
    `taken`: so much of the first row, from the left, is somebody else's.

    The newest (last) line is served first: right of it, or left, in the first row that holds the
    whole text; where none does, in the one with the most room.
    """
    rows: list[list[tuple[float, float]]] = [[] for _ in range(num_rows)]
    if taken:
        rows[0].append((plot[0], plot[0] + taken))
    result: list[Flag | None] = [None] * len(lines)
    for i in reversed(range(len(lines))):
        rooms = [
            Flag(number, *side)
            for number, row in enumerate(rows)
            for side in _beside(lines[i], row, plot)
        ]
        if not rooms:
            continue
        room = next((r for r in rooms if r.right - r.left >= widths[i]), None) or max(
            rooms, key=lambda r: r.right - r.left
        )
        width = min(widths[i], room.right - room.left)
        if width < min(least, widths[i]):
            continue
        is_right = room.left > lines[i]
        left = room.left if is_right else room.right - width
        result[i] = flag = Flag(room.row, left, left + width)
        rows[flag.row].append((min(flag.left, lines[i]), max(flag.right, lines[i])))
    return result


def _beside(
    line: float, row: Sequence[tuple[float, float]], plot: tuple[float, float]
) -> list[tuple[float, float]]:
    """(left, right) of the room in a row to the right of a line, and to its left."""
    if any(left - BESIDE < line < right + BESIDE for left, right in row):
        return []
    rights = [left - BESIDE for left, _ in row if left > line]
    lefts = [right + BESIDE for _, right in row if right < line]
    return [
        (line + BESIDE, min([plot[1], *rights])),
        (max([plot[0], *lefts]), line - BESIDE),
    ]
