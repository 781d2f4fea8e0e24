"""The transcript follows the end unless the user reads further up, and is made in batches."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from widgets.chat.composer import MAX_LINES, Composer
from widgets.chat.records import MessageRecord
from widgets.chat.toast import Toast
from widgets.chat.transcript import BATCH, Transcript


def records(count: int) -> list[MessageRecord]:
    return [
        MessageRecord(f"m{n}", n % 2 == 0, f"message {n}\n\nwith a second line")
        for n in range(count)
    ]


def shown(qtbot: QtBot, messages: list[MessageRecord]) -> Transcript:
    transcript = Transcript()
    qtbot.addWidget(transcript)
    transcript.resize(600, 400)
    transcript.set_messages(messages)
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


def test_it_stays_where_the_user_reads(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(12))
    bar = transcript.verticalScrollBar()
    bar.setValue(100)
    assert not transcript.follows and transcript._jump.isVisible()
    before = bar.maximum()
    transcript.append_text("m11", "\n\nmore" * 40)
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == 100
    transcript._jump.click()
    assert bar.value() == bar.maximum() and transcript.follows


def test_long_conversations_are_made_as_one_scrolls_up(qtbot: QtBot) -> None:
    transcript = shown(qtbot, records(300))
    assert len(transcript.views) == BATCH
    bar = transcript.verticalScrollBar()
    top = transcript.views[0]
    bar.setValue(0)
    assert len(transcript.views) == 2 * BATCH
    # what was at the top is still there, with older messages above it
    y = top.mapTo(transcript.viewport(), top.rect().topLeft()).y()
    assert -20 <= y <= 60
    assert [v.record.id for v in transcript.views] == [f"m{n}" for n in range(260, 300)]
    transcript.reveal("m3")
    assert transcript.view("m3") is not None
    view = transcript.view("m3")
    assert view is not None
    assert 0 <= view.mapTo(transcript.viewport(), view.rect().topLeft()).y() < 200


def test_views_of_messages_that_stay_are_kept(qtbot: QtBot) -> None:
    messages = records(8)
    transcript = shown(qtbot, messages)
    kept = transcript.view("m1")
    transcript.set_messages([*messages[:2], MessageRecord("x", True, "another")])
    assert transcript.view("m1") is kept and transcript.view("m3") is None
    assert [v.record.id for v in transcript.views] == ["m0", "m1", "x"]
    transcript.set_messages([MessageRecord("other", True, "another conversation")])
    assert [v.record.id for v in transcript.views] == ["other"]


def test_the_composer_grows_to_eight_lines(qtbot: QtBot) -> None:
    composer = Composer()
    qtbot.addWidget(composer)
    composer.resize(400, 100)
    composer.show()
    heights = []
    for count in range(1, 15):
        composer.set_text("\n".join("line" for _ in range(count)))
        heights.append(composer.input.height())
    assert heights[0] == heights[1] < heights[2] < heights[MAX_LINES - 1]
    assert heights[MAX_LINES - 1] == heights[-1]
    always = Qt.ScrollBarPolicy.ScrollBarAlwaysOff
    assert composer.input.verticalScrollBarPolicy() != always
    composer.clear()
    assert composer.input.height() == heights[0]


def test_a_long_line_counts_as_the_lines_that_it_takes(qtbot: QtBot) -> None:
    composer = Composer()
    qtbot.addWidget(composer)
    composer.resize(300, 100)
    composer.show()
    short = composer.input.height()
    composer.set_text("word " * 60)
    assert composer.input.height() > short


def test_a_toast_ends_once(qtbot: QtBot) -> None:
    host = Composer()
    qtbot.addWidget(host)
    host.resize(500, 300)
    host.show()
    toast, said = Toast(host), []
    toast.show_message("one", "Undo", lambda: said.append("undo"), lambda: said.append("gone 1"))
    toast.show_message("two", "Undo", lambda: said.append("undo"), lambda: said.append("gone 2"))
    assert said == ["gone 1"] and toast.text() == "two"
    toast.act()
    assert said == ["gone 1", "undo"] and toast.isHidden()
    toast.show_message("three", expired=lambda: said.append("gone 3"), shown_ms=10)
    qtbot.waitUntil(lambda: said[-1] == "gone 3")
    assert toast.text() == ""
