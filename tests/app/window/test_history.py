"""The notices of a run are kept, counted, acted on, copied and cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QToolButton
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from app.window.notices import Notice, NoticeArea
from app.window.notifications import Bell, NoticeHistory, NoticePanel

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 99)),
        st.tuples(st.just("set_limit"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["mark_read", "clear"])),
    ),
    max_size=20,
)


@given(STEPS)
def test_the_newest_come_first_and_no_more_than_the_limit(
    steps: list[tuple[str, int] | tuple[str]],
) -> None:
    history, kept, unread, limit = NoticeHistory(), [], 0, 200
    for name, *rest in steps:
        if name == "add":
            history.add(Notice("k", f"{rest[0]}"))
            kept, unread = [f"{rest[0]}", *kept], unread + 1
        elif name == "set_limit":
            limit = int(rest[0])
            history.set_limit(limit)
        elif name == "clear":
            history.clear()
            kept, unread = [], 0
        else:
            history.mark_read()
            unread = 0
        kept, unread = kept[:limit], min(unread, limit)
        assert [record.notice.cause for record in history.records] == kept
        assert history.num_unread == unread


def test_what_is_past_offers_nothing_any_more(qtbot: QtBot) -> None:
    history = NoticeHistory()
    history.add(Notice("load", "Not loaded.", actions=(("Load again", lambda: None),)))
    history.add(Notice("other", "Saved.", actions=(("Open", lambda: None),)))
    history.end("load")
    assert [bool(record.actions) for record in history.records] == [True, False]


def test_the_panel_shows_acts_copies_and_clears(qtbot: QtBot, qtmodeltester: ModelTester) -> None:
    history, done = NoticeHistory(), []
    panel = NoticePanel(history)
    qtbot.addWidget(panel)
    assert panel._stack.currentIndex() == 0 and not panel.copy.isEnabled()
    history.add(Notice("a", "The file ended.", "Get it again.", "error", "Traceback"))
    history.add(Notice("b", "Saved.", actions=(("Open it", lambda: done.append("opened")),)))
    assert history.num_unread == 2 and history.has_unread_error
    panel.show()
    assert history.num_unread == 0
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
    assert (button.text(), button.accessibleName()) == ("Notices", "Notices")
    for _ in range(120):
        history.add(Notice("a", "x"))
    assert (button.text(), button.accessibleName()) == ("99+ new", "Notices, 99+ new")
    history.mark_read()
    assert button.text() == "Notices"


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
