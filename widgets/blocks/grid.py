"""Where the cell of a block is, and which block a place belongs to. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_PITCH, SMALLEST_PITCH = 24, 3
_GAP_FROM = 4  # smaller cells touch: a gap would be most of them


@dataclass(frozen=True, slots=True)
class Grid:
    """`num_blocks` square cells, row by row. `pitch` is a cell with its gap, in pixels."""

    num_blocks: int
    columns: int
    pitch: int

    @property
    def rows(self) -> int:
        return -(-self.num_blocks // self.columns)

    @property
    def cell(self) -> int:
        """Pixels of a cell without its gap."""
        return self.pitch - 1 if self.pitch >= _GAP_FROM else self.pitch

    @property
    def width(self) -> int:
        return self.columns * self.pitch

    @property
    def height(self) -> int:
        return self.rows * self.pitch

    def place(self, block: int) -> tuple[int, int]:
        """Left and top of a block's cell, in pixels."""
        row, column = divmod(block, self.columns)
        return column * self.pitch, row * self.pitch

    def block_at(self, x: float, y: float) -> int | None:
        """The block whose cell (or gap) is at a place; None beside the map."""
        column, row = int(x // self.pitch), int(y // self.pitch)
        if not (0 <= column < self.columns and row >= 0):
            return None
        block = row * self.columns + column
        return block if block < self.num_blocks else None


def fit(num_blocks: int, width: int, height: int) -> Grid:
    """The grid with the largest cells that shows all blocks in `width` x `height` pixels; with the
    smallest cells, and higher than that, where there is none."""
    for pitch in range(LARGEST_PITCH, SMALLEST_PITCH - 1, -1):
        columns, rows = width // pitch, height // pitch
        if columns * rows >= num_blocks:
            return Grid(num_blocks, _tidy(num_blocks, columns, rows), pitch)
    return Grid(num_blocks, max(1, width // SMALLEST_PITCH), SMALLEST_PITCH)


def _tidy(num_blocks: int, columns: int, rows: int) -> int:
    """A multiple of eight columns is easier to count in, if the blocks still fit."""
    rounded = columns // 8 * 8
    return rounded if rounded and rounded * rows >= num_blocks else max(1, columns)
