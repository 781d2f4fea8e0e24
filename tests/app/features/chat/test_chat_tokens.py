"""Tokens of replies: kept with the chat, shown again, and branched from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.reply_data import ReplyTokens
from app.storage import TOKENS
from tests.app.chat_fixtures import Chat, chat, chat_in
from tests.app.fake_engine import MODEL
from tests.figures import numbers
from widgets.chat.message_view import AssistantMessageView
from widgets.tokens.record import Alternative, Origin, TokenRecord

__all__ = ["chat"]

SPREAD = ((7, "her", -1.5), (8, "what", -2.25))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LOGPROB = st.integers(-400_000, 0).map(lambda n: n / 10_000)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)


@st.composite
def replies(draw: st.DrawFn) -> ReplyTokens:
    """Tokens whose text depends on their id alone, as a tokenizer's does."""
    texts = draw(TEXTS)
    ids = st.integers(0, len(texts) - 1)

    def alternative() -> Alternative:
        number = draw(ids)
        return Alternative(number, texts[number], draw(LOGPROB))

    def record() -> TokenRecord:
        number = draw(ids)
        return TokenRecord(
            number, texts[number], draw(LOGPROB), draw(st.integers(1, 10**6)),
            tuple(alternative() for _ in range(draw(st.integers(0, 4)))),
            draw(st.sampled_from(Origin)),
        )  # fmt: skip

    return ReplyTokens(draw(TEXT), tuple(record() for _ in range(draw(st.integers(0, 8)))))


@given(tokens=replies())
def test_what_is_packed_is_unpacked(tokens: ReplyTokens) -> None:
    assert ReplyTokens.unpack(tokens.pack()) == tokens


@given(junk=st.binary(max_size=40))
def test_other_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match="not the tokens"):
        ReplyTokens.unpack(junk)


def test_an_opening_keeps_what_was_before_and_takes_the_choice() -> None:
    first = TokenRecord(1, "a", -0.1, 1, (Alternative(1, "a", -0.1),), Origin.CHOSEN)
    second = TokenRecord(2, "b", -2.0, 9, (Alternative(3, "c", -0.5), Alternative(4, "d", -1.0)))
    tokens = ReplyTokens("m", (first, second))
    assert tokens.opening(1, 4) == (
        first, TokenRecord(4, "d", -1.0, 2, second.alternatives, Origin.CHOSEN)
    )  # fmt: skip
    assert tokens.opening(1, 2) == (first, second._replace(origin=Origin.KEPT))
    with pytest.raises(KeyError):
        tokens.opening(1, 5)


def last_view(chat: Chat) -> AssistantMessageView:
    view = chat.page.transcript.views[-1]
    assert isinstance(view, AssistantMessageView)
    return view


def ask(chat: Chat) -> str:
    """A reply of two tokens, for which alternatives are known."""
    chat.engine.spread = SPREAD
    request = chat.send("Name one")
    chat.engine.say("Alpha")
    chat.engine.finish(" beta")
    chat.settle()
    return request


def test_alternatives_are_asked_for_unless_they_are_switched_off(chat: Chat) -> None:
    chat.ask("One", "1")
    assert chat.engine.requests[chat.engine.last][1].logprobs == 5
    assert last_view(chat).tokens.isHidden()  # the engine told none
    chat.page.open_sampling()
    chat.page.sampling.boxes["logprobs"].setValue(-1)
    chat.page.open_sampling()
    chat.send("Two")
    assert chat.engine.requests[chat.engine.last][1].logprobs is None
    assert chat.store.conversations()[0].sampling["logprobs"] is None


def test_tokens_open_at_their_button_and_by_the_command(chat: Chat) -> None:
    ask(chat)
    popover = chat.page.tokens.popover
    last_view(chat).tokens.click()
    assert popover.isVisible()
    assert [record.text for record in popover.strip.records] == ["Alpha", " beta"]
    assert popover.summary.text().startswith("2 tokens")
    last_view(chat).tokens.click()
    assert popover.isHidden()
    next(c for c in chat.page.actions() if c.id == "chat.tokens").callback()
    assert popover.isVisible()
    chat.page.new_chat()
    assert popover.isHidden()


def test_an_old_reply_shows_its_tokens_too(chat: Chat, qtbot: QtBot, tmp_path: Path) -> None:
    request = ask(chat)
    conversation = chat.controller.current.id
    before = chat.controller.tokens.of(request)
    chat.controller.close()
    chat.store.close()
    with chat_in(tmp_path) as again:
        again.controller.open(conversation)
        last_view(again).tokens.click()  # read off the window
        qtbot.waitUntil(again.page.tokens.popover.isVisible)
        found = again.controller.tokens.of(request)
        assert found is not None and before is not None and found.model == MODEL.name
        assert [r.text for r in found.records] == ["Alpha", " beta"]
        assert [r.choices for r in found.records] == [r.choices for r in before.records]


