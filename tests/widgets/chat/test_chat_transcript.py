"""The transcript follows the end unless the user reads further up; what is near has views."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QMimeData, QPoint, Qt
from PySide6.QtGui import QPaintEvent, QTextCursor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.chat import message_text
from widgets.chat.composer import LINES, LINES_IF_LOW, Composer
from widgets.chat.message_text import MessageText
from widgets.chat.message_view import UserMessageView
from widgets.chat.records import MessageRecord
from widgets.chat.transcript import FIRST, Transcript
from widgets.controls.notice import Toast
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size, apply_theme


def records(count: int) -> list[MessageRecord]:
    return [
        MessageRecord(f"m{n}", n % 2 == 0, f"message {n}\n\nwith a second line")
        for n in range(count)
    ]


def show(transcript: Transcript, messages: list[MessageRecord]) -> None:
    transcript.set_rows([message.id for message in messages], messages.__getitem__)


def shown(qtbot: QtBot, messages: list[MessageRecord]) -> Transcript:
    transcript = Transcript()
    qtbot.addWidget(transcript)
    transcript.resize(600, 400)
    show(transcript, messages)
    transcript.show()
    bar = transcript.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    return transcript


def test_it_follows_a_reply_that_grows(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(6))
    bar = transcript.verticalScrollBar()
    before = bar.maximum()
    transcript.append_text("m5", "\n\nmore" * 40)
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == bar.maximum() and transcript.follows
    assert not transcript._jump.isVisible()


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Heights of the painted parts of messages."""
    heights: list[int] = []
    paint = MessageText.paintEvent

    def watched(text: MessageText, event: QPaintEvent) -> None:
        heights.append(sum(part.height() for part in event.region()))
        paint(text, event)

    monkeypatch.setattr(MessageText, "paintEvent", watched)
    return heights


def test_a_reply_that_grows_is_painted_once_in_its_place(
    qtbot: QtBot, painted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_text, "_COST_SHARE", 0)  # text is shown at once
    transcript = shown(qtbot, records(6))
    transcript.append_text("m5", "\n\nmore" * 40)
    settle(qtbot, transcript)
    bar = transcript.verticalScrollBar()
    for _ in range(3):
        painted.clear()
        before = bar.maximum()
        transcript.append_text("m5", "\n\nmore and more")
        assert bar.value() == bar.maximum() > before
        qtbot.wait(50)
        assert len(painted) == 1


def test_scrolling_paints_what_comes_into_view(
    qtbot: QtBot, painted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_text, "_COST_SHARE", 0)  # nothing of the text is shown later
    transcript = shown(qtbot, records(6))
    transcript.append_text("m5", "\n\nmore" * 100)
    bar = transcript.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 1000)
    settle(qtbot, transcript)
    painted.clear()
    for _ in range(10):  # the button to the end is shown by the first one
        bar.setValue(bar.value() - 20)
        qtbot.wait(20)
    assert len(painted) >= 10 and max(painted) <= 100  # of several hundred pixels


def test_it_stays_where_the_user_reads(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(12))
    settle(qtbot, transcript)
    bar = transcript.verticalScrollBar()
    bar.setValue(100)
    settle(qtbot, transcript)
    assert not transcript.follows and transcript._jump.isVisible()
    before = bar.maximum()
    transcript.append_text("m11", "\n\nmore" * 40)
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == 100
    transcript._jump.click()
    assert bar.value() == bar.maximum() and transcript.follows


@pytest.mark.parametrize("follows", [True, False])
def test_it_follows_again_after_an_edit_if_it_did_before(qtbot: QtBot, follows: bool) -> None:
    transcript = shown(qtbot, records(12))
    settle(qtbot, transcript)
    bar = transcript.verticalScrollBar()
    if not follows:
        bar.setValue(100)
    transcript.edit_message("m6")
    assert not transcript.follows
    view = transcript.view("m6")
    assert isinstance(view, UserMessageView)
    view.end_edit()
    settle(qtbot, transcript)
    assert transcript.follows == follows == (bar.value() == bar.maximum())


def place_of(transcript: Transcript, message_id: str) -> int:
    """Where a message begins on the screen."""
    view = transcript.view(message_id)
    assert view is not None
    return view.mapTo(transcript.viewport(), view.rect().topLeft()).y()


