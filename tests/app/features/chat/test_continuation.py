"""A reply that was cut continues in the same message: text, tokens, figures and latency."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.clients.target import Continues
from app.features.chat.conversation import Message
from engine.snapshot import FinishReason
from tests.app.chat_fixtures import Chat, chat, chat_in
from tests.tiers import first_fast
from widgets.chat.message_view import AssistantMessageView
from widgets.latency.causes import Cause, ReplyTimes

__all__ = ["chat"]

SPREAD = ((90, " other", -1.5),)


def cut(made: Chat, reason: FinishReason, *words: str) -> Message:
    """A reply that ended early, after these words."""
    made.engine.spread = SPREAD
    request = made.send("Count")
    made.engine.say(*words)
    made.engine.finish(reason=reason)
    made.settle()
    return made.controller.current.messages[request]


def continue_reply(made: Chat, reply: Message, *words: str, again: str | None = None) -> None:
    """Continue, and let the engine send the text so far again with the first new word."""
    made.controller.continuation.start(reply.id)
    made.settle()
    first, *others = words
    made.engine.say((reply.text if again is None else again) + first, *others)
    made.engine.finish()
    made.settle()


@pytest.mark.parametrize(
    "reason", first_fast(1, [FinishReason.ABORT, FinishReason.LENGTH, FinishReason.ERROR])
)
def test_it_continues_in_the_same_message(chat: Chat, reason: FinishReason) -> None:
    reply = cut(chat, reason, "one", " two", " three")
    view = chat.page.transcript.view(reply.id)
    assert isinstance(view, AssistantMessageView) and view.continue_reply.isVisible()
    ids = tuple(chat.engine.ids[word] for word in ("one", " two", " three"))
    before = reply.figures
    continue_reply(chat, reply, " four", " five")
    assert chat.engine.begun_with[reply.id] == ids
    assert chat.texts == ["Count", "one two three four five"]
    assert chat.states == ["complete", "complete"] and not view.continue_reply.isVisible()
    figures = reply.figures
    assert figures is not None and before is not None
    assert (figures.num_tokens, figures.num_continued_tokens) == (5, 3)
    assert figures.num_given_tokens == 0 and figures.ttft_ms == before.ttft_ms
    assert figures.itl_max_ms == pytest.approx(chat.engine.step_ms)  # not the wait between
    tokens, times = chat.controller.tokens.of(reply.id), chat.controller.times.of(reply.id)
    assert tokens is not None and len(tokens.records) == 5
    assert isinstance(times, ReplyTimes) and times.num_output_tokens == 5
    assert [(r.place, r.cause) for r in times.reasons] == [(2, Cause.CONTINUED)]
    assert [m.text for m in chat.stored()] == ["Count", "one two three four five"]


def test_max_tokens_are_for_what_is_new(chat: Chat) -> None:
    chat.controller.set_sampling("max_tokens", 10)
    reply = cut(chat, FinishReason.LENGTH, "one", " two")
    chat.controller.continuation.start()
    assert chat.engine.requests[reply.id][1].max_tokens == 12


def test_characters_that_were_held_back_are_replaced(chat: Chat) -> None:
    reply = cut(chat, FinishReason.ABORT, "one", " tw�")
    continue_reply(chat, reply, "", " three", again="one two")
    assert chat.texts[-1] == reply.text == "one two three"


def test_stopping_before_the_first_new_token_changes_nothing(chat: Chat) -> None:
    reply = cut(chat, FinishReason.ABORT, "one", " two")
    before = (reply.text, reply.figures)
    chat.controller.continuation.start()
    chat.settle()
    assert chat.states[-1] == "streaming"
    chat.controller.stop()
    chat.engine.finish(reason=FinishReason.ABORT)
    chat.settle()
    assert (reply.text, reply.figures) == before and chat.states[-1] == "stopped"
    continue_reply(chat, reply, " three")
    assert reply.text == "one two three"


def test_a_reply_that_is_complete_or_followed_has_nothing_to_continue(chat: Chat) -> None:
    refusal = chat.controller.continuation.refusal
    reply = cut(chat, FinishReason.STOP, "one")
    assert refusal(reply) is None
    first = cut(chat, FinishReason.ABORT, "one")
    assert refusal(first) == "" and chat.controller.continuation.is_possible()
    chat.ask("More", "text")
    assert refusal(first) is None


def test_why_it_cannot_continue_is_said(chat: Chat) -> None:
    refusal, engine = chat.controller.continuation.refusal, chat.engine
    reply = cut(chat, FinishReason.ABORT, "one")
    engine.continues = Continues.NOT
    assert refusal(reply)
    engine.continues = Continues.TOKENS
    chat.controller.tokens._known.clear()
    assert refusal(reply)
    chat.controller.tokens._known.add(reply.id)
    engine.prompt_tokens = 9000
    full = cut(chat, FinishReason.ABORT, "two")
    assert "9,000" in (refusal(full) or "") or refusal(full)
    engine.set_state("no model")
    assert refusal(full)
    view = chat.page.transcript.view(full.id)
    assert isinstance(view, AssistantMessageView)
    assert view.continue_reply.isVisible() and not view.continue_reply.isEnabled()
    assert refusal(full) in view.continue_reply.toolTip()
    engine.prompt_tokens = 5
    engine.set_state("ready")
    chat.page.new_chat()  # the full one takes no message
    small = cut(chat, FinishReason.ABORT, "three")
    for state in ("loading", "ready", "no model", "ready"):  # the button follows
        engine.set_state(state)
        view = chat.page.transcript.view(small.id)
        assert isinstance(view, AssistantMessageView)
        assert view.continue_reply.isEnabled() == (refusal(small) == "") == (state == "ready")


def test_a_reply_of_another_model_cannot_continue_even_before_its_tokens_are_read(
    qtbot: QtBot, tmp_path: Path
) -> None:
    with chat_in(tmp_path) as made:
        cut(made, FinishReason.LENGTH, "one")
    with chat_in(tmp_path) as made:
        made.controller.open(made.controller.conversations[0].id)
        made.settle()
        last = made.controller.current.last
        assert last is not None and last.figures is not None
        assert made.controller.continuation.refusal(last) == ""
        made.controller.tokens._cache.clear()  # a closed inspector reads none
        last.figures = replace(last.figures, model="other")
        assert "other" in (made.controller.continuation.refusal(last) or "")


def test_a_server_that_takes_text_gets_it_as_the_assistant_s_last_message(chat: Chat) -> None:
    chat.engine.continues = Continues.TEXT
    request = chat.send("Count")  # without log probabilities there are no tokens
    chat.engine.say("one", " two")
    chat.engine.finish(reason=FinishReason.LENGTH)
    chat.settle()
    reply = chat.controller.current.messages[request]
    chat.controller.continuation.start()
    assert chat.engine.prompt(request)[-1] == ("assistant", "one two")
    assert chat.engine.begun_with[request] == ()
    chat.engine.say(" three")
    chat.engine.finish()
    chat.settle()
    assert reply.text == "one two three"
    assert reply.figures is not None and reply.figures.num_tokens == 3


def test_after_a_restart_it_continues_from_the_saved_tokens(qtbot: QtBot, tmp_path: Path) -> None:
    with chat_in(tmp_path) as made:
        made.engine.spread = SPREAD
        request = made.send("Count")
        made.engine.say("one", " two")  # and the program ends
        made.settle()
    with chat_in(tmp_path) as made:
        made.engine.spread, made.engine.prompt_tokens = SPREAD, 5
        made.engine.ids.update({"one": 1, " two": 2})
        made.controller.open(made.controller.conversations[0].id)
        made.settle()
        assert made.states[-1] == "interrupted"
        assert made.controller.continuation.is_possible()
        made.controller.continuation.start()
        qtbot.waitUntil(lambda: request in made.engine.requests)  # read in another thread
        assert made.engine.begun_with[request] == (1, 2)
        made.engine.say("one two three")
        made.engine.finish()
        made.settle()
        assert made.texts[-1] == "one two three"
        reply = made.controller.current.messages[request]
        assert reply.figures is not None
        assert (reply.figures.num_tokens, reply.figures.ttft_ms) == (3, None)
