"""Layout and pixels of the KV block map. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from widgets.theme.tables import Pixels, Theme, mix, rgb, word

LARGEST_PITCH, SMALLEST_PITCH = 24, 3
_GAP_FROM = 4  # smaller cells touch: a gap would be most of them


@dataclass(frozen=True, slots=True)
class Grid:
    """`num_blocks` square cells, row by row. `pitch`: pixels of a cell with its gap."""

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
        """The block at a point, gaps included; None outside the map."""
        column, row = int(x // self.pitch), int(y // self.pitch)
        if not (0 <= column < self.columns and row >= 0):
            return None
        block = row * self.columns + column
        return block if block < self.num_blocks else None


def fit(num_blocks: int, width: int, height: int) -> Grid:
    """The grid with the largest cells that shows all blocks in `width` x `height` pixels; if there
    is none, the smallest cells in a higher grid."""
    for pitch in range(LARGEST_PITCH, SMALLEST_PITCH - 1, -1):
        columns, rows = width // pitch, height // pitch
        if columns * rows >= num_blocks:
            return Grid(num_blocks, _tidy(num_blocks, columns, rows), pitch)
    return Grid(num_blocks, max(1, width // SMALLEST_PITCH), SMALLEST_PITCH)


def _tidy(num_blocks: int, columns: int, rows: int) -> int:
    """Use a multiple of eight columns if the blocks still fit: easier to count."""
    rounded = columns // 8 * 8
    return rounded if rounded and rounded * rows >= num_blocks else max(1, columns)


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


_EMPTY_SHARE = 0.72  # of the panel in the part of an owned block that holds no token yet
_PALE_SHARE = 0.8  # of the panel in what is not of the chosen request
_MARKED_FROM = 5  # pixels of a cell that has room for the mark of a shared block


def paint(
    blocks: BlockSnapshot,
    slots: NDArray[np.int64],
    colors: Theme,
    grid: Grid,
    chosen: NDArray[np.bool_] | None = None,
) -> Pixels:
    """Pixels [grid.height, grid.width]. slots[i]: index of blocks.owners[i] in the colours
    `owners`, modulo their number. chosen[b]: blocks that are not dimmed; None: all."""
    full, empty = _cell_colors(blocks, slots, colors)
    if chosen is not None:
        pale = _pale(colors, full)
        full, empty = np.where(chosen, full, pale), np.where(chosen, empty, pale)
    cells = grid.rows * grid.columns
    background = colors.pixel("panel")
    full, empty = _padded(full, cells, background), _padded(empty, cells, background)
    levels = _padded(_levels(blocks, grid.cell), cells, 0)
    image = np.full((grid.rows, grid.pitch, grid.columns, grid.pitch), background, np.uint32)
    shape = (grid.rows, grid.columns, 1)
    for line in range(grid.cell):
        is_full = levels >= grid.cell - line
        image[:, line, :, : grid.cell] = np.where(is_full, full, empty).reshape(shape)
    _mark_shared(image, blocks, chosen, colors, grid)
    return image.reshape(grid.height, grid.width)


def _cell_colors(
    blocks: BlockSnapshot, slots: NDArray[np.int64], colors: Theme
) -> tuple[Pixels, Pixels]:
    """Colours of each block: of its filled and of its empty part."""
    owners = colors.series.owners
    count = len(owners)
    table = np.array(
        [word(c) for c in owners]
        + [word(mix(c, colors.panel, _EMPTY_SHARE)) for c in owners]
        + [colors.pixel("free"), colors.pixel("kv_cached")],
        np.uint32,
    )
    is_owned = blocks.owner >= 0
    place = np.full(blocks.num_blocks, 2 * count)
    place[blocks.owner == BLOCK_CACHED] = 2 * count + 1
    place[is_owned] = slots[blocks.owner[is_owned]] % count
    full = table[place]
    empty = full.copy()
    empty[is_owned] = table[place[is_owned] + count]
    return full, empty


def _levels(blocks: BlockSnapshot, cell: int) -> NDArray[np.int64]:
    """Filled pixel rows of each cell, from below; at least one if it holds a token."""
    levels = -(-blocks.fill.astype(np.int64) * cell // blocks.block_size)
    levels[blocks.owner == BLOCK_FREE] = cell
    return levels


def _pale(colors: Theme, pixels: Pixels) -> Pixels:
    red, green, blue = rgb(colors.panel)
    result = np.zeros_like(pixels)
    for shift, ground in ((16, red), (8, green), (0, blue)):
        channel = (pixels >> shift & 0xFF) * (1 - _PALE_SHARE) + ground * _PALE_SHARE
        result |= channel.astype(np.uint32) << shift
    return result | np.uint32(0xFF000000)


def _padded(values: NDArray, cells: int, filler: int) -> NDArray:
    """`values`, padded with `filler` to whole rows."""
    rest = np.full(cells - len(values), filler, values.dtype)
    return np.concatenate([values, rest])


def _mark_shared(
    image: NDArray[np.uint32],
    blocks: BlockSnapshot,
    chosen: NDArray[np.bool_] | None,
    colors: Theme,
    grid: Grid,
) -> None:
    """A square in the middle of every block held by several requests."""
    shared = blocks.ref_count > 1
    if chosen is not None:
        shared &= chosen
    if grid.cell < _MARKED_FROM:
        return
    row, column = np.divmod(np.flatnonzero(shared), grid.columns)
    side = max(1, grid.cell // 3)
    first = (grid.cell - side) // 2
    for y in range(first, first + side):
        for x in range(first, first + side):
            image[row, y, column, x] = colors.pixel("text")
