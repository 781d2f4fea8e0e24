"""Docks below the page close where they would be too low, and come back as they were."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.main.application import Application
from tests.app.window_fixtures import application, script, usual_text

__all__ = ["application", "script", "usual_text"]  # fixtures

OPENS = "/models/tiny"


def test_docks_give_way_and_come_back(qtbot: QtBot, application: Application) -> None:
    window, views = application.window, application.views
    opened = lambda: {dock.objectName() for dock, _ in views.docks if not dock.isHidden()}
    window.resize(1600, 1000)
    window.show_widget(application.pages.tune)
    qtbot.waitUntil(lambda: "kv-blocks" in opened())
    before = opened()
    views.memory_dock.raise_()
    window.resize(1000, 640)
    application.settings.preferences.set("text_size", 160)
    qtbot.waitUntil(lambda: not opened())
    window.show_page(0)
    window.show_widget(application.pages.tune)  # what is stored has the docks
    qtbot.waitUntil(lambda: not opened())
    views.requests_dock.bring_to_front()
    qtbot.wait(50)
    assert opened() == {"requests"}  # the user's wish
    application.settings_dock.close()
    window.resize(1600, 1000)
    application.settings.preferences.set("text_size", 100)
    qtbot.waitUntil(lambda: opened() == before)
    assert application.settings_dock.isHidden()
    qtbot.waitUntil(lambda: not views.memory_dock.visibleRegion().isEmpty())
