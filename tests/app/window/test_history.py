"""The notices of a run are kept, counted, acted on, copied and cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton, QToolButton, QWidget
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from app.window.notices import Notice, NoticeArea
from app.window.notifications import MOST_ROWS, NAME, Bell, NoticeHistory, NoticePopover

KINDS = ["info", "warning", "error"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 99), st.sampled_from(KINDS)),
        st.tuples(st.just("set_limit"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["mark_read", "clear"])),
    ),
    max_size=20,
)


@given(STEPS)
def test_the_newest_come_first_and_no_more_than_the_limit(
    steps: list[tuple],
) -> None:
    history, kept, new, limit = NoticeHistory(), [], 0, 200
    for name, *rest in steps:
        if name == "add":
            history.add(Notice("k", f"{rest[0]}", kind=rest[1]))
            kept, new = [(f"{rest[0]}", rest[1]), *kept], new + 1
        elif name == "set_limit":
            limit = int(rest[0])
            history.set_limit(limit)
        elif name == "clear":
            history.clear()
            kept, new = [], 0
        else:
            history.mark_read()
            new = 0
        kept, new = kept[:limit], min(new, limit)
        assert [(r.notice.cause, r.notice.kind) for r in history.records] == kept
        # good news does not count
        assert len(history.unread) == sum(kind != "info" for _, kind in kept[:new])


def test_what_is_past_offers_nothing_any_more(qtbot: QtBot) -> None:
    history = NoticeHistory()
    history.add(Notice("load", "Not loaded.", "", "error", actions=(("Again", lambda: None),)))
    history.add(Notice("other", "Saved.", actions=(("Open", lambda: None),)))
    assert len(history.unread) == 1
    history.end("load")
    assert [bool(record.actions) for record in history.records] == [True, False]
    assert history.unread == []


def test_the_list_shows_acts_copies_and_clears(qtbot: QtBot, qtmodeltester: ModelTester) -> None:
    history, done, window = NoticeHistory(), [], QWidget()
    window.resize(900, 700)
    panel = NoticePopover(history, window)
    qtbot.addWidget(window)
    window.show()
    assert panel._stack.currentIndex() == 0 and not panel.copy.isEnabled()
    history.add(Notice("a", "The file ended.", "Get it again.", "error", "Traceback"))
    history.add(Notice("b", "Saved.", actions=(("Open it", lambda: done.append("opened")),)))
    assert len(history.unread) == 1 and history.has_unread_error
    panel.show()
    assert history.unread == []
    panel.choose(0)
    assert [button.text() for button in panel.acts] == ["Open it"]
    panel.acts[0].click()
    panel.choose(1)
    assert done == ["opened"] and panel.acts == []
    panel.copy.click()
    copied = QGuiApplication.clipboard().text()
    assert copied.splitlines()[1:] == ["The file ended. Get it again.", "Traceback"]
    history.add(Notice("c", "Another."))  # what is read stays chosen
    assert panel.chosen is not None and panel.chosen.notice.key == "a"
    panel.hide()
    history.add(Notice("d", "While nobody looked."))
    panel.show()
    assert panel.chosen.notice.key == "d"
    qtmodeltester.check(history)
    panel.clear.click()
    assert history.rowCount() == 0 and panel._stack.currentIndex() == 0


def test_the_bell_counts_what_nobody_has_seen(qtbot: QtBot) -> None:
    history, button = NoticeHistory(), QToolButton()
    qtbot.addWidget(button)
    Bell(button, history)
    assert (button.text(), button.accessibleName()) == ("", NAME)
    for _ in range(120):
        history.add(Notice("a", "x", kind="warning"))
        history.add(Notice("b", "Good news."))
    assert (button.text(), button.accessibleName()) == ("99+ new", "Notifications, 99+ new")
    history.mark_read()
    assert (button.text(), button.accessibleName()) == ("", NAME)


def test_good_news_leaves_the_page_when_the_user_says_so(qtbot: QtBot) -> None:
    area, history = NoticeArea(), NoticeHistory()
    qtbot.addWidget(area)
    area.shown.connect(history.add)
    area.set_info_seconds(0)
    area.show_notice(Notice("a", "Saved."))
    area._info_ms = 20
    area.show_notice(Notice("b", "Saved as well."))
    area.show_notice(Notice("c", "Not saved.", kind="error"))
    qtbot.waitUntil(lambda: area.keys == ["a", "c"], timeout=2000)
    assert len(history.records) == 3


def test_the_history_is_a_table(qtbot: QtBot) -> None:
    history = NoticeHistory()
    history.add(Notice("a", "One.", "Do this."))
    assert history.data(history.index(0, 1)) == "One. Do this."


def test_the_list_is_as_high_as_its_lines(qtbot: QtBot) -> None:
    history, window = NoticeHistory(), QWidget()
    window.resize(900, 700)
    bell = QToolButton(window)
    bell.move(4, 560)
    qtbot.addWidget(window)
    window.show()
    heights = []
    for count in (1, 2, MOST_ROWS, MOST_ROWS + 3):
        history.clear()
        panel = NoticePopover(history, window)
        for number in range(count):
            history.add(Notice(f"{number}", "Saved."))
        panel.toggle_at(bell)
        assert window.rect().contains(panel.geometry())
        assert panel.x() >= bell.geometry().right()
        heights.append(panel.height())
        panel.hide()
    row = heights[1] - heights[0]
    assert 0 < row < 60 and heights[0] < 700 / 4
    assert heights[2] == heights[3] == heights[0] + (MOST_ROWS - 1) * row


def test_a_notice_of_one_line_takes_one(qtbot: QtBot) -> None:
    area = NoticeArea()
    qtbot.addWidget(area)
    heights = []
    for remedy in ("", "Open it from the Models page."):
        area.show_notice(Notice("a", "Saved.", remedy))
        heights.append(area.frame("a").heightForWidth(900))
    assert heights[0] == heights[1]


def test_a_long_notification_stands_below_the_list_in_full(qtbot: QtBot) -> None:
    history, window = NoticeHistory(), QWidget()
    window.resize(900, 700)
    bell = QPushButton("Bell", window)
    bell.move(0, 660)
    qtbot.addWidget(window)
    window.show()
    panel = NoticePopover(history, window)
    history.add(Notice("a", "Saved."))
    history.add(Notice("b", " ".join(["The server at the other end closed the connection."] * 4)))
    panel.toggle_at(bell)
    for row in (1, 0):
        panel.choose(row)
    qtbot.waitUntil(lambda: panel.text.y() > panel._stack.geometry().bottom())
    assert panel.text.isVisible() and panel.text.geometry().bottom() < panel.copy.y()
    assert panel.text.height() >= panel.text.heightForWidth(panel.text.width())
    assert window.rect().contains(panel.geometry())
