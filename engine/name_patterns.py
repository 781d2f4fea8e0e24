"""Matches regular expressions of a checkpoint's settings against the names of its modules.

A pattern may backtrack for years or take all memory to compile, so another process matches.
"""

from __future__ import annotations

import re
from functools import lru_cache

from engine.errors import CheckpointError
from engine.json_file import shown
from engine.limited_process import LimitExceeded, ProcessCrashed, run_limited

_SECONDS = 10.0
_MAX_BYTES = 2**29
_REMEDY = "Download the model again, or fix the settings if you created the model folder."


def first_matches(patterns: tuple[str, ...], names: tuple[str, ...], source: str) -> dict[str, int]:
    """Name -> index of the first pattern that matches from its start; names without one are absent.

    Raises CheckpointError for an invalid pattern, and where matching takes too long. source: the
    object in the settings that has the patterns.
    """
    if not patterns:
        return {}
    try:
        found = _matched(patterns, names, source)
    except (LimitExceeded, ProcessCrashed) as error:
        raise CheckpointError(
            f"Matching the patterns of {source} failed (patterns: {len(patterns)}, module names: "
            f"{len(names):,}). {error.cause}",
            _REMEDY,
        ) from None
    return {name: index for name, index in zip(names, found, strict=True) if index >= 0}


@lru_cache(maxsize=8)
def _matched(patterns: tuple[str, ...], names: tuple[str, ...], source: str) -> list[int]:
    found: list[int] = run_limited(
        match_all, patterns, names, source, seconds=_SECONDS, max_bytes=_MAX_BYTES
    )
    return found


def match_all(patterns: list[str], names: list[str], source: str) -> list[int]:
    """The index of each name's first pattern, -1 for none."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            reason = "invalid" if isinstance(error, re.error) else "too complex"
            raise CheckpointError(
                f"The pattern {shown(pattern)} in {source} is {reason}.", _REMEDY
            ) from None
    return [
        next((index for index, found in enumerate(compiled) if found.match(name)), -1)
        for name in names
    ]
