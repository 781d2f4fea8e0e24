"""What is said of tokens, in words. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from widgets.tokens.record import UNLIKELY, Origin, TokenRecord

_SIGNS = str.maketrans({"\n": "↵", "\r": "␍", "\t": "⇥", "\0": "␀"})
_ORIGINS = {
    Origin.KEPT: "kept from the version before",
    Origin.CHOSEN: "chosen by you",
}


def shown(text: str) -> str:
    """A token's text in a row: signs in place of what breaks lines."""
    return text.translate(_SIGNS) or "∅"


def quoted(text: str) -> str:
    """A token in a sentence: its spaces can be seen."""
    return f"“{shown(text).replace(' ', '␣')}”"


def percent(probability: float) -> str:
    """Three digits at most: 99.9 %, 4.2 %, 0.03 %, < 0.01 %."""
    value = 100 * probability
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.2f} %" if value < 1 else f"{value:.1f} %"


def token_words(records: Sequence[TokenRecord], index: int) -> str:
    """All that is known of one token, but for its alternatives."""
    record = records[index]
    parts = [
        f"Token {index + 1:,} of {len(records):,}: {quoted(record.text)}",
        percent(record.probability),
        f"rank {record.rank:,}",
    ]
    if record.entropy_bits is not None:
        parts.append(f"entropy at least {record.entropy_bits:.2f} bits")
    if record.origin in _ORIGINS:
        parts.append(_ORIGINS[record.origin])
    if record.is_draft:
        parts.append("a draft that stood")
    if record.rejected:
        first, *others = record.rejected
        more = f" and {len(others)} after it" if others else ""
        parts.append(f"in place of the draft {quoted(first)}{more}")
    return " · ".join(parts)


def summary_words(records: Sequence[TokenRecord]) -> str:
    """The whole reply in a line."""
    if not records:
        return ""
    unlikely = sum(record.is_unlikely for record in records)
    first = sum(record.rank == 1 for record in records)
    bits = fmean(-record.logprob for record in records)
    count = "1 token" if len(records) == 1 else f"{len(records):,} tokens"
    return (
        f"{count} · {percent(first / len(records))} were the most probable · "
        f"{unlikely:,} below {UNLIKELY * 100:.0f} % · mean log probability −{bits:.2f}"
    )
