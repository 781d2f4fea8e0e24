"""What a cell of the block map stands for, and where it is. No Qt.

    Grid, one block per cell     in a large area
    Grid, a range per cell       2, 4, 8 or 16 blocks
    Bars                         a row per request, of a large cache in a small area

Every block is in one cell at each scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot

LARGEST_PITCH, SMALLEST_PITCH = 64, 6
PER_CELL = (1, 2, 4, 8, 16)
"""Blocks of a cell: the smallest cell has 25 pixels, at least one for each block."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Square cells of `per_cell` consecutive blocks, row by row. `pitch`: pixels of a cell with its
    gap."""

    num_blocks: int
    columns: int
    pitch: int
    per_cell: int = 1

    @property
    def num_cells(self) -> int:
        return -(-self.num_blocks // self.per_cell)

    @property
    def rows(self) -> int:
        return -(-self.num_cells // self.columns)

    @property
    def cell(self) -> int:
        """Pixels of a cell without its gap."""
        return self.pitch - 1

    @property
    def width(self) -> int:
        return self.columns * self.pitch

    @property
    def height(self) -> int:
        return self.rows * self.pitch

    def place(self, cell: int) -> tuple[int, int]:
        """Left and top of a cell, in pixels."""
        row, column = divmod(cell, self.columns)
        return column * self.pitch, row * self.pitch

    def cell_at(self, x: float, y: float) -> int | None:
        """The cell at a point, gaps included; None outside the map."""
        column, row = int(x // self.pitch), int(y // self.pitch)
        if not (0 <= column < self.columns and row >= 0):
            return None
        cell = row * self.columns + column
        return cell if cell < self.num_cells else None

    def blocks(self, cell: int) -> NDArray[np.int64]:
        first = cell * self.per_cell
        return np.arange(first, min(first + self.per_cell, self.num_blocks))


def fit(num_blocks: int, width: int, height: int, ratio: float = 1.0) -> Grid | None:
    """The grid of the fewest blocks per cell, and then of the largest cells, that shows all blocks
    in `width` x `height` device pixels; None if there is none. `ratio`: device pixels per pixel."""
    for per_cell in PER_CELL:
        count = -(-num_blocks // per_cell)
        for size in range(LARGEST_PITCH, SMALLEST_PITCH - 1, -1):
            pitch = round(size * ratio)
            columns, rows = width // pitch, height // pitch
            if columns * rows >= count:
                return Grid(num_blocks, _tidy(count, columns, rows), pitch, per_cell)
    return None


def _tidy(count: int, columns: int, rows: int) -> int:
    """Use a multiple of eight columns if the cells still fit: easier to count."""
    rounded = columns // 8 * 8
    return rounded if rounded and rounded * rows >= count else max(1, columns)


class Use(StrEnum):
    """Of the blocks in a row of `Bars`."""

    REQUEST = "request"
    OTHERS = "others"  # the requests that have no row of their own
    CACHED = "cached"
    FREE = "free"


class Row(NamedTuple):
    """`owners`: indices of its requests, by `BlockSnapshot.owners`."""

    use: Use
    owners: tuple[int, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Bars:
    """A row for each request, then one for cached and one for free blocks. `pitch`: pixels of a
    row. A shared block counts for its first request."""

    owner: NDArray[np.int32]
    rows: tuple[Row, ...]
    pitch: int

    columns = 1

    @property
    def num_blocks(self) -> int:
        return len(self.owner)

    @property
    def num_cells(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Blocks of a full bar. Free blocks have the rest of the cache: they are no measure."""
        return max(1, *(row.num_blocks for row in self.rows if row.use is not Use.FREE))

    def cell_at(self, x: float, y: float) -> int | None:
        row = int(y // self.pitch)
        return row if 0 <= row < len(self.rows) else None

    def blocks(self, cell: int) -> NDArray[np.int64]:
        row = self.rows[cell]
        special = {Use.CACHED: BLOCK_CACHED, Use.FREE: BLOCK_FREE}.get(row.use)
        wanted = row.owners if special is None else (special,)
        return np.flatnonzero(np.isin(self.owner, wanted))


def bars(blocks: BlockSnapshot, height: int, line: int) -> Bars:
    """Rows for `height` pixels, `line` each or less. Without room for every request, the largest
    keep their rows."""
    room = max(3, height // line)
    counts = np.bincount(blocks.owner[blocks.owner >= 0], minlength=len(blocks.owners))
    held = [int(i) for i in np.flatnonzero(counts)]
    shown, others = held, list[int]()
    if len(held) > room - 2:
        by_size = sorted(held, key=lambda i: (-counts[i], i))
        shown, others = sorted(by_size[: room - 3]), sorted(by_size[room - 3 :])
    rows = [Row(Use.REQUEST, (i,), int(counts[i])) for i in shown]
    if others:
        rows.append(Row(Use.OTHERS, tuple(others), int(counts[others].sum())))
    rows.append(Row(Use.CACHED, (), blocks.num_cached))
    rows.append(Row(Use.FREE, (), blocks.num_free))
    return Bars(blocks.owner, tuple(rows), max(1, min(line, height // len(rows))))


class OwnerSlots:
    """Assigns each request the colour used by the fewest others, for as long as it is shown."""

    def __init__(self, num_colors: int) -> None:
        self._num_colors = num_colors
        self._slots: dict[str, int] = {}

    def update(self, owners: Sequence[str]) -> NDArray[np.int64]:
        """Colours of `owners`, in their order; those of all other requests are released."""
        self._slots = {name: self._slots[name] for name in owners if name in self._slots}
        used = [0] * self._num_colors
        for slot in self._slots.values():
            used[slot] += 1
        for name in owners:
            if name not in self._slots:
                slot = used.index(min(used))
                used[slot] += 1
                self._slots[name] = slot
        return np.array([self._slots[name] for name in owners], np.int64)
