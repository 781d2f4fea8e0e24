"""A reply by two precisions: in the chat, stored, reopened, branched, exported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Passage
from app.features.chat.figures import note_of, precisions_of
from app.features.chat.files import Bundle, collect, dump, parse
from app.features.chat.markdown import as_markdown
from engine.config import EngineConfig
from engine.snapshot import FinishReason
from tests.app.chat_fixtures import Chat, chat, chat_in
from tests.app.fake_engine import MODEL
from tests.figures import numbers

__all__ = ["chat"]  # a fixture

INT8 = (EngineConfig(max_model_len=8192, quantization="int8"), "int8")
BOTH = (Passage(0, 0, "BF16"), Passage(8, 2, "BF16 · INT8 weights"))


def switch(chat: Chat, config: EngineConfig, quantization: str) -> None:
    """What the bridge shows before the signal of the change."""
    chat.engine.config = config
    chat.engine.model = dataclasses.replace(MODEL, quantization=quantization)
    chat.engine.state_changed.emit("ready")


def ask(chat: Chat) -> str:
    """A reply of which int8 writes the last two words."""
    chat.engine.spread = ((9001, "other", -1.0),)
    request = chat.send("Count")
    chat.engine.say("one ", "two ")
    switch(chat, *INT8)
    chat.engine.say("three ", "four")
    chat.engine.finish()
    chat.settle()
    return request


def test_it_is_marked_in_the_view_and_said_in_the_foot(chat: Chat) -> None:
    ask(chat)
    reply = chat.controller.current.path()[-1]
    assert reply.text == "one two three four" and reply.passages == BOTH
    before, mark, after = chat.texts[-1].split("\n")
    assert (before, after) == ("one two ", "three four") and mark.startswith("INT8 weights")
    view = chat.page.transcript.views[-1]
    assert view.record.figures.endswith(precisions_of(BOTH))
    assert precisions_of(BOTH) in view.record.details
    chat.page.copy_last()
    note = note_of(BOTH)
    assert numbers(note) == [16, 3, 16, 8]
    assert QApplication.clipboard().text() == f"one two three four\n\n[{note}]"


def test_the_next_reply_is_of_one_precision_alone(chat: Chat) -> None:
    ask(chat)
    chat.ask("Again", "five")
    view = chat.page.transcript.views[-1]
    assert view.record.marks == () and view.record.note == ""
    assert view.record.figures.endswith("BF16 · INT8 weights") and "→" not in view.record.figures


def test_a_switch_after_the_last_token_leaves_no_mark(chat: Chat) -> None:
    chat.send("Count")
    chat.engine.say("one ")
    switch(chat, *INT8)
    chat.engine.finish(reason=FinishReason.ABORT)
    chat.settle()
    assert [p.precision for p in chat.controller.current.path()[-1].passages] == ["BF16"]


def test_it_is_there_when_the_chat_is_opened_again(qtbot: QtBot, tmp_path: Path) -> None:
    with chat_in(tmp_path) as first:
        ask(first)
    with chat_in(tmp_path) as again:
        again.controller.open(again.page.list.records[0].id)
        assert again.controller.current.path()[-1].passages == BOTH
        assert "\nINT8 weights" in again.texts[-1]


def test_a_branch_keeps_the_marks_before_it(chat: Chat) -> None:
    request = ask(chat)
    plain = EngineConfig(max_model_len=8192)
    chat.controller.branch_from_token(request, 3, 9001)
    chat.settle()
    switch(chat, plain, "")
    chat.engine.say("one two three other", " end")
    chat.engine.finish()
    chat.settle()
    passages = chat.controller.current.path()[-1].passages
    assert passages[:2] == BOTH and passages[2].precision == "BF16"
    assert (passages[2].start, passages[2].num_tokens) == (len("one two three other"), 4)
    early = chat.controller.branch_from_token(request, 1, 9001)
    assert early is None and chat.controller.current.path()[-1].passages == BOTH[:1]


def test_exports_say_it_and_imports_bring_it_back(chat: Chat) -> None:
    ask(chat)
    bundle = collect(chat.store, chat.store.conversations()[0])
    assert f"*{note_of(BOTH)}" in as_markdown(bundle)
    (read,) = parse(dump([bundle]))
    assert isinstance(read, Bundle) and read.messages == bundle.messages
    assert [dict(p) for p in read.messages[-1].passages] == [p._asdict() for p in BOTH]
