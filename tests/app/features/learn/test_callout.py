"""Where the callout of a lesson stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QRect, QSize

from app.features.learn.callout import RIM, beside


@given(st.data())
def test_the_callout_covers_no_target_that_leaves_room(data: st.DataObject) -> None:
    room, size = QRect(0, 0, 1000, 600), QSize(300, 200)
    wide = data.draw(st.integers(1, 1000))
    left = data.draw(st.integers(0, 1000 - wide))
    target = QRect(left, data.draw(st.integers(0, 560)), wide, data.draw(st.integers(1, 40)))
    clear = QRect(320, 0, 680, 150)
    box = QRect(beside(size, target, [clear], room), size)
    assert room.contains(box) and not box.intersects(target)
    if target.right() < 320:  # a row of the list at the left
        assert not box.intersects(clear)


@pytest.mark.parametrize("top", (40, 300, 560))
@pytest.mark.parametrize("width", (1000, 1280))
def test_the_callout_is_next_to_a_row_without_room_at_its_sides(top: int, width: int) -> None:
    """With one edge in common: a row of the settings, between the rail and the charts."""
    row, size = QRect(97, top, 293, 80), QSize(344, 150)
    room = QRect(8, 8, width - 16, 780)
    clear = [QRect(417, 100, width - 425, 350), QRect(417, 460, width - 425, 100)]
    box = QRect(beside(size, row, clear, room), size)
    assert box.top() - row.bottom() == 8 or row.top() - box.bottom() == 9
    assert RIM in (row.left() - box.left(), box.right() + 1 - row.right())
