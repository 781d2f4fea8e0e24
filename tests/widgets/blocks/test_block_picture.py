"""The pixels of the block map are what the arrays say, at any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from widgets.blocks.picture import LARGEST_PITCH, SMALLEST_PITCH, Grid, OwnerSlots, fit, paint
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


@settings(max_examples=60)
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


@given(st.integers(1, 100_000), st.integers(3, 2000), st.integers(0, 1500))
def test_the_grid_has_room_for_all_and_finds_each_again(
    num_blocks: int, width: int, height: int
) -> None:
    grid = fit(num_blocks, width, height)
    assert grid.columns * grid.rows >= num_blocks and grid.width <= width
    assert grid.height <= height or grid.pitch == SMALLEST_PITCH
    for block in {0, num_blocks // 2, num_blocks - 1}:
        left, top = grid.place(block)
        assert grid.block_at(left, top) == block
        assert grid.block_at(left + grid.pitch - 1, top + grid.pitch - 1) == block
    assert grid.block_at(grid.width, 0) is None and grid.block_at(-1, 0) is None
    assert grid.block_at(0, grid.height) is None


def test_a_request_keeps_its_color_while_others_come_and_go() -> None:
    slots = OwnerSlots(3)
    first = slots.update(["a", "b"])
    assert list(first) == [0, 1]
    assert list(slots.update(["b", "c", "d"])) == [1, 0, 2]
    assert list(slots.update(["d", "b", "e", "f"])) == [2, 1, 0, 0]
