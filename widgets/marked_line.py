"""A line of text in which what a search found is set off."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QFont, QTextCharFormat, QTextLayout

_ONE_LINE = 10_000  # pixels: nothing wraps


def marked_line(
    text: str, font: QFont, marks: Sequence[tuple[int, int]], marked: QTextCharFormat
) -> QTextLayout:
    """`text` laid out in one line, with the ranges (start, end) of `marks` in the format `marked`.
    Its `draw` takes the upper left corner; what has no format is in the painter's pen."""
    layout = QTextLayout(text, font)
    ranges = []
    for start, end in marks:
        part = QTextLayout.FormatRange()
        part.start, part.length, part.format = start, end - start, marked
        ranges.append(part)
    layout.setFormats(ranges)
    layout.beginLayout()
    layout.createLine().setLineWidth(_ONE_LINE)
    layout.endLayout()
    return layout
