"""Sizes and counts as text. Imports no Qt."""

from __future__ import annotations

import re

_FACTORS = {
    "": 1, "b": 1,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_LONGEST = 20  # digits
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes of "2GiB", "512MiB", "1.5 GB" or "4096". K, M and G alone are powers of 1,024.

    Raises ValueError with the given text and the accepted forms.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text[:60]!r} is not a size; write it like 2GiB, 512MiB or 4096")
    if len(match[1]) > _LONGEST:
        raise ValueError(f"{match[1][:_LONGEST]}… is too large")
    return int(float(match[1]) * factor)


def format_bytes(count: float) -> str:
    """ "1.40 GiB", "512 MiB", "17 B": binary units, three significant digits."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            value = count / factor
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{count:.0f} B"


def format_count(count: int) -> str:
    """ "1.24 B", "12.3 M", "4.50 K", "17": three significant digits."""
    for name, factor in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if abs(count) >= factor:
            value = count / factor
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {name}"
    return f"{count:,}"


def format_value(value: object) -> str:
    """The value of a setting: "auto", "on", "2.00 GiB", "4,096", "0.9"."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return format_bytes(value) if value >= 2**20 else f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else f"{value}"