def settle(qtbot: QtBot, transcript: Transcript) -> None:
    """Wait until all views are made that are wanted here."""
    qtbot.waitUntil(lambda: not transcript._later.isActive())


def ids(transcript: Transcript) -> list[str]:
    return [view.record.id for view in transcript.views]


def test_a_long_conversation_opens_with_a_screen_of_views(qtbot: QtBot) -> None:
    transcript = Transcript()
    qtbot.addWidget(transcript)
    show(transcript, records(300))
    assert ids(transcript) == [f"m{n}" for n in range(300 - FIRST, 300)]


def test_what_is_read_stays_in_its_place_while_views_are_made_above(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(300))
    settle(qtbot, transcript)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.value() - 100)
    top = ids(transcript)[0]
    transcript.ensureWidgetVisible(transcript.view(top))
    y = place_of(transcript, top)
    qtbot.waitUntil(lambda: ids(transcript)[0] != top)
    settle(qtbot, transcript)
    assert place_of(transcript, top) == y
    assert bar.value() > transcript.viewport().height()


def test_one_can_scroll_from_the_end_to_the_first_message_and_back(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(60))
    bar = transcript.verticalScrollBar()
    most = 0
    for step, is_there in (
        (-150, lambda: bar.value() == 0 and ids(transcript)[0] == "m0"),
        (150, lambda: transcript.follows and ids(transcript)[-1] == "m59"),
    ):
        for _ in range(200):
            if is_there():
                break
            bar.setValue(bar.value() + step)
            settle(qtbot, transcript)
            numbers = [int(name[1:]) for name in ids(transcript)]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            most = max(most, len(numbers))
        assert is_there()
    assert most < 60  # those far away were taken down


def test_home_and_end_reach_the_ends_at_once(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(300))
    qtbot.keyClick(transcript, Qt.Key.Key_Home)
    assert ids(transcript)[0] == "m0" and not transcript.follows
    assert place_of(transcript, "m0") >= 0
    qtbot.keyClick(transcript, Qt.Key.Key_End)
    assert ids(transcript)[-1] == "m299" and transcript.follows


def test_a_message_far_away_is_revealed(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(300))
    transcript.reveal("m40")
    settle(qtbot, transcript)
    assert 0 <= place_of(transcript, "m40") < 200 and not transcript.follows
    assert len(transcript.views) < 60


def test_text_that_comes_while_its_view_is_gone_is_there_later(qtbot: QtBot) -> None:
    messages = records(300)
    transcript = shown(qtbot, messages)
    transcript.reveal("m3")
    settle(qtbot, transcript)
    assert transcript.view("m299") is None
    transcript.append_text("m299", " and more")
    transcript.jump_to_end()
    view = transcript.view("m299")
    assert view is not None and view.record.text == messages[299].text + " and more"


def test_views_of_messages_that_stay_are_kept(qtbot: QtBot) -> None:
    messages = records(8)
    transcript = shown(qtbot, messages)
    settle(qtbot, transcript)
    kept = transcript.view("m1")
    show(transcript, [*messages[:2], MessageRecord("x", True, "another")])
    assert transcript.view("m1") is kept and transcript.view("m3") is None
    assert ids(transcript) == ["m0", "m1", "x"]
    show(transcript, [MessageRecord("other", True, "another conversation")])
    assert ids(transcript) == ["other"]


@pytest.mark.parametrize("lines", (LINES, LINES_IF_LOW))
def test_the_composer_grows_with_its_text(qtbot: QtBot, lines: tuple[int, int]) -> None:
    composer, (least, most) = Composer(), lines
    composer.input.set_lines(lines)
    qtbot.addWidget(composer)
    composer.resize(400, 100)
    composer.show()
    heights = []
    for count in range(1, 15):
        composer.set_text("\n".join("line" for _ in range(count)))
        heights.append(composer.input.height())
    assert heights[0] == heights[least - 1] < heights[least] < heights[most - 1]
    assert heights[most - 1] == heights[-1]
    always = Qt.ScrollBarPolicy.ScrollBarAlwaysOff
    assert composer.input.verticalScrollBarPolicy() != always
    composer.set_text("")
    assert composer.input.height() == heights[0]


