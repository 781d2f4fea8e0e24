"""Meanings of the colour behind a token: one entry of `PAINTS` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from PySide6.QtGui import QColor

from widgets.controls.swatches import Swatch
from widgets.theme.tables import mix
from widgets.theme.theme import Theme
from widgets.tokens.record import TokenRecord

Background = Callable[[TokenRecord, Theme], QColor | None]


@dataclass(frozen=True)
class PaintBy:
    """A colouring. `background`: colour behind a token, None for the panel's; the theme's `text`
    must be readable on it."""

    name: str
    help: str
    legend: tuple[Swatch, ...]
    background: Background
    shows_rejected: bool = False  # struck through


_STRENGTHS = (0.0, 0.16, 0.3, 0.45, 0.6)
_DARKER = 0.8
"""Factor in the dark theme: light text must stay readable."""


_mix = cache(mix)


def heat(level: int, table: Theme) -> str:
    """The colour of a level from 0 (none) to 4 (strongest)."""
    strength = _STRENGTHS[level] * (_DARKER if table.is_dark else 1.0)
    return _mix(table.panel, table.value("tokens_out"), strength)


def _by_level(level: Callable[[TokenRecord], int | None]) -> Background:
    def background(record: TokenRecord, table: Theme) -> QColor | None:
        found = level(record)
        return QColor(heat(found, table)) if found else None

    return background


def _legend(*names: str) -> tuple[Swatch, ...]:
    """Legend of the levels from 1 on; level 0 is not coloured."""
    return tuple(
        Swatch(name, lambda table, level=level: (heat(level, table),))  # type: ignore[misc]
        for level, name in enumerate(names, start=1)
    )


def _level(value: float, *bounds: float) -> int:
    """Number of ascending `bounds` that the value has reached."""
    return sum(value >= bound for bound in bounds)


def probability_level(record: TokenRecord) -> int:
    return 4 - _level(record.probability, 0.05, 0.2, 0.5, 0.9)


def rank_level(record: TokenRecord) -> int:
    return _level(record.rank, 2, 3, 6, 21)


def entropy_level(record: TokenRecord) -> int | None:
    bits = record.entropy_bits
    return None if bits is None else _level(bits, 0.25, 0.75, 1.5, 2.5)


def _draft_color(table: Theme) -> str:
    return mix(table.panel, table.value("draft"), 0.32 if table.is_dark else 0.4)


def _replaced_color(table: Theme) -> str:
    return mix(table.panel, table.value("preempted"), 0.24 if table.is_dark else 0.3)


def draft_background(record: TokenRecord, table: Theme) -> QColor | None:
    if record.is_draft:
        return QColor(_draft_color(table))
    return QColor(_replaced_color(table)) if record.rejected else None


PAINTS: tuple[PaintBy, ...] = (
    PaintBy(
        "Probability",
        "Token probability before temperature.",
        _legend("< 90 %", "< 50 %", "< 20 %", "< 5 %"),
        _by_level(probability_level),
    ),
    PaintBy(
        "Rank",
        "Token rank by probability.",
        _legend("rank 2", "3–5", "6–20", "> 20"),
        _by_level(rank_level),
    ),
    PaintBy(
        "Entropy",
        "Entropy of the next-token distribution.",
        _legend("≥ 0.25 bits", "≥ 0.75", "≥ 1.5", "≥ 2.5"),
        _by_level(entropy_level),
    ),
    PaintBy(
        "Drafts",
        "Accepted draft tokens, and tokens sampled in place of rejected ones.",
        (
            Swatch("accepted draft token", lambda table: (_draft_color(table),)),
            Swatch("replaces rejected draft tokens", lambda table: (_replaced_color(table),)),
            Swatch("no draft", lambda table: (table.panel,)),
        ),
        draft_background,
        shows_rejected=True,
    ),
)
