"""The model names a chat when nothing else runs; a title of the user stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.chat import titles
from app.features.chat.conversation import NEW_TITLE
from app.features.chat.titles import MOST_WORDS, TITLE_LENGTH, Titles, clean_title, title_of
from app.paths import starter_model
from engine.snapshot import BACKGROUND
from tests.app.chat_fixtures import Chat, chat
from tests.app.fake_engine import MODEL
from tests.widgets.synthetic import snapshot

__all__ = ["chat"]

QUESTION = "Why is decoding bound by memory bandwidth?"


@pytest.mark.parametrize(
    "answer",
    [
        "Memory-bound decoding",
        'Title: "Memory-bound decoding".',
        "**Memory-bound decoding**\n\nIt says why.",
        "# Memory-bound decoding",
        "<think>\nA title.\n</think>\n\nMemory-bound decoding",
        "“Memory-bound decoding”",
    ],
)
def test_what_stands_around_a_title_is_removed(answer: str) -> None:
    assert clean_title(answer) == "Memory-bound decoding"


@pytest.mark.parametrize(
    "answer", ["", "\n", "<think>\nOkay, a title", "the the the the", "x" * 90, "<b>", "***",
               "Prefill is the first phase of a request, and decoding follows"]
)
def test_an_answer_that_is_no_title_is_none(answer: str) -> None:
    assert clean_title(answer) == ""


@given(st.text(max_size=400))
def test_titles_are_a_line_of_few_words(text: str) -> None:
    made = clean_title(text)
    assert len(made) <= TITLE_LENGTH + 1 and len(made.split()) <= MOST_WORDS
    assert len(title_of(text)) <= TITLE_LENGTH + 1 and title_of(text)
    assert "\n" not in made + title_of(text)


@pytest.fixture
def asked(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """A chat whose model names chats, at once."""
    monkeypatch.setattr(titles, "IDLE_MS", 0)
    chat.controller.titles.close()
    chat.controller.titles = Titles(chat.controller, lambda: True)
    yield chat
    chat.controller.titles.close()


def title_request(qtbot: QtBot, made: Chat) -> str:
    qtbot.waitUntil(lambda: made.engine.last.startswith(BACKGROUND))
    return made.engine.last


def test_a_chat_is_named_after_its_first_reply(qtbot: QtBot, asked: Chat) -> None:
    asked.ask(QUESTION, "Each step reads all weights.")
    assert asked.titles == [title_of(QUESTION)]
    request = title_request(qtbot, asked)
    [(role, prompt)] = asked.engine.prompt(request)
    assert role == "user" and QUESTION in prompt and "all weights" in prompt
    params = asked.engine.requests[request][1]
    assert params.temperature == 0 and (params.max_tokens or 99) <= 32
    asked.engine.say("Memory-bound", " decoding")
    assert asked.titles == [title_of(QUESTION)]  # until it is whole
    asked.engine.finish()
    asked.settle()
    assert asked.titles == ["Memory-bound decoding"] and asked.states[-1] == "complete"
    assert asked.store.conversations()[0].title == "Memory-bound decoding"
    count = len(asked.engine.order)
    asked.ask("And then?", "More.")  # not again
    qtbot.wait(20)
    assert len(asked.engine.order) == count + 1


def test_sending_cancels_it_and_the_users_title_stays(qtbot: QtBot, asked: Chat) -> None:
    asked.ask(QUESTION, "Each step reads all weights.")
    request = title_request(qtbot, asked)
    asked.controller.new_conversation()
    other = asked.send("Another")
    assert request in asked.engine.aborted
    asked.engine.say("late", request_id=request)
    asked.engine.finish(request_id=request)
    assert title_of(QUESTION) in asked.titles
    asked.controller.rename(asked.controller.conversations[-1].id, "Mine")
    asked.engine.say("Hello", request_id=other)
    asked.engine.finish(request_id=other)
    asked.settle()
    title_request(qtbot, asked)  # of the other chat
    asked.engine.say("Greeting someone new")
    asked.engine.finish()
    asked.settle()
    assert set(asked.titles) == {"Mine", "Greeting someone new"}


def test_requests_of_others_come_first(qtbot: QtBot, asked: Chat) -> None:
    asked.engine.snapshot.emit(snapshot(1.0, num_running=1))
    asked.ask(QUESTION, "Text.")
    qtbot.wait(20)
    assert not asked.engine.last.startswith(BACKGROUND)
    asked.engine.snapshot.emit(snapshot(2.0))
    request = title_request(qtbot, asked)
    asked.engine.snapshot.emit(snapshot(3.0, num_waiting=1))
    assert asked.engine.aborted == [request]


@pytest.mark.parametrize("why_not", ["off", "starter", "dummy", "template", "remote"])
def test_titles_that_are_not_wanted_or_useless_are_not_asked_for(
    qtbot: QtBot, asked: Chat, why_not: str
) -> None:
    changes = {
        "starter": {"path": str(starter_model())}, "dummy": {"is_dummy": True},
        "template": {"has_chat_template": False},
    }  # fmt: skip
    asked.engine.model = replace(MODEL, **changes.get(why_not, {}))
    asked.engine.is_remote = why_not == "remote"
    asked.controller.titles._is_wanted = lambda: why_not != "off"
    asked.ask(QUESTION, "Text.")
    qtbot.wait(20)
    assert not asked.engine.last.startswith(BACKGROUND)
    assert asked.titles == [title_of(QUESTION)] != [NEW_TITLE]