def test_a_long_line_counts_as_the_lines_that_it_takes(qtbot: QtBot) -> None:
    composer = Composer()
    qtbot.addWidget(composer)
    composer.resize(300, 100)
    composer.show()
    short = composer.input.height()
    composer.set_text("word " * 60)
    assert composer.input.height() > short
    long = composer.input.height()
    composer.set_text("")
    assert composer.input.height() == short
    pasted = QMimeData()
    pasted.setText("word " * 60)
    composer.input.insertFromMimeData(pasted)
    assert composer.input.height() == long
    composer.input.undo()
    assert composer.input.height() == short


def test_a_toast_ends_once(qtbot: QtBot) -> None:
    host = Composer()
    qtbot.addWidget(host)
    host.resize(500, 300)
    host.show()
    host.activateWindow()
    qtbot.waitUntil(host.isActiveWindow)
    toast, said = Toast(host), []
    toast.show_message("one", "Undo", lambda: said.append("undo"), lambda: said.append("gone 1"))
    toast.show_message("two", "Undo", lambda: said.append("undo"), lambda: said.append("gone 2"))
    assert said == ["gone 1"] and toast.text() == "two"
    qtbot.keyClick(host, Qt.Key.Key_U, Qt.KeyboardModifier.AltModifier)
    qtbot.waitUntil(lambda: said == ["gone 1", "undo"])
    assert toast.isHidden()
    toast.show_message("three", expired=lambda: said.append("gone 3"), shown_ms=10)
    qtbot.waitUntil(lambda: said[-1] == "gone 3")
    assert toast.text() == ""


def test_of_a_long_conversation_only_records_near_the_screen_are_made(qtbot: QtBot) -> None:
    messages, made = records(1000), []
    transcript = Transcript()
    qtbot.addWidget(transcript)

    def record_of(place: int) -> MessageRecord:
        made.append(place)
        return messages[place]

    transcript.set_rows([message.id for message in messages], record_of)
    assert made == list(range(1000 - FIRST, 1000))
    transcript.set_rows([message.id for message in messages], record_of)
    assert len(made) == 2 * FIRST
    transcript.reveal("m500")
    assert transcript.view("m500") is not None and len(made) < 4 * FIRST


@pytest.fixture
def body_size(qapp: QApplication) -> Iterator[QApplication]:
    apply_theme(qapp, "light")
    yield qapp
    restyling().is_gradual = False
    restyling().finish()
    apply_text_size(qapp, 100)


@pytest.mark.parametrize("is_gradual", [False, True])
def test_the_line_at_the_top_stays_there_when_text_grows(
    qtbot: QtBot, body_size: QApplication, is_gradual: bool
) -> None:
    words = " ".join(f"word{n}" for n in range(400))
    transcript = shown(qtbot, [MessageRecord(f"m{n}", n % 2 == 0, words) for n in range(12)])
    settle(qtbot, transcript)
    view = transcript.view("m8")
    assert view is not None
    transcript.verticalScrollBar().setValue(transcript.top_of(view) + view.text.height() // 2)
    settle(qtbot, transcript)
    assert transcript.first_in_view is view and not transcript.follows
    text = view.text
    edge = lambda: text.mapFrom(transcript, QPoint(0, 0))
    at_top = text.cursorForPosition(QPoint(0, edge().y()))
    distance = text.cursorRect(at_top).top() - edge().y()
    character = at_top.position()  # the cursor moves when all is written again
    selected = text.textCursor()
    selected.setPosition(10)
    selected.setPosition(60, QTextCursor.MoveMode.KeepAnchor)
    text.setTextCursor(selected)
    chosen = text.textCursor().selectedText()
    height = text.height()
    now = lambda: text.cursorRect(cursor_at(text, character)).top() - edge().y()
    restyling().is_gradual = is_gradual
    for percent in (150, 100):
        apply_text_size(body_size, percent)
        qtbot.waitUntil(lambda: not restyling().is_busy)
        settle(qtbot, transcript)
        assert (text.height() > height) == (percent > 100)
        assert transcript.first_in_view is view and not transcript.follows
        qtbot.waitUntil(lambda: now() == distance)  # when the layout has come to rest
        assert text.textCursor().selectedText() == chosen


def cursor_at(text: MessageText, position: int) -> QTextCursor:
    cursor = QTextCursor(text.document())
    cursor.setPosition(position)
    return cursor
