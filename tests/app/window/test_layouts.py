"""Layouts in the real window: chosen, changed, kept, and back in the next run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication, QInputDialog, QMenu
from pytestqt.qtbot import QtBot

from app.main.application import Application
from app.window.docks import is_on_a_screen
from app.window.layouts import LayoutController
from app.window.settings_store import SettingsStore
from tests.app.window_fixtures import application, next_run, script
from tests.tiers import first_fast
from widgets.theme.fonts import point_size

__all__ = ["application", "script"]


def desk(application: Application) -> LayoutController:
    return application.layouts


def answer(application: Application, text: str) -> None:
    *_, dialog = application.window.findChildren(QInputDialog)
    dialog.setTextValue(text)
    dialog.accept()


def entries(application: Application) -> list[str]:
    """The texts of the Layout menu, a checked one marked."""
    view = next(a for a in application.window.menuBar().actions() if a.text() == "&View").menu()
    assert isinstance(view, QMenu)
    menu = next(a for a in view.actions() if a.text() == "Layout").menu()
    assert isinstance(menu, QMenu)
    menu.aboutToShow.emit()
    return [f"{'*' if a.isChecked() else ''}{a.text()}" for a in menu.actions() if a.text()]


def test_a_built_in_layout_puts_page_panels_and_text(
    qtbot: QtBot, application: Application
) -> None:
    window, body = application.window, point_size("body")
    blocks = application.views.blocks_dock
    window.commands.run("layout.tuning")
    assert window.page.name == "Tune" and not application.settings_dock.isHidden()
    assert entries(application)[:3] == ["Chat layout", "*Tuning layout", "Presentation layout"]
    window.commands.run("layout.presentation")
    assert application.settings_dock.isHidden() and blocks.isHidden()
    window.show_page(0)
    assert not application.charts_dock.isHidden() and application.settings_dock.isHidden()
    assert point_size("body") == round(body * 1.3, 1)
    assert SettingsStore().preferences.get("text_size") == 100
    window.commands.run("layout.chat")
    assert point_size("body") == body and application.charts_dock.isHidden()
    assert not window.commands.action("layout.update").isEnabled()


@pytest.mark.slow
def test_a_size_that_the_user_chooses_goes_before_that_of_the_layout(
    qtbot: QtBot, application: Application
) -> None:
    body = point_size("body")
    application.window.commands.run("layout.presentation")
    application.settings.preferences.set("text_size", 90)
    assert point_size("body") == round(body * 0.9, 1) and desk(application).text_size is None
    application.settings.preferences.reset("text_size")
    assert point_size("body") == body


def test_a_layout_is_saved_chosen_renamed_and_deleted_with_a_way_back(
    qtbot: QtBot, application: Application
) -> None:
    commands = application.window.commands
    commands.run("dock.live-charts")
    commands.run("layout.save_as")
    answer(application, " quiet &  wide ")
    assert "*quiet && wide layout" in entries(application)
    own = "layout.own.quiet & wide"
    commands.keymap.bind(own, "Ctrl+Alt+9")
    commands.take_keys()
    commands.run("layout.chat")
    assert application.charts_dock.isHidden()
    commands.run(own)
    assert not application.charts_dock.isHidden()
    commands.run("dock.log")
    commands.run("layout.reset")
    assert application.log_dock.isHidden()
    commands.run("dock.log")
    commands.run("layout.update")
    commands.run("layout.reset")
    assert not application.log_dock.isHidden()
    commands.run("layout.rename")
    answer(application, "calm")
    assert own not in commands and commands.action("layout.own.calm").shortcut() == "Ctrl+Alt+9"
    desk(application).rename("Chat")
    notice = application.notices.notice("layout")
    assert notice is not None and notice.kind == "error" and "Chat" in notice.cause
    commands.run("layout.delete")
    assert desk(application).store.own == () and "layout.own.calm" not in commands
    application.notices.frame("layout").buttons[0].click()
    assert desk(application).current.name == "calm" and "*calm layout" in entries(application)


@pytest.mark.slow
def test_a_layout_is_in_force_again_in_the_next_run(
    qapp: QApplication, qtbot: QtBot, application: Application
) -> None:
    commands, body = application.window.commands, point_size("body")
    commands.run("layout.presentation")
    commands.run("dock.log")
    desk(application).save_as("on stage")
    application.shutdown()
    with next_run(qapp) as again:
        again.show()
        assert desk(again).current.name == "on stage" and point_size("body") > body
        assert not again.log_dock.isHidden() and again.settings_dock.isHidden()
        again.window.commands.run("layout.chat")
        assert again.log_dock.isHidden() and point_size("body") == body


@pytest.mark.slow
def test_panels_of_a_screen_that_is_gone_come_home(qtbot: QtBot, application: Application) -> None:
    window = application.window
    application.log_dock.show()
    application.log_dock.setFloating(True)
    application.log_dock.move(20_000, 20_000)
    desk(application).save_as("two screens")
    window.commands.run("layout.chat")
    desk(application).choose("two screens")
    qtbot.waitUntil(lambda: is_on_a_screen(application.log_dock.window()), timeout=2000)
    assert not application.log_dock.isHidden()


@pytest.mark.parametrize("state", first_fast(1, [b"", b"not a state of any version"]))
def test_a_state_that_cannot_be_read_stands_as_planned_and_is_kept(
    qtbot: QtBot, application: Application, state: bytes
) -> None:
    window, store = application.window, desk(application).store
    desk(application).save_as("odd")
    odd = store.find("odd")
    assert odd is not None
    store.save(replace(odd, states={"Chat": state}))
    window.commands.run("dock.live-charts")
    desk(application).choose("odd")
    assert application.charts_dock.isHidden()
    notice = application.notices.notice("layout")
    assert (notice is not None and "odd" in notice.remedy) == bool(state)
    kept = store.find("odd")
    assert kept is not None and kept.states["Chat"] == state
