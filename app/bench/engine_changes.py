"""How the engines of a sweep differ from its first one. No Qt."""

from __future__ import annotations

from collections.abc import Sequence

from app.bench.differences import differences
from app.bench.sweep import COLUMNS, ENGINE, Point, axis_title, value_words

_LEADING = (("output_tokens_per_s", ""), ("ttft_ms", "p50"), ("itl_ms", "p50"))


def baseline(point: Point, points: Sequence[Point]) -> Point | None:
    """The point of the first engine at the same load; None for that one, and without engines."""
    if ENGINE not in point.settings:
        return None
    first = {**point.settings, ENGINE: points[0].settings[ENGINE]}
    found = next((one for one in points if one.settings == first), None)
    return None if found is point else found


def engines_in_words(points: Sequence[Point]) -> str:
    """Each engine against the first, at the last load; "" without engines."""
    last: dict[str, tuple[Point, Point]] = {}
    for point in points:
        base = baseline(point, points)
        if base is not None and base.is_measured and point.is_measured:
            last[point.settings[ENGINE]] = point, base
    return " ".join(_against(*pair) for pair in last.values())


def _against(point: Point, base: Point) -> str:
    found, parts = differences(base, point), []
    for (key, statistic, title, _), one in zip(COLUMNS, found, strict=True):
        if (key, statistic) not in _LEADING or one is None:
            continue
        is_clear = one.half is None or abs(one.change) > one.half
        parts.append(f"{title} {one}" if is_clear else f"{title} no clear difference ({one})")
    loads = "".join(
        f", {axis_title(name).lower()} {value_words(name, value)}"
        for name, value in point.settings.items() if name != ENGINE
    )  # fmt: skip
    head = f"{point.settings[ENGINE]} against {base.settings[ENGINE]}{loads}"
    return f"{head}: {', '.join(parts)}."
