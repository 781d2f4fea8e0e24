"""What the window can do: menus, palette and help are made from the registry of commands."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu, QPushButton
from pytestqt.qtbot import QtBot

from app.features.preferences.controller import SETTING
from app.main.application import Application
from app.window.help_dialogs import in_columns
from tests.app.window_fixtures import application, ask, open_model, script, wait_idle

__all__ = ["application", "script"]


def test_every_command_has_a_home_and_no_shortcut_is_taken_twice(
    application: Application,
) -> None:
    commands = list(application.window.commands)
    assert {c.where for c in commands} == {"File", "View", "Chat", "Tune", "Inspect", "Help"}
    shortcuts = [c.shortcut for c in commands if c.shortcut]
    assert len(shortcuts) == len(set(shortcuts))
    wanted = {"Ctrl+N", "Ctrl+O", "Ctrl+B", "Ctrl+/", "Ctrl+1", "Ctrl+K", "Esc", "Ctrl+Return"}
    assert wanted <= set(shortcuts)
    menus = [action.text() for action in application.window.menuBar().actions()]
    assert menus == ["&File", "&View", "&Chat", "&Tune", "&Inspect", "&Help"]


@pytest.mark.slow
def test_shortcuts_work_before_a_menu_was_opened(qtbot: QtBot, application: Application) -> None:
    commands = application.window.commands

    def stale() -> list[str]:
        known = [c for c in commands if c.is_enabled is not None and c.why_not is None]
        return [c.id for c in known if c.is_enabled() != commands.action(c.id).isEnabled()]

    open_model(qtbot, application)
    qtbot.waitUntil(lambda: not stale(), timeout=3000)
    assert commands.action("flight.save").isEnabled()
    ask(application, "hello")
    wait_idle(qtbot, application)
    qtbot.waitUntil(lambda: not stale(), timeout=3000)


@pytest.mark.slow
def test_a_new_chat_begins_in_sight_whatever_page_was_shown(
    qtbot: QtBot, application: Application
) -> None:
    """What was typed next went to a chat that nobody saw."""
    window, chat = application.window, application.pages.chat_page
    open_model(qtbot, application)
    window.commands.run("page.models")
    window.activateWindow()
    qtbot.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: window.page.name == "Chat" and chat.composer.isVisible())
    assert chat.composer.hasFocus() or chat.composer.isAncestorOf(window.focusWidget())
    window.commands.run("page.tune")
    window.commands.run("chat.regenerate")  # while the charts are watched
    assert window.page.name == "Tune"


@pytest.mark.slow
def test_quit_is_the_last_of_the_file_menu(application: Application) -> None:
    bar = application.window.menuBar().actions()
    menu = next(action.menu() for action in bar if action.text() == "&File")
    assert isinstance(menu, QMenu)
    last = [action.objectName() for action in menu.actions() if not action.isSeparator()][-2:]
    assert last == ["app.settings", "app.quit"]


@pytest.mark.slow
def test_a_metric_finds_what_shows_and_what_moves_it(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    application.window.commands.run("help.palette")
    palette = application.dialogs.palette
    for metric in ("ITL", "ttft", "throughput"):
        palette.field.setText(metric)
        shown = [palette.model.entry(row).id for row in range(palette.model.rowCount())]
        best = set(shown[:12])
        assert {"page.tune", "dock.live-charts", "tune.load", f"{SETTING}max_num_seqs"} <= best


def test_the_palette_finds_and_runs_every_command(qtbot: QtBot, application: Application) -> None:
    window = application.window
    window.activateWindow()
    control, shift = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(window, Qt.Key.Key_P, control | shift)
    palette = application.dialogs.palette
    qtbot.waitUntil(palette.isVisible)
    known = {palette.model.entry(row).id: row for row in range(palette.model.rowCount())}
    assert set(known) == {c.id for c in window.commands} - {"help.palette"}
    assert not palette.model.entry(known["chat.stop"]).is_enabled  # nothing is being written
    qtbot.keyClicks(palette.field, "light")
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert palette.isHidden() and application.settings.theme == "light"
    application.dialogs.show_palette()
    first = palette.model.entry(0)
    assert (first.id, first.is_checked) == ("theme.light", True)


def test_the_palette_finds_every_tab_of_inspect(qtbot: QtBot, application: Application) -> None:
    page, palette = application.pages.inspect, application.dialogs.palette
    assert page.tabs.count() == len(page.titles) > 1
    for name, title in page.titles.items():
        application.window.commands.run("page.chat")
        application.dialogs.show_palette()
        palette.field.setText(title.lower())
        entry = palette.model.entry
        row = [entry(row).id for row in range(palette.model.rowCount())].index(f"inspect.{name}")
        assert row < 4
        for _ in range(row):
            qtbot.keyClick(palette.field, Qt.Key.Key_Down)
        qtbot.keyClick(palette.field, Qt.Key.Key_Return)
        assert page.isVisible() and page.current == name


def choose_in_palette(qtbot: QtBot, application: Application, typed: str, name: str) -> None:
    open_model(qtbot, application)
    window = application.window
    window.activateWindow()
    application.dialogs.show_palette()
    palette = application.dialogs.palette
    qtbot.keyClicks(palette.field, typed)
    found = [palette.model.entry(row).id for row in range(palette.model.rowCount())]
    place = found.index(f"{SETTING}{name}")
    for _ in range(place):
        qtbot.keyClick(palette.field, Qt.Key.Key_Down)
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert palette.isHidden()


@pytest.mark.parametrize(
    ("typed", "name"), [("kv", "kv_cache_dtype"), ("watermark", "watermark")]
)
def test_the_palette_finds_engine_settings_in_their_panel(
    qtbot: QtBot, application: Application, typed: str, name: str
) -> None:
    choose_in_palette(qtbot, application, typed, name)
    row = application.engine_settings.rows[name]
    qtbot.waitUntil(lambda: row.visibleRegion().boundingRect() == row.rect())
    focused = application.window.focusWidget()
    assert focused is not None and row.isAncestorOf(focused)
    assert application.preferences.dialog is None


def test_the_palette_finds_settings_of_the_program_in_their_dialog(
    qtbot: QtBot, application: Application
) -> None:
    name = "text_size"
    choose_in_palette(qtbot, application, "text size", name)
    dialog = application.preferences.dialog
    assert dialog is not None and name in dialog.shown_names
    row = next(view.rows[name] for view in dialog.views if name in view.rows)
    area = dialog.area.viewport()
    assert area.rect().contains(row.rect().translated(row.mapTo(area, row.rect().topLeft())))
    focused = dialog.focusWidget()
    assert focused is not None and row.isAncestorOf(focused)
    dialog.close()


def test_help_lists_the_shortcuts_and_the_versions(qtbot: QtBot, application: Application) -> None:
    window = application.window
    window.commands.run("help.shortcuts")
    window.commands.run("help.about")
    dialogs = [w for w in window.children() if hasattr(w, "sections")]
    texts = [dialog.text() for dialog in dialogs]
    assert any("Open model: Ctrl+O" in text for text in texts)
    assert any("torch:" in text and "Qt: 6" in text for text in texts)
    room = application.window.screen().availableSize()
    for dialog in dialogs:
        assert dialog.sizeHint().height() <= room.height() and dialog.isVisible()
        dialog.reject()


def test_long_lists_stand_in_columns_in_their_order() -> None:
    def rows(count: int) -> list[tuple[str, str]]:
        return [(f"{place}", "") for place in range(count)]

    sections = {"A": rows(9), "B": rows(20), "C": rows(22), "D": rows(4)}
    columns = in_columns(sections)
    assert [title for column in columns for title in column] == ["A", "B", "C", "D"]
    assert [list(column) for column in columns] == [["A", "B"], ["C", "D"]]
    assert in_columns({"A": rows(3)}) == [{"A": rows(3)}]


@pytest.mark.slow
def test_the_palette_has_the_keyboard_after_pages_were_changed(
    qtbot: QtBot, application: Application
) -> None:
    """The models page hides its tabs behind the welcome page, and Qt gives them the focus that they
    had once; see `KeptFocus`."""
    window, commands = application.window, application.window.commands
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    commands.run("help.welcome")
    for button in application.pages.models_place.welcome.findChildren(QPushButton)[:1]:
        button.setFocus()
    for command in ("page.tune", "help.welcome", "help.palette"):
        commands.run(command)
    assert application.dialogs.palette.field.hasFocus()
