"""Where the callout of a lesson stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QRect, QSize

from app.features.learn.callout import ARROW, RIM, beside


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
        assert not box.adjusted(ARROW, 0, -ARROW, 0).intersects(clear)


@pytest.mark.parametrize("top", (40, 300, 560))
@pytest.mark.parametrize("width", (1000, 1280))
def test_the_callout_is_next_to_a_row_without_room_at_its_sides(top: int, width: int) -> None:
    """With one edge in common, or below the charts at its side: a row of the settings."""
    row, size = QRect(97, top, 293, 80), QSize(344, 150)
    room = QRect(8, 8, width - 16, 780)
    clear = [QRect(417, 100, width - 425, 350), QRect(417, 460, width - 425, 100)]
    box = QRect(beside(size, row, clear, room), size)
    if box.left() > row.right():
        assert not any(box.intersects(one) for one in clear)
        assert box.top() < row.center().y() < box.bottom()
        return
    assert box.top() - row.bottom() == 8 or row.top() - box.bottom() == 9
    assert RIM in (row.left() - box.left(), box.right() + 1 - row.right())


@pytest.mark.parametrize("size", (QSize(320, 172), QSize(320, 256)))
@pytest.mark.parametrize("row_top", (140, 420, 640))
def test_the_callout_beside_the_result_leaves_the_setting_free(size: QSize, row_top: int) -> None:
    """The result is at the right of the settings, and the changed one stays in view."""
    room, result = QRect(8, 8, 1264, 784), QRect(417, 175, 855, 64)
    rail, strip, row = QRect(10, 45, 70, 747), QRect(90, 45, 1182, 50), QRect(102, row_top, 288, 80)
    clear = [rail, strip, QRect(417, 104, 855, 62), QRect(417, 247, 855, 266), row]
    box = QRect(beside(size, result, clear, room), size)
    assert room.contains(box) and not box.intersects(result)
    assert not any(box.adjusted(ARROW, 0, -ARROW, 0).intersects(one) for one in clear)
    above, below = row.top() - box.bottom(), box.top() - row.bottom()
    assert 0 < max(above, below) <= (9 if row_top < 400 else row_top)
