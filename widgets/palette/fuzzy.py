"""Finding what somebody means by a few letters. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """Text `number` matches; `marks` are the (start, end) of what was found in it."""

    number: int
    marks: tuple[tuple[int, int], ...]


def search(query: str, texts: Sequence[str]) -> list[Match]:
    """The texts in which every word of `query` is found, the best first, equals in their order.

    A word is found at the beginning of a word of the text, inside one, or as letters in order
    ("gch" in "Regenerate chat"): in this order, and early before late. No query finds everything.
    """
    words = query.lower().split()
    found: list[tuple[tuple[int, int], Match]] = []
    for index, text in enumerate(texts):
        places = [_find(word, text) for word in words]
        if None in places:
            continue
        known = [place for place in places if place is not None]
        rank = (sum(p.rank for p in known), sum(p.marks[0][0] for p in known))
        marks = sorted(mark for place in known for mark in place.marks)
        found.append((rank, Match(index, tuple(_joined(marks)))))
    found.sort(key=lambda entry: entry[0])
    return [match for _, match in found]


class _Place(NamedTuple):
    rank: int  # 0: a word begins with it; 1: inside a word; 2: letters in order
    marks: list[tuple[int, int]]


def _find(word: str, text: str) -> _Place | None:
    # one letter at a time keeps positions: lower() of some letters is longer than they are
    folded = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    starts = [i for i in range(len(folded)) if folded.startswith(word, i)]
    for start in starts:
        if start == 0 or not folded[start - 1].isalnum():
            return _Place(0, [(start, start + len(word))])
    if starts:
        return _Place(1, [(starts[0], starts[0] + len(word))])
    marks, position = [], 0
    for letter in word:
        position = folded.find(letter, position)
        if position < 0:
            return None
        marks.append((position, position + 1))
        position += 1
    return _Place(2, marks)


def _joined(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted marks, with those that touch or overlap made one."""
    joined: list[tuple[int, int]] = []
    for start, end in marks:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
