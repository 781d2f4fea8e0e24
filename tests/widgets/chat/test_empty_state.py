"""What a new conversation proposes is seen whole, in a high window and in a low one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.chat.empty_state import EmptyState, Shape
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import apply_text_size

SUGGESTIONS = [
    (f"Suggestion {number}", "A question that is long enough for two lines of its card.")
    for number in range(6)
]


@pytest.fixture
def empty(qtbot: QtBot) -> EmptyState:
    made = EmptyState()
    qtbot.addWidget(made)
    made.set_title("A model", "4 M parameters")
    made.set_suggestions(SUGGESTIONS)
    made.show()
    return made


@pytest.fixture
def usual_size(qapp: QApplication) -> Iterator[None]:
    yield
    apply_text_size(qapp, 100)


def lowest(empty: EmptyState) -> int:
    """Pixels from the top of what is seen to the bottom of the last card."""
    card = empty.cards[-1]
    return card.mapTo(empty.viewport(), card.rect().bottomLeft()).y()


@pytest.mark.parametrize(("width", "height"), [(620, 160), (900, 160), (620, 500), (1200, 900)])
def test_every_suggestion_is_in_view(
    qtbot: QtBot, empty: EmptyState, width: int, height: int
) -> None:
    empty.resize(width, height)
    qtbot.waitUntil(lambda: 0 < lowest(empty) < empty.viewport().height(), timeout=10_000)
    assert all(card._text.isVisible() is (height > 300) for card in empty.cards)


@pytest.mark.parametrize(("width", "columns"), [(400, 2), (900, 3)])
def test_one_line_of_each_where_it_has_room(
    qtbot: QtBot, empty: EmptyState, width: int, columns: int
) -> None:
    """Between the room for all of a question and that for a title alone."""
    height = empty._height_of(Shape(1, columns))
    empty.resize(width, height)
    qtbot.waitUntil(lambda: empty.shape == Shape(1, columns), timeout=10_000)
    assert all(card._line.isVisible() and not card._text.isVisible() for card in empty.cards)
    qtbot.waitUntil(lambda: 0 < lowest(empty) < empty.viewport().height(), timeout=10_000)
    empty.resize(width, height - 1)
    qtbot.waitUntil(lambda: empty.shape == Shape(0, columns), timeout=10_000)
    assert not any(card._line.isVisible() for card in empty.cards)


def test_titles_are_whole_with_large_text(
    qtbot: QtBot, qapp: QApplication, empty: EmptyState, usual_size: None
) -> None:
    """Three in a row, in a window of 1000 pixels."""
    apply_text_size(qapp, 160)
    empty.set_suggestions([("Speculative decoding", "Explain speculative decoding.")] * 6)
    empty.resize(860, 240)
    qtbot.waitUntil(lambda: empty.shape == Shape(0, 3), timeout=10_000)
    titles = [card.findChild(ElidedLine) for card in empty.cards]
    qtbot.waitUntil(lambda: not any(one is None or one.is_cut() for one in titles), timeout=10_000)


def test_a_prompt_that_is_not_seen_is_told(qtbot: QtBot, empty: EmptyState) -> None:
    empty.resize(620, 160)
    qtbot.waitUntil(lambda: empty.is_low, timeout=10_000)
    assert [card.toolTip() for card in empty.cards] == ["\n".join(both) for both in SUGGESTIONS]
    empty.resize(620, 600)
    qtbot.waitUntil(lambda: not empty.is_low, timeout=10_000)
    assert not any(card.toolTip() for card in empty.cards)
    empty.set_suggestions([])
    assert empty.cards == []
