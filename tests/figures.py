"""Numbers in a sentence: tests compare them, not the words around them."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[float]:
    """ "3.42 tokens, 2,114 of 2,890" is [3.42, 2114.0, 2890.0]."""
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
