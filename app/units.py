"""Sizes as they are typed. Their text is `engine.units`. Imports no Qt."""

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
