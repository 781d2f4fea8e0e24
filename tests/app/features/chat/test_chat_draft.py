"""What is being written: its files, its tokens, and what is said before anything would be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QToolButton
from pytestqt.qtbot import QtBot

from app.features.chat.attachments import (
    LARGEST,
    AttachmentError,
    message_content,
    read_attachment,
)
from app.features.chat.context_use import ContextUse, context_short, context_text, context_warning
from engine.messages import TokensCounted
from tests.app.chat_fixtures import Chat, chat
from tests.figures import numbers
from widgets.chat.message_view import UserMessageView

__all__ = ["chat"]


def files_of(chat: Chat) -> list[str]:
    """Name and size of each file above the composer."""
    return [f"{record.name} {record.detail}" for record in chat.page.composer.files.records]


def files(qtbot: QtBot, chat: Chat, *paths: Path) -> None:
    """Attach files, and wait until they are read."""
    before = files_of(chat)
    chat.page.draft.add_files([str(path) for path in paths])
    qtbot.waitUntil(lambda: files_of(chat) != before)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.md"
    path.write_text("one two three\n", encoding="utf-8")
    return path


# Reading files -------------------------------------------------------------------------------


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")))
def test_text_is_read_whole_in_its_encoding(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "text.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_bytes(text.encode(encoding))
        found = read_attachment(path)
        assert found.name == "text.txt"
        assert found.text == (text.removeprefix("\ufeff") if encoding == "utf-8" else text)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a\0b", r"\b1\b"),
        (b"caf\xe9 noir", r"\b3 of 9\b"),
        (b"x" * (LARGEST + 1), "1.00 MiB.*1.00 MiB"),
    ],
)
def test_what_is_no_text_is_refused_with_the_reason(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "thing.bin"
    path.write_bytes(data)
    with pytest.raises(AttachmentError, match=said):
        read_attachment(path)
    with pytest.raises(AttachmentError, match="folder"):
        read_attachment(tmp_path)


def test_files_stand_between_fences_that_they_cannot_close() -> None:
    content = message_content("Why?", ({"name": "a.md", "text": "```py\nx\n```\n"},))
    assert content == "a.md:\n````\n```py\nx\n```\n````\n\nWhy?"
    assert message_content("Why?", ()) == "Why?"
    assert message_content("", ({"name": "a", "text": "x"},)) == "a:\n```\nx\n```"


# In the composer -----------------------------------------------------------------------------


def test_a_file_is_listed_counted_sent_and_shown(qtbot: QtBot, chat: Chat, notes: Path) -> None:
    files(qtbot, chat, notes)
    assert files_of(chat) == ["notes.md 14 B · 6 tokens"]
    chat.send("What is this?")
    content = "notes.md:\n```\none two three\n```\n\nWhat is this?"
    assert chat.engine.prompt() == [("user", content)]
    assert chat.page.composer.files.isHidden() and chat.page.draft.attachments == []
    assert chat.stored()[0].attachments == ({"name": "notes.md", "text": "one two three\n"},)
    view = chat.page.transcript.views[0]
    assert isinstance(view, UserMessageView)
    button = next(b for b in view.findChildren(QToolButton) if b.text().startswith("notes.md"))
    button.click()
    assert chat.page.file.isVisible() and chat.page.file.text.toPlainText() == "one two three\n"


def test_files_alone_can_be_sent_and_name_the_chat(qtbot: QtBot, chat: Chat, notes: Path) -> None:
    files(qtbot, chat, notes)
    assert chat.page.composer._button.isEnabled()
    chat.page.composer.send()
    chat.settle()
    assert chat.titles == ["notes.md"]
    chat.engine.finish("A note")
    chat.settle()
    chat.controller.edit(chat.controller.current.path()[0].id, "Shorter")
    chat.settle()
    assert chat.engine.prompt()[0][1].endswith("three\n```\n\nShorter")  # an edit keeps the files


def test_files_can_be_taken_out_and_belong_to_their_chat(
    qtbot: QtBot, chat: Chat, notes: Path
) -> None:
    chat.ask("One", "1")
    first = chat.controller.current.id
    files(qtbot, chat, notes, notes)
    chat.page.composer.files.removed.emit(0)
    assert len(chat.page.draft.attachments) == 1
    chat.page.new_chat()
    assert chat.page.composer.files.isHidden()
    chat.controller.open(first)
    assert files_of(chat)[0].startswith("notes.md")


def test_a_binary_file_is_refused_beside_one_that_is_taken(
    qtbot: QtBot, chat: Chat, notes: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    files(qtbot, chat, picture, notes)
    qtbot.waitUntil(lambda: "picture.png" in chat.page.file_notice.text())
    assert [a.name for a in chat.page.draft.attachments] == ["notes.md"]
    assert not chat.page.file_notice.isHidden()
    chat.page.composer.send()
    assert chat.page.file_notice.isHidden()


def mime(*paths: Path) -> QMimeData:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    return data


def drop(chat: Chat, data: QMimeData) -> bool:
    """Drag over the page and drop; whether the page wanted it."""
    buttons, keys = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    action = Qt.DropAction.CopyAction
    enter = QDragEnterEvent(QPoint(9, 9), action, data, buttons, keys)
    chat.page.dragEnterEvent(enter)
    if enter.isAccepted():
        chat.page.dropEvent(QDropEvent(QPoint(9, 9).toPointF(), action, data, buttons, keys))
    return enter.isAccepted()


def test_text_files_can_be_dropped_and_pasted(
    qtbot: QtBot, chat: Chat, notes: Path, tmp_path: Path
) -> None:
    assert drop(chat, mime(notes))
    qtbot.waitUntil(lambda: len(chat.page.draft.attachments) == 1)
    chat.page.composer.input.insertFromMimeData(mime(notes))
    qtbot.waitUntil(lambda: len(chat.page.draft.attachments) == 2)
    text = QMimeData()
    text.setText("words")
    chat.page.composer.input.insertFromMimeData(text)
    assert chat.page.composer.text == "words"
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    assert not drop(chat, mime(tmp_path)) and not drop(chat, mime(weights))  # for the window


def test_what_cannot_be_stored_comes_back_with_its_files(
    qtbot: QtBot, chat: Chat, notes: Path
) -> None:
    files(qtbot, chat, notes)
    chat.store._writer._connection.execute("PRAGMA query_only = 1")
    chat.page.composer.set_text("Important")
    chat.page.composer.send()
    chat.settle()
    assert chat.page.composer.text == "Important"
    assert [a.name for a in chat.page.draft.attachments] == ["notes.md"]


# The room that it takes ----------------------------------------------------------------------


def test_words_of_the_meter() -> None:
    assert numbers(context_text(ContextUse(1204, 0, 8192))) == [1204, 8192]
    assert numbers(context_text(ContextUse(1204, 30, 8192))) == [1204, 30, 8192]
    assert numbers(context_text(ContextUse(None, 30, 8192))) == [30, 8192]
    assert numbers(context_text(ContextUse(None, 0, 8192))) == [8192]
    assert context_text(ContextUse()) == context_short(ContextUse()) == ""
    assert context_short(ContextUse(1204, 30, 8192)) == "1,234 / 8,192"


@given(
    used=st.none() | st.integers(0, 10_000),
    draft=st.integers(0, 10_000),
    limit=st.integers(300, 8192),
    most=st.none() | st.integers(1, 9000),
)
def test_what_would_not_fit_is_always_said(
    used: int | None, draft: int, limit: int, most: int | None
) -> None:
    use = ContextUse(used, draft, limit, most)
    warning = context_warning(use)
    if use.total >= limit or (draft and most is not None and use.total + most > limit):
        assert f"{limit:,}" in warning or f"{limit - use.total:,}" in warning
    if use.total + max(256, most or 0) < limit:
        assert warning == ""


def test_a_new_chat_is_a_remedy_where_there_is_a_chat() -> None:
    fresh, later = (context_warning(ContextUse(used, 9000, 8192)) for used in (None, 40))
    assert fresh and later and ("new chat" in later) and ("new chat" not in fresh)


def test_the_meter_counts_what_is_written_and_warns(qtbot: QtBot, chat: Chat) -> None:
    chat.ask("One", "1")
    chat.page.composer.set_text("three more words")
    qtbot.waitUntil(lambda: 3 in numbers(chat.page.composer.context.lines[0]))
    assert chat.page.composer.meter.accessibleDescription().startswith("804 of 8,192")
    assert chat.page.context_notice.isHidden()
    chat.page.composer.set_text("word " * 8000)
    qtbot.waitUntil(lambda: "8,192" in chat.page.context_notice.text())
    assert 8804 in numbers(chat.page.context_notice.text())
    assert len(chat.engine.counted[-1]) <= 2**16
    chat.page.composer.set_text("")
    qtbot.waitUntil(chat.page.context_notice.isHidden)


def test_a_message_that_cannot_fit_stays_where_it_is_written(qtbot: QtBot, chat: Chat) -> None:
    chat.ask("One", "1")
    composer, sent = chat.page.composer, len(chat.engine.order)
    long = "word " * 8000
    for counted in (False, True):  # Enter follows a paste at once, or when it is counted
        composer.set_text(long)
        if counted:
            qtbot.waitUntil(lambda: not composer._button.isEnabled())
        qtbot.keyClick(composer.input, Qt.Key.Key_Return)
        chat.settle()
        assert len(chat.engine.order) == sent and len(chat.controller.current.path()) == 2
        assert composer.text == long and not composer._button.isEnabled()
        assert composer._button.toolTip() == chat.page.context_notice.text()
    composer.set_text("word " * 20)
    qtbot.keyClick(composer.input, Qt.Key.Key_Return)
    chat.settle()
    assert len(chat.engine.order) == sent + 1
    chat.engine.finish("2")


def test_a_message_that_no_engine_counts_is_not_refused_by_a_guess(
    qtbot: QtBot, chat: Chat
) -> None:
    def cannot(key: str, text: str) -> None:
        chat.engine.tokens_counted.emit(TokensCounted(key, None))

    chat.engine.count_tokens = cannot  # type: ignore[method-assign]
    chat.page.composer.set_text("word" + " " * 60_000 + "word")
    qtbot.waitUntil(lambda: "8,192" in chat.page.context_notice.text())
    assert chat.page.composer._button.isEnabled()
    chat.page.composer.send()
    chat.settle()
    assert len(chat.engine.order) == 1
    chat.engine.finish("1")


def test_a_reply_longer_than_the_room_is_announced(qtbot: QtBot, chat: Chat) -> None:
    chat.engine.prompt_tokens = 8000
    chat.ask("One", "1")
    chat.controller.set_sampling("max_tokens", 500)
    chat.page.composer.set_text("and now")
    qtbot.waitUntil(lambda: " 500" in chat.page.context_notice.text())
    assert 189 in numbers(chat.page.context_notice.text())


def test_no_button_is_cut_in_a_narrow_page(qtbot: QtBot, chat: Chat) -> None:
    chat.controller.set_system_prompt("Be brief.")
    composer = chat.page.composer
    for width in (330, 900):
        composer.setParent(None)
        composer.resize(width, composer.height())
        composer.show()
        QApplication.processEvents()
        for button in (composer.system_prompt, composer.sampling, composer._button):
            assert button.width() >= button.sizeHint().width()
            assert composer.rect().contains(button.geometry())
    assert composer.system_prompt.text() == "System prompt: set"
    composer.setParent(chat.page)


def test_without_a_model_the_size_is_a_guess(qtbot: QtBot, chat: Chat) -> None:
    chat.engine.set_state("loading")
    chat.page.composer.set_text("x" * 400)
    QApplication.processEvents()
    chat.page.draft.counts.count()
    assert chat.page.draft.num_tokens == 101
    chat.engine.set_state("ready")
    assert chat.page.draft.num_tokens == 1


def test_a_message_that_was_refused_is_counted_and_said_to_be_in_the_way(
    qtbot: QtBot, chat: Chat
) -> None:
    chat.ask("One", "1")
    chat.controller.send("word " * 8200)  # past the composer, which would refuse it
    chat.settle()
    chat.engine.fail("The prompt has 9,004 tokens.", "Shorten the prompt.")
    chat.settle()
    chat.page.composer.set_text("Hi")
    qtbot.waitUntil(lambda: 8201 in numbers(chat.page.composer.context.lines[0]))
    assert chat.page.composer.meter.accessibleDescription().startswith("9,004 of 8,192")
    said = chat.page.context_notice.text()  # of the long message, whatever is written now
    assert "word word" in said and {8200, 8192} == set(numbers(said))
    sent = len(chat.engine.order)
    qtbot.keyClick(chat.page.composer.input, Qt.Key.Key_Return)
    chat.settle()
    assert len(chat.engine.order) == sent and chat.page.composer.text == "Hi"
    chat.page.composer.set_text("")
    qtbot.waitUntil(lambda: 8200 in numbers(chat.page.composer.context.lines[0]))
    assert not chat.page.context_notice.isHidden()
    view = chat.page.transcript.views[-2]
    assert isinstance(view, UserMessageView)
    view.begin_edit()
    assert view._editor is not None
    view._editor.input.setPlainText("Two")
    qtbot.keyClick(view._editor.input, Qt.Key.Key_Return)
    chat.settle()
    assert chat.page.context_notice.isHidden()
    chat.engine.finish("2")
    chat.settle()
    assert "~" not in chat.page.composer.context.lines[0]


def test_an_edit_that_cannot_fit_stays_in_its_editor(qtbot: QtBot, chat: Chat) -> None:
    for text in ("One", "Two"):
        chat.ask(text, "Fine")
    first, second = chat.page.transcript.views[0], chat.page.transcript.views[2]
    assert isinstance(first, UserMessageView) and isinstance(second, UserMessageView)
    long, sent = "word " * 7500, len(chat.engine.order)
    for view in (first, second):
        view.begin_edit()
        assert view._editor is not None
    for counted in (False, True):  # Enter follows a paste at once, or when it is counted
        for view in (first, second):
            view._editor.input.setPlainText(long)
        if counted:
            qtbot.waitUntil(first._editor._send.isEnabled)  # the second follows 804 tokens
            qtbot.waitUntil(lambda: 8304 in numbers(second._editor._hint.text()))
        qtbot.keyClick(second._editor.input, Qt.Key.Key_Return)
        chat.settle()
        assert len(chat.engine.order) == sent and second.edited_text == long.strip()
        assert not second._editor._send.isEnabled()
    second._editor.input.setPlainText("word " * 20)
    qtbot.keyClick(second._editor.input, Qt.Key.Key_Return)
    chat.settle()
    assert len(chat.engine.order) == sent + 1 and chat.page.transcript.edited == [first]
    qtbot.keyClick(first._editor.input, Qt.Key.Key_Return)  # while the reply is open
    chat.settle()
    assert first.edited_text == long.strip() and not first._editor._send.isEnabled()
    chat.engine.finish("2")
    chat.settle()
    assert first._editor._send.isEnabled()
    qtbot.keyClick(first._editor.input, Qt.Key.Key_Return)
    chat.settle()
    assert len(chat.engine.order) == sent + 2
    assert chat.controller.current.path()[0].text == long.strip()
    chat.engine.finish("3")
