"""Pixels of the KV block map. No Qt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from widgets.blocks.scales import Grid
from widgets.theme.tables import Pixels, Theme, mix, rgb, word

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
    background = colors.pixel("panel")
    image = np.full((grid.rows, grid.pitch, grid.columns, grid.pitch), background, np.uint32)
    if grid.per_cell == 1:
        _paint_levels(image, blocks, full, empty, grid)
        _mark_shared(image, blocks, chosen, colors, grid)
    else:
        _paint_mixed(image, blocks, full, empty, grid)
    return image.reshape(grid.height, grid.width)


def _paint_levels(
    image: NDArray[np.uint32], blocks: BlockSnapshot, full: Pixels, empty: Pixels, grid: Grid
) -> None:
    """Each block is full as far as it has tokens."""
    cells, background = grid.rows * grid.columns, image[0, 0, 0, -1]
    full, empty = _padded(full, cells, background), _padded(empty, cells, background)
    levels = _padded(_levels(blocks, grid.cell), cells, 0)
    shape = (grid.rows, grid.columns, 1)
    for line in range(grid.cell):
        is_full = levels >= grid.cell - line
        image[:, line, :, : grid.cell] = np.where(is_full, full, empty).reshape(shape)


def _paint_mixed(
    image: NDArray[np.uint32], blocks: BlockSnapshot, full: Pixels, empty: Pixels, grid: Grid
) -> None:
    """The blocks of a cell have equal parts of its pixels, from below: those in use by request,
    then cached, then free ones. A block in use that is less than half full is pale."""
    cells, side, background = grid.rows * grid.columns, grid.cell, image[0, 0, 0, -1]
    shown = np.where(2 * blocks.fill >= blocks.block_size, full, empty)
    order = blocks.owner.astype(np.int64)
    order[order == BLOCK_CACHED] = len(blocks.owners)
    order[order == BLOCK_FREE] = len(blocks.owners) + 1
    shape = cells, grid.per_cell
    shown = _padded(shown, cells * grid.per_cell, background).reshape(shape)
    order = _padded(order, cells * grid.per_cell, len(blocks.owners) + 2).reshape(shape)
    shown = np.take_along_axis(shown, np.argsort(order, axis=1, kind="stable"), axis=1)
    part = np.arange(side * side).reshape(side, side)[::-1] * grid.per_cell // (side * side)
    pixels = shown[:, part].reshape(grid.rows, grid.columns, side, side)
    image[:, :side, :, :side] = pixels.transpose(0, 2, 1, 3)


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
    inside = np.arange(first, first + side)
    row, column = row[:, None, None], column[:, None, None]
    image[row, inside[:, None], column, inside] = colors.pixel("text")
