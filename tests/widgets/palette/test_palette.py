"""The command palette: what it finds, and how it is used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import shiboken6
from hypothesis import assume, given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from widgets.palette.palette import MOST_ROWS, Entry, EntryModel, Palette, search
from widgets.theme.theme import apply_theme

TEXTS = ["New chat", "Search chats", "Delete chat", "Regenerate", "Live charts", "Dark"]


def found(query: str) -> list[str]:
    return [TEXTS[match.number] for match in search(query, TEXTS)]


def test_beginnings_of_words_come_before_what_is_inside_and_letters_in_order() -> None:
    assert found("ch") == ["New chat", "Live charts", "Search chats", "Delete chat"]
    assert found("CHAT") == ["New chat", "Search chats", "Delete chat", "Live charts"]
    assert found("chat del") == ["Delete chat"]
    assert found("gene") == ["Regenerate"]
    assert found("lch") == ["Live charts", "Delete chat"]
    assert found("xyz") == []
    assert found("  ") == TEXTS


def test_keywords_come_after_names_and_before_letters_inside_words() -> None:
    texts = ["Automatic titles", "Initial model", "ITL chart", "Tune"]
    keywords = ["", "", "", "TTFT ITL"]
    matches = search("itl", texts, keywords)
    assert [texts[match.number] for match in matches] == [
        "ITL chart", "Tune", "Automatic titles", "Initial model",
    ]  # fmt: skip
    assert [bool(match.marks) for match in matches] == [True, False, True, True]
    assert [texts[match.number] for match in search("tune itl", texts, keywords)] == ["Tune"]


@given(st.text(max_size=6), st.lists(st.text(max_size=20), max_size=6))
def test_marks_are_ranges_of_the_text_in_order(query: str, texts: list[str]) -> None:
    matches = search(query, texts)
    assert len({match.number for match in matches}) == len(matches)
    for match in matches:
        position = -1
        for start, end in match.marks:
            assert position < start < end <= len(texts[match.number])
            position = end
    if not query.split():
        assert [match.number for match in matches] == list(range(len(texts)))


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6), st.data())
def test_a_text_is_found_by_itself(texts: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(texts))
    assume(all(len(letter.lower()) == 1 for letter in wanted))
    assume(wanted.lower() == "".join(letter.lower() for letter in wanted))  # no final sigma
    assert wanted in [texts[match.number] for match in search(wanted, texts)]


ENTRIES = [
    Entry("chat.new", "New chat", "Chat", "Ctrl+N"),
    Entry("chat.stop", "Stop the reply", "Chat", "Esc", is_enabled=False),
    Entry("dock.charts", "Live charts", "View", is_checked=True),
    Entry("theme.dark", "Dark", "View"),
    *(Entry(f"more.{i}", f"Further command {i}", "Help") for i in range(20)),
]


@pytest.fixture
def window(qtbot: QtBot, qapp: QApplication) -> Iterator[QWidget]:
    apply_theme(qapp, "light")
    made = QWidget()
    column = QVBoxLayout(made)
    made.field, made.button = QLineEdit(), QPushButton("beside")  # type: ignore[attr-defined]
    column.addWidget(made.field)  # type: ignore[attr-defined]
    column.addWidget(made.button)  # type: ignore[attr-defined]
    made.resize(800, 700)
    qtbot.addWidget(made)
    made.show()
    made.field.setFocus()  # type: ignore[attr-defined]
    yield made


@pytest.fixture
def palette(window: QWidget) -> Palette:
    made = Palette(window)
    made.open(ENTRIES)
    return made


def rows(palette: Palette) -> list[str]:
    return [palette.model.entry(row).text for row in range(palette.model.rowCount())]


def test_typing_finds_and_enter_does(qtbot: QtBot, palette: Palette) -> None:
    assert palette.isVisible() and palette.field.hasFocus()
    assert rows(palette)[-1] == "Stop the reply"  # not possible now: last
    qtbot.keyClicks(palette.field, "live")
    assert rows(palette) == ["Live charts"]
    with qtbot.waitSignal(palette.chosen) as chosen:
        qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert chosen.args == ["dock.charts"]
    assert palette.isHidden()
    assert palette.window().field.hasFocus()  # type: ignore[attr-defined]


def test_what_was_chosen_last_stands_first(qtbot: QtBot, palette: Palette) -> None:
    qtbot.keyClicks(palette.field, "dark")
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    palette.open(ENTRIES)
    assert rows(palette)[0] == "Dark" and palette.field.text() == ""


def test_rows_that_come_under_a_still_pointer_are_not_pointed_at(
    qtbot: QtBot, palette: Palette
) -> None:
    place = palette.view.visualRect(palette.model.index(5, 0)).center()
    qtbot.mouseMove(palette.view.viewport(), QPoint(place.x() - 5, place.y()))
    qtbot.mouseMove(palette.view.viewport(), place)
    assert palette.view.currentIndex().row() == 5
    qtbot.keyClick(palette.field, Qt.Key.Key_PageDown)
    under = palette.view.indexAt(place)
    palette.view.entered.emit(under)  # what the view says after it has scrolled
    assert palette.view.currentIndex().row() == 5 + MOST_ROWS - 1


def test_the_arrow_keys_stop_at_the_ends_and_at_what_is_impossible(
    qtbot: QtBot, palette: Palette
) -> None:
    def here() -> str:
        return palette.model.entry(palette.view.currentIndex().row()).text

    assert here() == "New chat"
    qtbot.keyClick(palette.field, Qt.Key.Key_Up)
    assert here() == "New chat"
    qtbot.keyClick(palette.field, Qt.Key.Key_Down)
    assert here() == "Live charts"
    qtbot.keyClick(palette.field, Qt.Key.Key_PageDown)
    assert here() == ENTRIES[4 + MOST_ROWS - 1 - 2].text
    for _ in range(4):
        qtbot.keyClick(palette.field, Qt.Key.Key_PageDown)
    assert here() == "Further command 19"


def test_what_is_impossible_is_not_done(qtbot: QtBot, palette: Palette) -> None:
    qtbot.keyClicks(palette.field, "stop")
    assert rows(palette) == ["Stop the reply"]
    with qtbot.assertNotEmitted(palette.chosen):
        qtbot.keyClick(palette.field, Qt.Key.Key_Return)
        palette.view.clicked.emit(palette.model.index(0, 0))
    assert palette.isVisible()


def test_settings_are_found_below_commands_and_not_listed_before(
    qtbot: QtBot, palette: Palette
) -> None:
    def ids() -> list[str]:
        return [palette.model.entry(row).id for row in range(palette.model.rowCount())]

    palette.close_and_return()
    commands = [Entry("chat.new", "New chat", "Chat")]
    palette.open(commands, [Entry("setting:x", "New thing", "Engine setting · A")])
    assert ids() == ["chat.new"]
    qtbot.keyClicks(palette.field, "new")
    assert ids() == ["chat.new", "setting:x"]
    palette.field.clear()
    assert ids() == ["chat.new"]


def test_nothing_found_is_said(qtbot: QtBot, palette: Palette) -> None:
    qtbot.keyClicks(palette.field, "<b>zz</b>")
    assert palette.nothing.isVisible() and not palette.view.isVisible()
    assert "“<b>zz</b>”" in palette.nothing.text()
    with qtbot.assertNotEmitted(palette.chosen):
        qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    palette.field.clear()
    assert palette.view.isVisible() and not palette.nothing.isVisible()


def test_escape_and_a_press_elsewhere_close_it(
    qtbot: QtBot, window: QWidget, palette: Palette
) -> None:
    qtbot.keyClick(palette.field, Qt.Key.Key_Escape)
    assert palette.isHidden() and window.field.hasFocus()  # type: ignore[attr-defined]
    palette.open(ENTRIES)
    qtbot.mouseClick(window.button, Qt.MouseButton.LeftButton)  # type: ignore[attr-defined]
    assert palette.isHidden()
    palette.open(ENTRIES)
    palette.open(ENTRIES)  # its shortcut again
    assert palette.isHidden()


def test_what_had_the_keyboard_may_be_gone(
    qtbot: QtBot, window: QWidget, palette: Palette
) -> None:
    palette.hide()
    editor = QLineEdit(window)
    editor.show()
    editor.setFocus()
    palette.open(ENTRIES)
    shiboken6.delete(editor)
    qtbot.keyClick(palette.field, Qt.Key.Key_Escape)
    assert palette.isHidden()


def test_the_mouse_points_and_chooses(qtbot: QtBot, palette: Palette) -> None:
    place = palette.view.visualRect(palette.model.index(2, 0)).center()
    qtbot.mouseMove(palette.view.viewport(), QPoint(place.x() - 5, place.y()))
    qtbot.mouseMove(palette.view.viewport(), place)
    qtbot.waitUntil(lambda: palette.view.currentIndex().row() == 2)
    with qtbot.waitSignal(palette.chosen) as chosen:
        qtbot.mouseClick(palette.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert chosen.args == ["theme.dark"]


def test_it_stays_inside_a_small_window(window: QWidget, palette: Palette) -> None:
    palette.hide()
    window.resize(420, 360)
    palette.open(ENTRIES)
    assert palette.geometry().left() >= 0 and palette.geometry().right() <= window.width()
    assert palette.geometry().bottom() <= window.height()
    palette.grab()


def test_the_model_keeps_qt_s_rules(qtbot: QtBot) -> None:
    model = EntryModel()
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    for query in ("", "chat", "zzz", "further"):
        model.show_matches(ENTRIES, search(query, [e.text for e in ENTRIES]))
    assert tester.model() is model and model.rowCount() == 20
    index = model.index(0, 0)
    assert model.data(index, Qt.ItemDataRole.AccessibleTextRole) == "Further command 0, Help"
