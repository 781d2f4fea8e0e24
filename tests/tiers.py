"""Which parameters of a test the fast tier runs, and how many examples of a property."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest
from hypothesis import settings

COMMON = ("llama", "gemma3", "gpt_oss", "mixtral", "gpt2", "llama4")
"""Families with one of each kind of layer: experts, windows, chunks, sinks, learned positions."""


def tiered(values: Iterable[Any], fast: Container[Any] = COMMON) -> list[Any]:
    """Parameters of a test (several each: tuples); all but the `fast` are in the slow tier."""
    return [_in_tier(one, one in fast) for one in values]


def first_fast(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test (several each: tuples); all after the first `count` are in the slow
    tier."""
    return [_in_tier(one, index < count) for index, one in enumerate(values)]


def _in_tier(one: Any, is_fast: bool) -> Any:
    values = one if type(one) is tuple else (one,)  # a named one is one parameter
    return pytest.param(*values, marks=() if is_fast else pytest.mark.slow)


def examples(count: int) -> int:
    """Of a property whose examples are dear: `count` in the slow tier, a quarter in the fast one,
    as the profile has it (`conftest.py`)."""
    return max(count * settings().max_examples // 100, 2)
