"""Columns and row height of a grid of charts. Widths are at the default text size: end labels and
legends grow with the text."""

from __future__ import annotations

from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2

_CHART_WIDTH, _PLOT_HEIGHT = 300, 90  # least
_NARROW, _LOW = 260, 60  # least, where more charts fit that way
_IN_ONE_ROW = 240  # least width
_TEXTS = 60  # pixels above and below a plot, at the default text size
_WIDE = 340  # from here on values fit beside the plot
_LEADING = 4


def grid_for(width: int, height: int, count: int, *, leads: bool = False) -> tuple[int, int]:
    """Columns, and the least height of a row. `leads`: where `count` charts would be small, the
    first four fill the view."""
    columns = columns_for(width, height, count)
    if leads and not _is_roomy(width, height, count, columns):
        columns = leading_columns(width, height)
        seen = _LEADING // columns
        return columns, max(_row(_LOW), (height + SPACE_2) // seen - SPACE_2)
    rows = -(-count // columns)
    seen_by = {one: min(rows, _rows_seen(one, height)) for one in map(_row, (_PLOT_HEIGHT, _LOW))}
    return columns, max(seen_by, key=lambda one: (seen_by[one], one))


def columns_for(width: int, height: int, count: int = 6) -> int:
    """Columns of a grid of `count` charts: one row where it is wide and low, else as many as fit
    without a gap. Charts may be narrower where some would otherwise need scrolling."""
    if height < 2 * _row(_PLOT_HEIGHT) and width >= count * scaled(_IN_ONE_ROW):
        return count
    even = [n for n in (4, 3, 2) if count % n == 0 and n * n <= count * 2]
    roomy = next((n for n in even if width >= n * scaled(_CHART_WIDTH)), 1)
    if -(-count // roomy) <= _rows_seen(_row(_PLOT_HEIGHT), height):
        return roomy
    return next((n for n in even if width >= n * scaled(_NARROW)), 1)


def _is_roomy(width: int, height: int, count: int, columns: int) -> bool:
    """Whether `count` charts fit in `columns` without narrow or low ones."""
    is_wide = width >= columns * scaled(_CHART_WIDTH)
    return is_wide and -(-count // columns) <= _rows_seen(_row(_PLOT_HEIGHT), height)


def leading_columns(width: int, height: int) -> int:
    """Columns in which four charts fill a view: one row where two would be low."""
    if _rows_seen(_row(_PLOT_HEIGHT), height) < 2 and width >= _LEADING * scaled(_WIDE):
        return _LEADING
    return 2 if width >= 2 * scaled(_NARROW) else 1


def _row(plot: int) -> int:
    """The height of a row with plots of this height."""
    return plot + scaled(_TEXTS)


def _rows_seen(row_height: int, height: int) -> int:
    """Whole rows within `height`."""
    return (height + SPACE_2) // (row_height + SPACE_2)
