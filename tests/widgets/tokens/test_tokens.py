"""The tokens of a reply: their order and colours, and what mouse and keyboard do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QPointF, QSize, Qt
from PySide6.QtWidgets import QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from tests.figures import numbers
from widgets.theme.tables import MINIMUM_TEXT_CONTRAST, contrast
from widgets.theme.theme import apply_text_size, apply_theme, load_theme, theme
from widgets.tokens.paint import PAINTS, entropy_level, heat, probability_level, rank_level
from widgets.tokens.popover import HINT, LARGEST_CHOICES, NO_ALTERNATIVES, TokensPopover
from widgets.tokens.record import (
    Alternative,
    Origin,
    TokenRecord,
    percent,
    quoted,
    shown,
    summary_text,
    token_text,
)
from widgets.tokens.strip import NONE, flow

RIGHT, LEFT, DOWN, UP = Qt.Key.Key_Right, Qt.Key.Key_Left, Qt.Key.Key_Down, Qt.Key.Key_Up


def token(number: int, text: str, share: float, rank: int = 1, **others: float) -> TokenRecord:
    """One token; `others`: text -> probability of its alternatives, itself not among them."""
    known = [Alternative(number, text, math.log(share))] if rank <= len(others) + 1 else []
    known += [
        Alternative(1000 * number + place, word, math.log(p))
        for place, (word, p) in enumerate(others.items())
    ]
    known.sort(key=lambda choice: -choice.logprob)
    return TokenRecord(number, text, math.log(share), rank, tuple(known))


REPLY = (
    token(1, "The", 0.95, a=0.03),
    token(2, " cache", 0.3, 2, memory=0.5),
    token(3, " holds", 0.02, 40, keeps=0.6, has=0.2),
    token(4, "\n", 0.8, end=0.1),
    token(5, " keys", 0.07, 3, values=0.5, pages=0.3),
)


@pytest.fixture
def popover(qtbot: QtBot, qapp: QApplication) -> Iterator[TokensPopover]:
    apply_theme(qapp, "dark")
    window = QWidget()
    window.resize(900, 700)
    button = QPushButton("open", window)
    button.move(500, 640)
    qtbot.addWidget(window)
    window.show()
    made = TokensPopover(window)
    made.show_tokens(REPLY)
    made.toggle_at(button)
    yield made  # and the window lives as long


@given(
    tokens=st.lists(st.tuples(st.floats(0.5, 300), st.booleans()), max_size=60),
    room=st.floats(20, 400),
)
def test_tokens_flow_in_order_inside_the_room(
    tokens: list[tuple[float, bool]], room: float
) -> None:
    places = flow([width for width, _ in tokens], [ends for _, ends in tokens], room)
    assert len(places) == len(tokens)
    for place, (width, _) in zip(places, tokens, strict=True):
        assert place.left >= 0 and place.left + place.width <= room + 1e-6
        assert place.width == min(width, room)
    for number, (one, following) in enumerate(pairwise(places)):
        if one.row == following.row:
            assert following.left == one.left + one.width and not tokens[number][1]
        else:
            assert following.row == one.row + 1 and following.left == 0


@given(shares=st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_entropy_is_between_nothing_and_that_of_equal_choices(shares: list[float]) -> None:
    total = sum(shares) * 1.01
    known = tuple(Alternative(n, str(n), math.log(p / total)) for n, p in enumerate(shares))
    record = TokenRecord(0, "0", known[0].logprob, 1, known)
    assert record.entropy_bits is not None
    assert -1e-9 <= record.entropy_bits <= math.log2(len(shares) + 1) + 1e-9


def test_nothing_is_said_of_entropy_where_no_alternatives_are_known() -> None:
    record = TokenRecord(1, "a", -0.1, 1)
    assert record.entropy_bits is None and entropy_level(record) is None
    assert [choice.token_id for choice in record.choices] == [1]
    assert "entropy" not in token_text([record], 0)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_is_readable_on_every_colour_and_the_colours_differ(mode: str) -> None:
    table = load_theme(mode)  # type: ignore[arg-type]
    colors = [heat(level, table) for level in range(5)]
    assert colors[0] == table.panel and len(set(colors)) == 5
    assert all(contrast(table.text, color) >= MINIMUM_TEXT_CONTRAST for color in colors)


def test_levels_rise_with_surprise() -> None:
    assert [probability_level(record) for record in REPLY] == [0, 2, 4, 1, 3]
    assert [rank_level(record) for record in REPLY] == [0, 1, 4, 0, 2]
    assert entropy_level(REPLY[0]) == 1 and entropy_level(REPLY[2]) == 2


def test_words() -> None:
    assert shown("a\tb\n") == "a⇥b↵" and shown("") == "∅" and quoted(" a") == "“␣a”"
    assert [percent(p) for p in (1, 0.4321, 0.0042, 1e-5)] == [
        "100.0 %", "43.2 %", "0.42 %", "< 0.01 %",
    ]  # fmt: skip
    place, probability, rank, entropy = token_text(REPLY, 2).split(" · ")[:4]
    assert place.endswith(quoted(" holds")) and probability == percent(0.02)
    assert (numbers(place), numbers(rank)) == ([3, 5], [40]) and "entropy" in entropy
    chosen = (REPLY[1]._replace(origin=Origin.CHOSEN),)
    assert token_text(chosen, 0).count(" · ") == token_text(REPLY[1:2], 0).count(" · ") + 1
    assert summary_text(REPLY).startswith("5 tokens · 40.0 %")


def test_it_opens_at_the_least_probable_token(popover: TokensPopover) -> None:
    assert popover.isVisible() and popover.strip.pointed_token == 2
    assert popover.line.text() == token_text(REPLY, 2)
    assert popover.strip.accessibleDescription() == popover.line.text()
    assert popover.choices.choice is not None and popover.choices.choice.text == "keeps"
    assert "“keeps”" in popover.branch.text() and popover.note.text() == HINT


def test_the_written_token_stands_among_the_choices(popover: TokensPopover) -> None:
    texts = [choice.text for choice in REPLY[2].choices]
    assert texts == ["keeps", "has", " holds"]  # of rank 40: after the known ones
    popover.choices.select(2)
    assert "“" not in popover.branch.text() and popover.branch.isEnabled()
    description = popover.choices.accessibleDescription()
    selected, every = description.split(". ", 1)
    assert selected.endswith(f"{quoted(' holds')} {percent(0.02)}")
    assert f": {quoted('keeps')} {percent(0.6)}" in every


def test_many_alternatives_scroll(qtbot: QtBot, popover: TokensPopover) -> None:
    many = token(1, "one", 0.2, **{f"other {n}": 0.8 / 2 ** (n + 1) for n in range(20)})
    popover.show_tokens((many,))
    QApplication.processEvents()
    assert popover._rows.height() == LARGEST_CHOICES < popover.choices.height()
    popover.choices.select(20)
    assert popover._rows.verticalScrollBar().value() > 0
    assert popover.choices.row_at(popover.choices.row_rect(20).center().y()) == 20


@pytest.mark.parametrize("percent", [100, 160])
@pytest.mark.parametrize("size", [QSize(1000, 640), QSize(700, 500)])
def test_it_fits_the_window(qapp: QApplication, qtbot: QtBot, size: QSize, percent: int) -> None:
    apply_text_size(qapp, percent)
    try:
        window = QWidget()
        window.resize(size)
        button = QPushButton("open", window)
        qtbot.addWidget(window)
        window.show()
        made = TokensPopover(window)
        made.show_tokens(REPLY * 30)
        made.toggle_at(button)
        for index in (0, 100):
            made.strip.point_at(index)
            assert window.rect().contains(made.geometry())
            parts = [made.summary, made._area, made.line, made._rows, made.branch]
            assert all(made.rect().contains(part.geometry()) for part in parts)
            assert all(a.geometry().bottom() < b.y() for a, b in pairwise(parts))
            assert made._area.width() == made._rows.width() == made.summary.width()
    finally:
        apply_text_size(qapp, 100)


def test_keys_move_over_tokens_and_to_unlikely_ones(qtbot: QtBot, popover: TokensPopover) -> None:
    strip = popover.strip
    assert popover.first_field() is strip
    control = Qt.KeyboardModifier.ControlModifier
    for key, modifier, expected in (
        (Qt.Key.Key_Home, Qt.KeyboardModifier.NoModifier, 0),
        (RIGHT, Qt.KeyboardModifier.NoModifier, 1),
        (RIGHT, control, 2),
        (RIGHT, control, 4),
        (RIGHT, control, 4),
        (UP, Qt.KeyboardModifier.NoModifier, 0),
        (DOWN, Qt.KeyboardModifier.NoModifier, 4),
        (LEFT, control, 2),
        (Qt.Key.Key_End, Qt.KeyboardModifier.NoModifier, 4),
        (RIGHT, Qt.KeyboardModifier.NoModifier, 4),
    ):
        qtbot.keyClick(strip, key, modifier)
        assert strip.pointed_token == expected
    assert strip.is_held


def test_a_branch_by_keyboard(qtbot: QtBot, popover: TokensPopover) -> None:
    wanted: list[tuple[int, int]] = []
    popover.branch_wanted.connect(lambda index, token_id: wanted.append((index, token_id)))
    qtbot.keyClick(popover.strip, Qt.Key.Key_Return)
    assert QApplication.focusWidget() is popover.choices
    qtbot.keyClick(popover.choices, DOWN)
    qtbot.keyClick(popover.choices, Qt.Key.Key_Return)
    assert wanted == [(2, 3001)] and popover.isHidden()


def test_the_mouse_points_until_a_click_holds_a_token(qtbot: QtBot, popover: TokensPopover) -> None:
    strip = popover.strip

    def middle(index: int) -> QPoint:
        return strip.rect_of(index).center().toPoint()

    qtbot.mouseMove(strip, middle(1))
    assert strip.pointed_token == 1
    assert strip.token_at(QPointF(strip.width() - 5, strip.height() - 5)) == NONE
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton, pos=middle(0))
    qtbot.mouseMove(strip, middle(4))
    assert strip.pointed_token == 0 and strip.is_held
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton, pos=middle(0))
    qtbot.mouseMove(strip, middle(3))
    assert strip.pointed_token == 3
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton, pos=middle(4))
    rows = popover.choices
    qtbot.mouseClick(rows, Qt.MouseButton.LeftButton, pos=rows.row_rect(1).center().toPoint())
    assert rows.choice is not None and rows.choice.text == "pages"


def test_colours_follow_what_is_painted_by(popover: TokensPopover) -> None:
    def color(index: int) -> str:
        area = popover.strip.rect_of(index)
        point = QPointF(area.right() - 3, area.top() + 3).toPoint()
        return popover.strip.grab().toImage().pixelColor(point).name()

    assert color(1) == heat(2, theme())
    popover.paint_by.setCurrentIndex(1)
    assert color(1) == heat(1, theme()) and popover.legend.accessibleName().startswith("Colors: r")
    assert popover.paint_by.toolTip() == PAINTS[1].help


def test_a_refusal_is_said_and_nothing_is_started(qtbot: QtBot, popover: TokensPopover) -> None:
    popover.show_tokens(REPLY, "No model is open.")
    assert popover.note.text() == "No model is open." and not popover.branch.isEnabled()
    with qtbot.assertNotEmitted(popover.branch_wanted):
        qtbot.keyClick(popover.choices, Qt.Key.Key_Return)
    popover.show_tokens((TokenRecord(1, "a", -0.1, 1),))
    assert popover.note.text() == NO_ALTERNATIVES


# Drafts ----------------------------------------------------------------------------------------

DRAFTED = (
    REPLY[0]._replace(is_draft=True),
    REPLY[1]._replace(rejected=(" memory", " is")),
    REPLY[2],
)


def test_drafts_that_stood_and_what_replaced_others_have_their_colours() -> None:
    paint = next(paint for paint in PAINTS if paint.name == "Drafts")
    for mode in ("light", "dark"):
        table = load_theme(mode)
        stood, replaced, own = (paint.background(record, table) for record in DRAFTED)
        assert stood is not None and replaced is not None and own is None
        assert stood != replaced
        for color in (stood, replaced):
            assert contrast(table.text, color.name()) >= MINIMUM_TEXT_CONTRAST
            assert contrast(table.text_muted, color.name()) >= 3


def test_rejected_drafts_are_shown_where_drafts_are_asked_for(popover: TokensPopover) -> None:
    popover.show_tokens(DRAFTED)
    strip = popover.strip
    before = strip.rect_of(1).width()
    popover.paint_by.setCurrentText("Drafts")
    assert strip.rect_of(1).width() > before  # with the rejected drafts, struck through
    strip.point_at(1)
    assert "“␣memory” and 1 " in popover.line.text()
    strip.point_at(0)
    sampled = [DRAFTED[0]._replace(is_draft=False)]
    assert popover.line.text().count(" · ") == token_text(sampled, 0).count(" · ") + 1
    assert not strip.grab().isNull()
    popover.paint_by.setCurrentText("Probability")
    assert strip.rect_of(1).width() == before
