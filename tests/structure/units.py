"""Values with a unit that a file formats by itself: `engine.units` does it for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.structure.source import Source

FORMATTERS = "engine/units.py"
UNIT = re.compile(
    r"^[ \u00a0]?(?:ms|s|µs|h|[KMGT]i?B|tok/s|tokens/s|[GT]B/s|req/s|[GT]FLOP(?:/s)?|×)(?![\w/])"
)
_NUMBER = re.compile(r"[,.\d]*[efg]|,")
"""A format specification of a number: what rounds it, or groups its digits."""


def formatted_units(source: Source) -> list[str]:
    """Places in f-strings where a number is rounded before a unit of time, size, rate or factor."""
    return [
        f"{path}:{line}"
        for path, tree in source.trees.items()
        if path != FORMATTERS
        for line in _of(tree)
    ]


def _of(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, after in zip(node.values, node.values[1:], strict=False):
                text = str(after.value) if isinstance(after, ast.Constant) else ""
                if _is_number(value) and UNIT.match(text):
                    yield value.lineno


def _is_number(value: ast.expr) -> bool:
    if not isinstance(value, ast.FormattedValue) or not isinstance(
        value.format_spec, ast.JoinedStr
    ):
        return False
    spec = "".join(p.value for p in value.format_spec.values if isinstance(p, ast.Constant))
    return bool(_NUMBER.fullmatch(spec))
