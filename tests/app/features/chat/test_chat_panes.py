"""Panes of the chat page that fold by themselves, over widths and text sizes. No window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.features.chat.panes import (
    ALL_FROM,
    CONVERSATION_WIDTH,
    INSPECTOR_WIDTH,
    LIST_FROM,
    LIST_WIDTH,
    Folding,
    Shown,
)
from widgets.theme.theme import SPACE_2

WIDTHS = st.integers(300, 3000)
FOLDINGS = st.builds(
    Folding, WIDTHS, st.booleans(), st.booleans(), st.sampled_from(["", "list", "inspector"])
)


@given(FOLDINGS)
def test_something_is_shown_and_all_of_it_has_room(folding: Folding) -> None:
    shown = folding.shown
    assert any(shown)
    needed = (
        (LIST_WIDTH + SPACE_2) * shown.list
        + (INSPECTOR_WIDTH + SPACE_2) * shown.inspector
        + CONVERSATION_WIDTH
    )
    assert sum(shown) == 1 or (shown.conversation and needed <= folding.width)


@given(FOLDINGS)
def test_a_choice_counts_where_there_is_room_and_a_folded_pane_is_within_reach(
    folding: Folding,
) -> None:
    if folding.width >= ALL_FROM:
        assert folding.shown == Shown(folding.list_wanted, True, folding.inspector_wanted)
    if folding.width >= LIST_FROM and not folding.front:
        assert folding.shown.list is folding.list_wanted
    for front, at in (("list", 0), ("inspector", 2)):
        opened = folding._replace(front=front)
        is_folded = opened.folds_list if front == "list" else opened.folds_inspector
        assert not is_folded or opened.shown[at]


@given(WIDTHS, st.booleans(), st.booleans())
def test_a_wider_window_never_folds_more(width: int, has_list: bool, has_inspector: bool) -> None:
    before = Folding(width, has_list, has_inspector).shown
    after = Folding(width + 1, has_list, has_inspector).shown
    assert all(now or not then for then, now in zip(before, after, strict=True))
