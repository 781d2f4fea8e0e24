"""The form of what the starter model knows: terms, and pairs of terms told apart."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A term with the ways to name it, and paraphrased answers to three questions about it."""

    names: tuple[str, ...]
    what: tuple[str, ...]
    why: tuple[str, ...]
    tune: tuple[str, ...]


class Comparison(NamedTuple):
    """Two things that people ask to have told apart, and the answers."""

    left: str
    right: str
    answers: tuple[str, ...]
