"""Which parameters of a test the fast tier runs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest

COMMON = ("llama", "gemma3", "gpt_oss", "mixtral", "gpt2", "llama4")
"""Families with one of each kind of layer: experts, windows, chunks, sinks, learned positions."""


def tiered(values: Iterable[Any], fast: Container[Any] = COMMON) -> list[Any]:
    """Parameters of a test (several each: tuples); all but the `fast` are in the slow tier."""
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=() if one in fast else pytest.mark.slow,
        )
        for one in values
    ]
