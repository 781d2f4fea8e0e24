"""The chat as a user drives it, with a fake engine: nothing is lost, everything can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from engine.snapshot import FinishReason
from tests.app.chat_fixtures import Chat, chat
from tests.figures import numbers
from widgets.chat.message_view import UserMessageView

__all__ = ["chat"]


def test_a_message_is_stored_before_it_is_sent(chat: Chat) -> None:
    stored_first: list[list[str]] = []
    add = chat.engine.add_request

    def add_request(request_id: str, *rest: object) -> None:
        stored_first.append([m.text for m in chat.stored()])
        add(request_id, *rest)  # type: ignore[arg-type]

    chat.engine.add_request = add_request  # type: ignore[method-assign, assignment]
    chat.send("What is TTFT?")
    assert stored_first == [["What is TTFT?", ""]]
    assert chat.page.composer.text == ""
    assert chat.titles == ["What is TTFT?"]


def test_a_reply_streams_and_ends_with_its_figures(chat: Chat) -> None:
    chat.send("Why?")
    chat.engine.say("Because **of")
    chat.engine.say(" memory**.", " Really.")
    assert chat.texts == ["Why?", "Because of memory. Really."]
    chat.engine.finish()
    chat.settle()
    view = chat.page.transcript.views[1]
    assert numbers(view.record.figures)[:5] == [84, 3, 81, 768, 803]
    assert "mean ITL 18.2 ms    decode 54.9 tok/s    3 tokens" in view.record.figures
    assert chat.states == ["complete", "complete"]
    assert [m.text for m in chat.stored()] == ["Why?", "Because **of memory**. Really."]
    assert chat.page.composer.context.lines[0] == "context: 806 of 8,192 tokens"


def test_the_first_token_is_painted_before_the_output_signal_returns(
    chat: Chat, qtbot: QtBot
) -> None:
    chat.send("Hello")
    view = chat.page.transcript.views[-1]
    before = view.grab().toImage()
    painted: list[str] = []
    paint = view.text.paintEvent

    def paint_event(event: object) -> None:
        painted.append(view.text.toPlainText())
        paint(event)  # type: ignore[arg-type]

    view.text.paintEvent = paint_event  # type: ignore[method-assign, assignment]
    chat.engine.say("First")  # no event loop runs in between
    assert painted[-1:] == ["First"]
    assert view.grab().toImage() != before


def test_escape_stops_and_what_was_written_stays(chat: Chat, qtbot: QtBot) -> None:
    request = chat.send("Count")
    chat.engine.say("one ", "two")
    qtbot.keyClick(chat.page.composer.input, Qt.Key.Key_Escape)
    assert chat.engine.aborted == [request]
    chat.engine.finish(reason=FinishReason.ABORT)
    chat.settle()
    assert chat.states == ["complete", "stopped"]
    assert chat.texts[-1] == "one two"
    assert chat.page.transcript.views[-1].record.status.startswith("stopped")
    assert chat.stored()[-1].state == "stopped"
    assert not chat.controller.is_busy


def test_keys_of_the_composer(chat: Chat, qtbot: QtBot) -> None:
    keys = chat.page.composer.input
    qtbot.keyClicks(keys, "one")
    qtbot.keyClick(keys, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(keys, "two")
    qtbot.keyClick(keys, Qt.Key.Key_Return)
    chat.settle()
    assert chat.engine.prompt() == [("user", "one\ntwo")]
    chat.engine.finish("done")
    chat.settle()
    qtbot.keyClick(keys, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)  # again
    chat.settle()
    assert len(chat.engine.order) == 2 and chat.engine.prompt() == [("user", "one\ntwo")]
    qtbot.keyClicks(keys, "next")
    qtbot.keyClick(keys, Qt.Key.Key_Return)  # while a reply is written the text stays
    assert chat.page.composer.text == "next" and len(chat.engine.order) == 2
    chat.engine.finish("again")
    chat.settle()
    qtbot.keyClick(keys, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    chat.settle()
    assert chat.engine.prompt()[-1] == ("user", "next")
    chat.engine.finish("end")
    chat.settle()
    qtbot.keyClick(keys, Qt.Key.Key_Up)
    view = chat.page.transcript.views[-2]
    assert isinstance(view, UserMessageView) and view.is_editing


def test_the_editor_of_a_message_is_seen_when_it_opens(chat: Chat, qtbot: QtBot) -> None:
    chat.page.resize(900, 420)
    with qtbot.waitActive(chat.page):
        chat.page.activateWindow()
    for question in "One", "Two", "Three":
        chat.ask(question, "a line\n\n" * 9)
    transcript = chat.page.transcript
    chat.page.composer.input.setFocus()
    qtbot.keyClick(chat.page.composer.input, Qt.Key.Key_Up)
    view = transcript.views[-2]
    assert isinstance(view, UserMessageView) and view._editor is not None
    qtbot.keyClick(view._editor.input, Qt.Key.Key_Escape)
    assert chat.page.composer.input.hasFocus()
    chat.settle()
    for top in transcript.top_of(view) - 30, transcript.verticalScrollBar().maximum():
        transcript.verticalScrollBar().setValue(top)
        qtbot.mouseClick(view._edit, Qt.MouseButton.LeftButton)
        chat.settle()
        editor = view._editor
        assert editor is not None and editor.input.hasFocus()
        shown = editor.geometry().translated(view.mapTo(transcript.viewport(), QPoint()))
        assert transcript.viewport().rect().contains(shown)
        qtbot.keyClick(editor.input, Qt.Key.Key_Escape)
        chat.settle()


def test_regenerating_keeps_the_version_before(chat: Chat) -> None:
    chat.ask("Name one", "Alpha")
    chat.page.transcript.requests.regenerate.emit(chat.controller.current.last.id)  # type: ignore[union-attr]
    chat.settle()
    chat.engine.say("Beta")
    chat.engine.finish()
    chat.settle()
    view = chat.page.transcript.views[-1]
    assert chat.texts == ["Name one", "Beta"] and view.versions._label.text() == "2 / 2"
    view.versions._before.click()
    assert chat.texts == ["Name one", "Alpha"]
    chat.settle()
    chat.send("go on")
    assert chat.engine.prompt() == [("user", "Name one"), ("assistant", "Alpha"), ("user", "go on")]


def test_an_edited_message_forks_and_one_can_go_back(
    chat: Chat, qtbot: QtBot, tmp_path: Path
) -> None:
    chat.ask("First", "1")
    chat.ask("Second", "2")
    view = chat.page.transcript.views[0]
    assert isinstance(view, UserMessageView)
    view.begin_edit()
    assert view._editor is not None
    view._editor.input.setPlainText("Primero")
    qtbot.keyClick(view._editor.input, Qt.Key.Key_Return)
    chat.settle()
    assert chat.engine.prompt() == [("user", "Primero")]
    chat.engine.finish("uno")
    chat.settle()
    assert chat.texts == ["Primero", "uno"]
    chat.page.transcript.views[0].versions._before.click()
    assert chat.texts == ["First", "1", "Second", "2"]
    chat.settle()
    conversation = chat.controller.current.id
    chat.controller.new_conversation()
    chat.controller._loaded.clear()  # read again: which version is shown was stored too
    chat.controller.open(conversation)
    assert chat.texts == ["First", "1", "Second", "2"]


def test_escape_leaves_an_edited_message_as_it_was(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("First", "1")
    chat.page.edit_last()
    view = chat.page.transcript.views[0]
    assert isinstance(view, UserMessageView) and view._editor is not None
    view._editor.input.setPlainText("other")
    qtbot.keyClick(view._editor.input, Qt.Key.Key_Escape)
    assert not view.is_editing and chat.texts == ["First", "1"] and len(chat.engine.order) == 1


def test_what_is_typed_after_an_edit_goes_to_the_message_box(chat: Chat, qtbot: QtBot) -> None:
    with qtbot.waitActive(chat.page):
        chat.page.activateWindow()
    chat.ask("First", "1")
    transcript, keys = chat.page.transcript, chat.page.composer.input
    chat.page.edit_last()
    qtbot.keyClicks(QApplication.focusWidget(), "!")
    qtbot.keyClick(QApplication.focusWidget(), Qt.Key.Key_Return)
    chat.settle()
    assert chat.engine.prompt() == [("user", "First!")] and keys.hasFocus()
    chat.engine.finish("2")
    chat.settle()
    for place in (transcript, chat.page.transcript.views[-1].text):
        place.setFocus()
        assert place.hasFocus()
        for key in (Qt.Key.Key_Down, Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Shift):
            qtbot.keyClick(place, key)
        qtbot.keyClick(place, Qt.Key.Key_A, Qt.KeyboardModifier.AltModifier)
        assert place.hasFocus()
        qtbot.keyClicks(place, "y")
        qtbot.keyClicks(QApplication.focusWidget(), "es")
        assert keys.hasFocus()
    assert chat.page.composer.text == "yesyes"


def test_sampling_settings_and_presets(chat: Chat) -> None:
    page = chat.page
    assert page.composer.sampling.text() == "Balanced"
    page.sampling.preset_chosen.emit("Greedy")
    assert page.composer.sampling.text() == "Greedy"
    page.open_sampling()
    page.sampling.boxes["temperature"].setValue(0.5)
    page.sampling.boxes["max_tokens"].setValue(100)
    assert page.composer.sampling.text() == "Custom"
    page.sampling.name.setText("My own")
    page.sampling.save.click()
    assert page.composer.sampling.text() == "My own"
    chat.send("Hello")
    params = chat.engine.requests[chat.engine.last][1]
    assert (params.temperature, params.max_tokens) == (0.5, 100)
    assert chat.store.presets() == {"My own": {"temperature": 0.5, "max_tokens": 100}}
    page.sampling._delete.click()
    chat.settle()
    assert chat.store.presets() == {} and page.composer.sampling.text() == "Custom"
    page.open_sampling()  # closes it
    assert page.sampling.isHidden()


def test_the_system_prompt_is_sent_and_kept(chat: Chat) -> None:
    chat.page.open_system_prompt()
    chat.page.system_prompt.input.setPlainText("Answer in Latin.")
    chat.page.open_system_prompt()
    assert chat.page.composer.system_prompt.text() == "System prompt: set"
    chat.send("Salve")
    assert chat.engine.prompt() == [("system", "Answer in Latin."), ("user", "Salve")]
    assert chat.store.conversations()[0].system_prompt == "Answer in Latin."


def test_suggestions_and_the_notice_of_the_model(chat: Chat) -> None:
    called: list[str] = []
    chat.page.empty.set_suggestions([("Count", "Count to ten."), ("TTFT", "What is TTFT?")])
    chat.page.model_notice.say("A small model.", "Open a model…", lambda: called.append("open"))
    assert not chat.page.model_notice.isHidden()
    chat.page.model_notice._action.click()
    assert called == ["open"]
    chat.page.model_notice.say("")
    assert chat.page.model_notice.isHidden()
    chat.page.empty.cards[1].chosen.emit("What is TTFT?")
    chat.settle()
    assert chat.engine.prompt() == [("user", "What is TTFT?")]
    assert chat.page.focusWidget() is chat.page.composer.input


def test_copying(chat: Chat) -> None:
    chat.ask("Code", "Here:\n\n```python\nx = 1\n```\n")
    view = chat.page.transcript.views[-1]
    view.text._headers[0]._copy.click()
    assert QGuiApplication.clipboard().text() == "x = 1"
    view._copy.click()
    assert QGuiApplication.clipboard().text() == "Here:\n\n```python\nx = 1\n```\n"
    chat.page.transcript.views[0]._copy.click()
    assert QGuiApplication.clipboard().text() == "Code"


def test_links_are_opened_after_asking_and_only_to_the_web(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    chat.page.open_link("file:///etc/passwd")
    assert chat.page.findChild(QMessageBox) is None and opened == []
    chat.page.open_link("https://example.com/a?b=1")
    box = chat.page.findChild(QMessageBox)
    assert box is not None and "example.com" in box.text() and opened == []
    next(b for b in box.buttons() if b.text() == "Open").click()
    assert opened == ["https://example.com/a?b=1"]


def test_actions_are_unique_and_say_when_they_apply(chat: Chat) -> None:
    actions = {command.id: command for command in chat.page.actions()}
    shortcuts = [command.shortcut for command in actions.values() if command.shortcut]
    assert len(actions) == len(chat.page.actions()) and len(set(shortcuts)) == len(shortcuts)
    stop = actions["chat.stop"]
    assert stop.is_enabled is not None and not stop.is_enabled()
    chat.send("One")
    assert stop.is_enabled()
    toggle = actions["chat.list"]
    toggle.callback()
    assert toggle.is_checked is not None and not toggle.is_checked()
    actions["chat.search"].callback()
    assert toggle.is_checked() and chat.page.list.search.hasFocus()
