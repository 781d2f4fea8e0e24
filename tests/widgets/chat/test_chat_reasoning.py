"""Reasoning is told apart from the answer, in whatever pieces the text comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.chat.message_view import AssistantMessageView
from widgets.chat.reasoning import (
    Reasoning,
    split_reasoning,
    without_reasoning,
)
from widgets.chat.records import MessageRecord
from widgets.theme.theme import apply_theme

WORDS = st.text("ab <>/\n", max_size=12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", Reasoning("", "Hello", False)),
        ("<think>\nso\n</think>\n\nThus", Reasoning("so", "Thus", False)),
        ("\n<think>so", Reasoning("so", "", True)),
        ("<think>so</thi", Reasoning("so", "", True)),
        ("so it is</think>Thus", Reasoning("so it is", "Thus", False)),  # DeepSeek-R1
        ("<think>\n\n</think>\n\nThus", Reasoning("", "Thus", False)),
        ("The mark <think> in prose", Reasoning("", "The mark <think> in prose", False)),
        ("", Reasoning("", "", False)),
    ],
)
def test_reasoning_and_answer(text: str, expected: Reasoning) -> None:
    assert split_reasoning(text) == expected


def test_the_answer_alone_is_copied() -> None:
    assert without_reasoning("<think>so</think>Thus") == "Thus"
    assert without_reasoning("<think>so") == "so"


def test_a_growing_text_may_be_the_beginning_of_the_first_mark() -> None:
    assert split_reasoning(" <th", grows=True).answer == ""
    assert split_reasoning(" <th").answer == " <th"
    assert split_reasoning("<b>", grows=True).answer == "<b>"


@pytest.fixture
def view(qtbot: QtBot, qapp: QApplication) -> Iterator[AssistantMessageView]:
    apply_theme(qapp, "light")
    made = AssistantMessageView(MessageRecord("m", False, "", is_open=True))
    qtbot.addWidget(made)
    made.resize(500, 300)
    made.show()
    yield made


def say(view: AssistantMessageView, *pieces: str) -> None:
    for piece in pieces:
        view.append(piece)
    view.text.render_now()
    if view.reasoning is not None:
        view.reasoning.text.render_now()


def end(view: AssistantMessageView) -> None:
    view.show_record(view.record._replace(is_open=False))


def test_it_is_unfolded_while_it_comes_and_folded_after(view: AssistantMessageView) -> None:
    say(view, "<th")
    assert view.reasoning is None and view.text.toPlainText() == ""
    say(view, "ink>\nFirst ", "this")
    assert view.reasoning.header.text() == "Thinking" and view.reasoning.is_unfolded
    assert view.reasoning.text.toPlainText() == "First this" and view.text.isHidden()
    say(view, "\n</think>", "\n\nThe **answer**")
    assert view.reasoning.header.text() == "Reasoning · 2 words"
    assert not view.reasoning.is_unfolded and view.text.toPlainText() == "The answer"
    end(view)
    assert view.reasoning.text.isHidden() and not view.reasoning.isHidden()


def test_what_the_user_chose_stays(view: AssistantMessageView, qtbot: QtBot) -> None:
    say(view, "<think>one")
    qtbot.mouseClick(view.reasoning.header, Qt.MouseButton.LeftButton)
    say(view, " two")
    assert not view.reasoning.is_unfolded
    qtbot.keyClick(view.reasoning.header, Qt.Key.Key_Space)
    say(view, "</think>Done")
    end(view)
    assert view.reasoning.is_unfolded and "expanded" in view.reasoning.header.accessibleName()


def test_reasoning_whose_first_mark_the_template_wrote(view: AssistantMessageView) -> None:
    say(view, "Let me", " see")
    assert view.text.toPlainText() == "Let me see" and view.reasoning is None
    say(view, "</think>", "Yes")
    assert view.reasoning.text.toPlainText() == "Let me see" and view.text.toPlainText() == "Yes"


def test_a_search_unfolds_what_it_found(view: AssistantMessageView) -> None:
    say(view, "<think>The watermark</think>Yes")
    end(view)
    assert view.mark(["watermark"]) is not None and view.reasoning.is_unfolded
    assert view.mark(["nothing"]) is None


def thought(view: AssistantMessageView) -> str | None:
    """The reasoning on the screen; None without any."""
    shown = view.reasoning
    return None if shown is None or shown.isHidden() else shown.text.toPlainText()


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "thi"]) | WORDS, max_size=6))
def test_pieces_give_what_the_whole_gives(qtbot: QtBot, pieces: list[str]) -> None:
    whole = "".join(pieces)
    views = []
    for parts in (pieces, [whole]):
        made = AssistantMessageView(MessageRecord("m", False, "", is_open=True))
        qtbot.addWidget(made)
        for part in parts:
            made.append(part)
        end(made)
        views.append(made)
    one, other = views
    assert one.text.toPlainText() == other.text.toPlainText()
    assert thought(one) == thought(other)
