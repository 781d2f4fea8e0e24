"""Differences of repeated runs, each with its 95 % interval. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.bench.sweep import COLUMNS, Point, figure_of
from app.storage.intervals import Difference, difference_of


def differences(
    before: Point, after: Point, columns: Sequence[tuple[str, str, str, str]] = COLUMNS
) -> list[Difference | None]:
    """Of each of the columns, as the table has it: of all repetitions together. None where a side
    has no such figure."""
    return [
        difference_of(
            figure_of(before, key, statistic),
            figure_of(after, key, statistic),
            before.samples(key, statistic),
            after.samples(key, statistic),
        )
        for key, statistic, _, _ in columns
    ]


def has_interval(found: Sequence[Difference | None]) -> bool:
    """False where a side was run once."""
    return any(one is not None and one.half is not None for one in found)


def as_dict(found: Sequence[Difference | None]) -> dict[str, dict[str, float | None]]:
    """By "itl_ms.p50"; fractions."""
    return {
        ".".join(filter(None, (key, statistic))): one._asdict()
        for (key, statistic, _, _), one in zip(COLUMNS, found, strict=True)
        if one is not None
    }


def rows(found: Mapping[str, Sequence[Difference | None]]) -> list[list[str]]:
    """A row for each figure, a column for each name."""
    lines = [["", *found]]
    for place, (_, _, title, _) in enumerate(COLUMNS):
        own = [one[place] for one in found.values()]
        if any(one is not None for one in own):
            lines.append([title, *("-" if one is None else str(one) for one in own)])
    return lines
