"""The pixels of the block map are what the arrays say, at any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from tests.tiers import examples
from widgets.blocks.picture import paint
from widgets.blocks.scales import (
    LARGEST_PITCH,
    PER_CELL,
    SMALLEST_PITCH,
    Bars,
    Grid,
    OwnerSlots,
    bars,
    fit,
)
from widgets.blocks.texts import summary
from widgets.theme.tables import load_theme, mix, word

COLORS = load_theme("dark")
OWNERS = COLORS.series.owners


def snapshot(draw: st.DrawFn, num_blocks: int, block_size: int, num_owners: int) -> BlockSnapshot:
    states = draw(
        st.lists(
            st.integers(BLOCK_CACHED, num_owners - 1), min_size=num_blocks, max_size=num_blocks
        )
    )
    owner = np.array(states, np.int32)
    fills = st.integers(1, block_size)
    fill = np.array([draw(fills) if o >= 0 else 0 for o in states], np.int32)
    fill[owner == BLOCK_CACHED] = block_size
    refs = np.array([draw(st.integers(1, 3)) if o >= 0 else 0 for o in states], np.int32)
    names = tuple(f"r{i}" for i in range(num_owners))
    return BlockSnapshot(block_size, names, owner, refs, fill, owner == BLOCK_CACHED)


@settings(max_examples=examples(60))
@given(st.data())
def test_every_cell_shows_its_block(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(1, 40))
    block_size = data.draw(st.sampled_from((1, 8, 16)))
    blocks = snapshot(data.draw, num_blocks, block_size, data.draw(st.integers(1, 5)))
    columns = data.draw(st.integers(1, 12))
    grid = Grid(num_blocks, columns, data.draw(st.integers(SMALLEST_PITCH, LARGEST_PITCH)))
    slots = np.arange(len(blocks.owners))
    image = paint(blocks, slots, COLORS, grid)
    assert image.shape == (grid.height, grid.width)
    for block in range(num_blocks):
        left, top = grid.place(block)
        cell = image[top : top + grid.cell, left : left + grid.cell]
        owner = int(blocks.owner[block])
        if owner == BLOCK_FREE:
            assert (cell == COLORS.pixel("free")).all()
        elif owner == BLOCK_CACHED:
            assert (cell == COLORS.pixel("kv_cached")).all()
        else:
            color = OWNERS[owner % len(OWNERS)]
            corner = cell[:, 0]  # the mark of a shared block is in the middle
            level = int((corner == word(color)).sum())
            assert level == -(-int(blocks.fill[block]) * grid.cell // block_size)
            assert (corner[: grid.cell - level] == word(mix(color, COLORS.panel, 0.72))).all()
            has_mark = (cell == COLORS.pixel("text")).any()
            assert has_mark == (blocks.ref_count[block] > 1 and grid.cell >= 5)
    gaps = grid.pitch - grid.cell
    if gaps:
        assert (image[grid.cell :: grid.pitch] == COLORS.pixel("panel")).all()
    beyond = grid.rows * columns - num_blocks
    if beyond:
        assert (image[-grid.pitch :, -beyond * grid.pitch :] == COLORS.pixel("panel")).all()


def test_what_is_not_chosen_turns_pale() -> None:
    owner = np.array([0, 1, BLOCK_CACHED], np.int32)
    blocks = BlockSnapshot(
        4, ("a", "b"), owner, np.array([1, 2, 0], np.int32), np.full(3, 4, np.int32), owner < -1
    )
    grid = Grid(3, 3, 8)
    chosen = np.array([True, False, False])
    image = paint(blocks, np.array([0, 1]), COLORS, grid, chosen)
    assert image[0, 0] == word(OWNERS[0])
    pale = image[0, 8]
    assert pale not in (word(OWNERS[1]), COLORS.pixel("panel"))
    assert (image[:7, 8:15] == pale).all()  # no mark where it is not chosen


@settings(max_examples=examples(60))
@given(st.data())
def test_a_cell_of_several_blocks_shows_each_in_its_part(data: st.DataObject) -> None:
    num_blocks, per_cell = data.draw(st.integers(1, 80)), data.draw(st.sampled_from(PER_CELL[1:]))
    blocks = snapshot(data.draw, num_blocks, 16, data.draw(st.integers(1, 5)))
    grid = Grid(num_blocks, data.draw(st.integers(1, 6)), SMALLEST_PITCH, per_cell)
    image = paint(blocks, np.arange(len(blocks.owners)), COLORS, grid)
    assert image.shape == (grid.height, grid.width)
    single = paint(blocks, np.arange(len(blocks.owners)), COLORS, Grid(num_blocks, num_blocks, 24))
    for cell in range(grid.num_cells):
        left, top = grid.place(cell)
        pixels = image[top : top + grid.cell, left : left + grid.cell]
        least, most = grid.cell**2 // per_cell, -(-(grid.cell**2) // per_cell)
        wanted: dict[int, int] = {}
        for block in grid.blocks(cell).tolist():  # the lowest row of a cell of its own: full
            is_full = 2 * blocks.fill[block] >= 16 or blocks.owner[block] < 0
            color = int(single[22 if is_full else 0, 24 * block])
            wanted[color] = wanted.get(color, 0) + 1
        for color, count in wanted.items():
            assert count * least <= (pixels == color).sum() <= count * most


@given(st.integers(1, 100_000), st.integers(3, 2000), st.integers(0, 1500), st.sampled_from((1, 2)))
def test_the_grid_has_room_for_all_and_finds_each_again(
    num_blocks: int, width: int, height: int, ratio: int
) -> None:
    grid = fit(num_blocks, width, height, ratio)
    if grid is None:
        most = (width // (6 * ratio)) * (height // (6 * ratio))
        assert most * PER_CELL[-1] < num_blocks
        return
    assert grid.columns * grid.rows >= grid.num_cells
    assert grid.width <= width and grid.height <= height
    assert grid.pitch >= SMALLEST_PITCH * ratio
    for cell in {0, grid.num_cells // 2, grid.num_cells - 1}:
        left, top = grid.place(cell)
        assert grid.cell_at(left, top) == cell
        assert grid.cell_at(left + grid.pitch - 1, top + grid.pitch - 1) == cell
    assert grid.cell_at(grid.width, 0) is None and grid.cell_at(-1, 0) is None
    assert grid.cell_at(0, grid.height) is None


@settings(max_examples=examples(80))
@given(st.data())
def test_every_block_is_in_one_cell_at_each_scale(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(1, 300))
    owners = data.draw(st.integers(1, 12))
    blocks = snapshot(data.draw, num_blocks, 16, owners)
    width, height = data.draw(st.integers(1, 200)), data.draw(st.integers(12, 120))
    grid = fit(num_blocks, width, height)
    rows = bars(blocks, height, 16)
    scales: list[Grid | Bars] = [rows, *([grid] if grid else [])]
    for cells in scales:
        found = np.concatenate([cells.blocks(cell) for cell in range(cells.num_cells)])
        assert sorted(found.tolist()) == list(range(num_blocks))
    assert [row.num_blocks for row in rows.rows] == [
        len(rows.blocks(cell)) for cell in range(rows.num_cells)
    ]
    assert rows.num_cells * rows.pitch <= max(height, rows.num_cells)
    for cell in range(rows.num_cells):
        assert rows.cell_at(0, cell * rows.pitch) == cell
        assert rows.cell_at(9, (cell + 1) * rows.pitch - 1) == cell
    assert rows.cell_at(0, -1) is None and rows.cell_at(0, rows.num_cells * rows.pitch) is None


@given(st.data())
def test_a_share_of_none_or_all_is_said_of_none_or_all_alone(data: st.DataObject) -> None:
    """Also of one block in a thousand, which the map shows."""
    used, cached, free = (data.draw(st.sampled_from((0, 1, 5, 1000))) for _ in range(3))
    count = max(1, used + cached + free)
    owner = np.full(count, BLOCK_FREE, np.int32)
    owner[:used], owner[used : used + cached] = 0, BLOCK_CACHED
    zeros = np.zeros(count, np.int32)
    blocks = BlockSnapshot(16, ("r",), owner, zeros, zeros, owner == BLOCK_CACHED)
    said = summary(blocks).split(" · ")
    for name, state in (("used", 0), ("cached", BLOCK_CACHED), ("free", BLOCK_FREE)):
        is_it = owner == state
        assert (f"{name} 0 %" in said) == (not is_it.any())
        assert (f"{name} 100 %" in said) == bool(is_it.all())


def test_a_request_keeps_its_color_while_others_come_and_go() -> None:
    slots = OwnerSlots(3)
    first = slots.update(["a", "b"])
    assert list(first) == [0, 1]
    assert list(slots.update(["b", "c", "d"])) == [1, 0, 2]
    assert list(slots.update(["d", "b", "e", "f"])) == [2, 1, 0, 0]
