"""A cell: the smallest thing that is measured, and its result. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """`kind` names the function that measures (`run_all.KINDS`), `settings` are its arguments.

    Cells of one `group` share a loaded model and run one after the other. rank: lower ranks run
    first, in all parts.
    """

    name: str
    part: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a cell, or its error."""

    name: str
    part: str
    kind: str
    figures: Mapping[str, Any]
    error: str = ""
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return not self.error


def in_order(cells: list[Cell]) -> list[Cell]:
    """By rank, and within a rank group after group, in the order in which the groups first come."""
    first: dict[str, int] = {}
    for index, cell in enumerate(cells):
        first.setdefault(cell.group or cell.name, index)
    return sorted(cells, key=lambda cell: (cell.rank, first[cell.group or cell.name]))
