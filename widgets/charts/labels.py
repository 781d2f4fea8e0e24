"""Where labels go, so that none covers another and none leaves the plot."""

from __future__ import annotations

from collections.abc import Sequence


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


def mark_rows(lefts: Sequence[float], rights: Sequence[float], num_rows: int) -> list[int | None]:
    """A row for each text so that texts in one row do not touch; None where no row is free.

    The newest (last) text is served first.
    """
    rows: list[list[tuple[float, float]]] = [[] for _ in range(num_rows)]
    result: list[int | None] = [None] * len(lefts)
    for i in reversed(range(len(lefts))):
        for number, row in enumerate(rows):
            if all(rights[i] < left or lefts[i] > right for left, right in row):
                row.append((lefts[i], rights[i]))
                result[i] = number
                break
    return result
