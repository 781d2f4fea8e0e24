"""Workloads of the user's own prompts: from chats, and from calls to the server."""

from __future__ import annotations

import json

import pytest
from pytestqt.qtbot import QtBot

from app.bench.workload import Workload
from app.features.bench.prompts import MOST, of_calls, of_chats
from app.main.application import Application
from app.server.call_log import CallContent, CallLog, CallRecord
from engine.errors import ConfigError
from engine.evaluate.task import TextError
from tests.app.chat_fixtures import Chat, chat
from tests.app.window_fixtures import application, script, send

__all__ = ["application", "chat", "script"]
OPENS = "/models/tiny"


def call(log: CallLog, body: object, num_tokens: int | None = 7) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    log.end(CallRecord(0, 0.0, "me", "POST", "/v1", 200, 1.0, num_tokens), CallContent(raw, ()))


def texts(work: Workload) -> list[str]:
    return [line.shown for line in work.prompts]


def test_calls_are_texts_and_messages_in_their_order() -> None:
    log = CallLog()
    log.keep_content(True)
    call(log, {"prompt": "one"}, 3)
    both = [{"role": "system", "content": "short"}, {"role": "user", "content": "two"}]
    call(log, {"messages": both})
    call(log, {"prompt": [1, 2, 3]})  # token ids
    call(log, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
    call(log, b'{"prompt": "cut')
    call(log, {"messages": []})
    call(log, {"prompt": ""})
    call(log, {"prompt": "a list of models"}, None)
    work = of_calls(log).read()
    assert texts(work) == ["one", "two"] and len(work.prompts[1].prompt) == 2
    assert [line.max_tokens for line in work.prompts] == [3, 7]
    assert (work.num_requests, work.output.low, work.output.high) == (2, 3, 7)


def test_the_latest_calls_are_kept_whole() -> None:
    log = CallLog()
    log.keep_content(True)
    for number in range(MOST + 20):
        call(log, {"prompt": f"{number}"})
    assert texts(of_calls(log).read())[-1] == f"{MOST + 19}"


def test_nothing_kept_is_an_error() -> None:
    with pytest.raises(TextError):
        of_calls(CallLog()).read()


def test_chats_are_in_the_order_in_which_they_were_sent(chat: Chat) -> None:
    for text in ("one", "two"):
        chat.ask(text, "an answer")
    chat.page.new_chat()
    chat.ask("three", "another")
    assert texts(of_chats(chat.store).read()) == ["one", "two", "three"]


def test_chats_are_swept(qtbot: QtBot, application: Application) -> None:
    page, chats = application.pages.bench, application.pages.chat
    application.window.show_widget(page)
    qtbot.waitUntil(page.isVisible)
    box = page.form.workload

    def choose() -> None:
        box.setCurrentIndex(box.findText("Prompts of chats"))
        box.activated.emit(box.currentIndex())

    before = box.currentIndex()
    choose()
    qtbot.waitUntil(lambda: not page.form.error.isHidden() and box.currentIndex() == before)
    application.window.show_page(0)
    for text in ("What is a KV cache?", "And a block?"):
        send(qtbot, application, text)
        qtbot.waitUntil(lambda: not chats.is_busy, timeout=20_000)
    application.window.show_widget(page)
    application.pages.store.flush()
    choose()
    with pytest.raises(ConfigError):  # they are read in another thread
        page.form.plan()
    qtbot.waitUntil(lambda: "2" in box.currentText())
    count = box.count()
    choose()
    qtbot.waitUntil(lambda: "2" in box.currentText())
    assert box.count() == count  # chosen again, it is read anew in its row
    plan = page.form.plan()
    assert page.form.error.isHidden()
    assert sorted(texts(plan.workload)) == ["And a block?", "What is a KV cache?"]
    assert plan.workload.num_requests == 2
    lengths = {chats.conversations[0].path()[-1].figures.num_tokens}
    assert {line.max_tokens for line in plan.workload.prompts} >= lengths
    page.form.rounds.setValue(1)
    page.form.axes[0][1].setText("1")
    page.form.press_run()
    qtbot.waitUntil(lambda: not page.bench.is_running, timeout=20_000)
    result = page.bench.result
    assert result is not None and result.points[0].figures["completed"] == 2
