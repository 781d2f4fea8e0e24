"""A cell: the smallest thing that is measured, and what came of it. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CELL_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Cell:
    """`kind` names the function that measures (see `worker.KINDS`), `settings` are its arguments.

    Cells of one `group` share what is costly to make (a loaded model) and run one after the other
    in one process. rank: those of a lower rank run first, in all parts. limit_s: longer than this
    and it hangs.
    """

    name: str
    part: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    rank: int = 0
    limit_s: float = CELL_LIMIT_S


@dataclass(frozen=True, slots=True)
class Result:
    """status: "ok"; "failed" with `error`; figures may be there for both. `commit`: of the code
    that was measured."""

    name: str
    part: str
    kind: str
    status: str
    figures: Mapping[str, Any]
    error: str = ""
    seconds: float = 0.0
    finished: str = ""
    commit: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


def result_of(
    cell: Cell, figures: Mapping[str, Any], *, error: str = "", seconds: float = 0.0,
    commit: str = "",
) -> Result:  # fmt: skip
    return Result(
        name=cell.name,
        part=cell.part,
        kind=cell.kind,
        status="failed" if error else "ok",
        figures=dict(figures),
        error=error,
        seconds=round(seconds, 3),
        finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        commit=commit,
        settings=dict(cell.settings),
    )


def in_order(cells: list[Cell]) -> list[Cell]:
    """By rank, and within a rank group after group, in the order in which the groups first come."""
    places: dict[str, int] = {}
    for index, cell in enumerate(cells):
        places.setdefault(cell.group or cell.name, index)
    return sorted(cells, key=lambda cell: (cell.rank, places[cell.group or cell.name]))