@pytest.mark.parametrize("end", ["program", "engine"])
def test_a_reply_that_was_cut_off_keeps_the_tokens_it_had(
    chat: Chat, qtbot: QtBot, tmp_path: Path, end: str
) -> None:
    chat.engine.spread = SPREAD
    request = chat.send("Name one")
    chat.engine.say("Alpha")
    chat.engine.say(" beta")
    if end == "engine":
        chat.engine.crash("It fell over.")
    conversation = chat.controller.current.id
    chat.controller.close()
    chat.store.close()
    with chat_in(tmp_path) as again:
        again.controller.open(conversation)
        assert again.states[-1] == ("interrupted" if end == "program" else "error")
        last_view(again).tokens.click()
        qtbot.waitUntil(again.page.tokens.popover.isVisible)
        found = again.controller.tokens.of(request)
        assert found is not None and found.model == MODEL.name
        assert [record.text for record in found.records] == ["Alpha", " beta"]


def test_tokens_that_cannot_be_read_are_said_to_be_so(chat: Chat, qtbot: QtBot) -> None:
    request = ask(chat)
    chat.controller.tokens._cache.clear()
    chat.store.save_packed(TOKENS, request, lambda: b"damaged").result(5)
    last_view(chat).tokens.click()
    qtbot.waitUntil(lambda: bool(chat.page.toast.text()))
    assert chat.page.tokens.popover.isHidden()


def test_a_branch_begins_with_the_same_tokens_and_then_the_alternative(chat: Chat) -> None:
    first = ask(chat)
    last_view(chat).tokens.click()
    popover = chat.page.tokens.popover
    popover.strip.point_at(1)
    popover.choices.select(2)
    popover.branch.click()
    chat.settle()
    assert chat.engine.begun_with[chat.engine.last] == (1, 8)
    assert chat.engine.prompt() == [("user", "Name one")]
    chat.engine.say("Alphawhat", " else")  # what was given comes with the first text
    chat.engine.finish()
    chat.settle()
    assert chat.texts == ["Name one", "Alphawhat else"]
    view = last_view(chat)
    assert (view.record.version, view.record.num_versions) == (2, 2)
    assert 2 in numbers(view.record.figures)
    tokens = chat.controller.tokens.of(chat.engine.last)
    assert tokens is not None
    assert [r.origin.value for r in tokens.records] == ["kept", "chosen", "sampled", "sampled"]
    chat.controller.step_version(chat.engine.last, -1)
    assert chat.texts == ["Name one", "Alpha beta"] and chat.controller.tokens.has(first)


def test_a_branch_leaves_the_keyboard_in_the_conversation(chat: Chat, qtbot: QtBot) -> None:
    """It went to the button that begins another chat."""
    ask(chat)
    with qtbot.waitActive(chat.page):
        chat.page.activateWindow()
    popover = chat.page.tokens.popover
    button = last_view(chat).tokens
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert popover.isAncestorOf(QApplication.focusWidget())
    popover.hide()
    assert button.hasFocus()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    popover.strip.point_at(1)
    popover.choices.select(2)
    qtbot.mouseClick(popover.branch, Qt.MouseButton.LeftButton)
    chat.settle()
    assert popover.isHidden() and last_view(chat).tokens is not button
    assert chat.page.transcript.hasFocus()


def test_no_branch_from_tokens_of_another_model(chat: Chat) -> None:
    ask(chat)
    chat.engine.model = dataclasses.replace(MODEL, name="Llama")
    last_view(chat).tokens.click()
    popover = chat.page.tokens.popover
    assert all(name in popover.note.text() for name in (MODEL.name, "Llama"))
    assert not popover.branch.isEnabled()
    chat.controller.branch_from_token(chat.engine.last, 1, 8)
    assert len(chat.engine.order) == 1


def test_a_branch_that_waited_does_not_go_to_another_model(chat: Chat) -> None:
    request = ask(chat)
    chat.engine.state = "crashed"  # it is not said yet
    chat.controller.branch_from_token(request, 1, 8)
    chat.settle()
    assert chat.states[-1] == "waiting"
    chat.engine.state, chat.engine.model = "ready", dataclasses.replace(MODEL, name="Llama")
    chat.engine.state_changed.emit("ready")
    chat.settle()
    assert chat.states[-1] == "error" and len(chat.engine.order) == 1
    assert all(name in last_view(chat)._error._cause.text() for name in (MODEL.name, "Llama"))


def test_tokens_go_with_their_chat(chat: Chat) -> None:
    request = ask(chat)
    chat.page.delete_current()
    chat.page.toast.dismiss()
    chat.settle()
    assert chat.store.packed(TOKENS, request) is None
