"""Places in a reply where the precision changed, carried through markdown in its text. No Qt.

A mark is written into the source between characters that Unicode reserves for a program's own use,
so that it leaves the parser where it entered, inside any list or quote:

    OPEN label BETWEEN explanation CLOSE

It is put where it cannot break the markup: after the bullet of a list, never into a fence's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

OPEN, BETWEEN, CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_MARK = re.compile(f"{OPEN}([^{BETWEEN}{CLOSE}]*){BETWEEN}([^{CLOSE}]*){CLOSE}")
_PREFIX = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?:#{1,6}[ \t]+)?(?:\|[ \t]*)?")
_WHOLE_LINE = re.compile(
    r"[ \t>]*(?:```|~~~|(?:[-*_][ \t]*){3,}$|=+[ \t]*$|\|?[ \t]*:?-+:?[ \t]*\|)"
)
_TAGS = ("<think>", "</think>")


class Mark(NamedTuple):
    """`start`: character of the text. `label` is shown in the text, `tip` is its tooltip."""

    start: int
    label: str
    tip: str


def with_marks(text: str, marks: Sequence[tuple[int, str, str]]) -> str:
    """`text` with its marks inserted, except those at its end."""
    for start, label, tip in sorted(marks, reverse=True):
        place = _place(text, start)
        if place is not None:
            text = f"{text[:place]}{OPEN}{label}{BETWEEN}{tip}{CLOSE}{text[place:]}"
    return text


def split(text: str) -> Iterator[tuple[str, Mark | None]]:
    """The pieces of a text, each with the mark after it."""
    position = 0
    for match in _MARK.finditer(text):
        yield text[position : match.start()], Mark(match.start(), match[1], match[2])
        position = match.end()
    yield text[position:], None


def without(text: str) -> tuple[str, list[Mark]]:
    """A text without its marks, and the marks with their positions."""
    kept, marks = "", []
    for piece, mark in split(text):
        kept += piece
        if mark is not None:
            marks.append(mark._replace(start=len(kept)))
    return kept, marks


def _place(text: str, start: int) -> int | None:
    """Where a mark for the character `start` is safe; None if no text follows."""
    for tag in _TAGS:
        begin = text.find(tag, max(0, start - len(tag)))
        if 0 <= begin < start < begin + len(tag):
            start = begin + len(tag)
    while start < len(text):
        begin = text.rfind("\n", 0, start) + 1
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if _WHOLE_LINE.match(text[begin:end]):
            start = end + 1
            continue
        prefix = _PREFIX.match(text, begin, end)
        start = max(start, prefix.end() if prefix else begin)
        if text[start:end].strip():
            return start
        start = end + 1
    return None
