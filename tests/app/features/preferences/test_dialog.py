"""The settings dialog over the real window: what is chosen is seen at once, and kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.models.session import ModelSession
from app.features.preferences.dialog import SettingsDialog
from app.main.application import Application
from app.window.program_settings import PREFERENCES
from app.window.setting_specs import help_of
from app.window.settings_store import SettingsStore
from engine.config import SETTINGS
from tests.app.fakes import Script
from tests.app.window_fixtures import application, open_model, script
from tests.figures import numbers
from tests.tiers import first_fast
from widgets.controls.number_control import NumberControl
from widgets.controls.setting_row import SettingRow
from widgets.theme.fonts import point_size
from widgets.theme.theme import theme

__all__ = ["application", "script"]


def opened(application: Application, section: str = "") -> SettingsDialog:
    application.window.commands.run("app.settings")
    dialog = application.preferences.dialog
    assert dialog is not None
    if section:
        dialog.show_section(section)
    return dialog


def row(dialog: SettingsDialog, name: str) -> SettingRow:
    return next(view.rows[name] for view in dialog.views if name in view.rows)


def pick(row: SettingRow, value: object) -> None:
    row.control.set_value(value)
    row.control.changed.emit(value)


@pytest.mark.slow
def test_what_is_chosen_is_seen_marked_and_taken_back(
    qtbot: QtBot, application: Application
) -> None:
    dialog = opened(application, "Appearance")
    preferences, body = application.settings.preferences, point_size("body")
    assert dialog.shown_names == ["theme", "text_size", "chart_span"]
    theme_row, size = row(dialog, "theme"), row(dialog, "text_size")
    assert not theme_row.is_marked
    pick(theme_row, "dark")
    assert theme().is_dark and theme_row.is_marked
    assert isinstance(size.control, NumberControl)
    size.control.field.setValue(130)
    qtbot.waitUntil(lambda: point_size("body") == round(body * 1.3, 1), timeout=3000)
    shown = application.engine_settings.rows["block_size"].control.field.font()  # type: ignore[union-attr]
    assert round(shown.pointSizeF(), 1) == point_size("body")  # a font of its own
    pick(row(dialog, "chart_span"), 600)
    charts = (*application.charts.charts, *application.pages.tune.charts.charts)
    assert {chart.window_s for chart in charts} == {600.0}
    charts[0].window_changed.emit(30.0)  # from the menu of a chart
    assert preferences.get("chart_span") == 30 == row(dialog, "chart_span").value()
    assert size.reset is not None and "100 %" in size.reset.toolTip()
    size.reset.click()
    assert point_size("body") == body and not size.is_marked
    dialog.reset_all.click()
    assert not any(map(preferences.is_changed, PREFERENCES)) and not dialog.reset_all.isEnabled()


def test_a_number_out_of_range_is_not_taken_and_the_range_named(
    qtbot: QtBot, application: Application
) -> None:
    dialog = opened(application, "Notifications")
    kept = row(dialog, "notices_kept")
    assert isinstance(kept.control, NumberControl)
    field, before = kept.control.field, kept.value()
    field.selectAll()
    qtbot.keyClicks(field, "9000")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    qtbot.wait(300)  # longer than a slider may take to rest
    assert dialog.isVisible() and kept.value() == before != 2000
    assert kept.hint_tone == "error" and numbers(kept.hint)[:3] == [9000, 10, 2000]
    field.setValue(500)
    qtbot.waitUntil(lambda: application.settings.preferences.get("notices_kept") == 500)
    assert kept.hint_tone == "small" and numbers(kept.hint)[:2] == [10, 2000]


def test_settings_of_the_engine_are_those_of_the_panel(
    qtbot: QtBot, application: Application
) -> None:
    dialog = opened(application, "KV cache")
    panel, block = application.engine_settings, row(dialog, "block_size")
    assert not block.isEnabled() and dialog._message.text()
    open_model(qtbot, application)
    assert block.isEnabled() and block.value() == 16 and not block.is_marked
    assert isinstance(block.control, NumberControl)
    block.control.field.setValue(64)
    qtbot.waitUntil(lambda: panel.model.pending == {"block_size": 64}, timeout=3000)
    assert panel.rows["block_size"].value() == 64
    block.control.field.lineEdit().setText("9000")
    qtbot.keyClick(block.control.field, Qt.Key.Key_Return)
    assert block.hint_tone == "error" and 9000 in numbers(block.hint) and block.value() == 64
    block.control.field.lineEdit().setText("64")
    qtbot.keyClick(block.control.field, Qt.Key.Key_Return)
    assert panel.model.pending == {"block_size": 64}
    assert block.is_marked and "16" in block.hint
    assert dialog.apply.text() == "Apply (cache rebuild)" and not dialog.apply.isHidden()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        dialog.apply.click()
    assert dialog.apply.isHidden() and block.hint == help_of(SETTINGS["block_size"])
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.commands.undo()
    assert block.value() == 16 and not block.is_marked


@pytest.mark.slow
def test_layers_of_a_model_are_chosen_as_in_the_panel(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.host_layers = 0
    dialog = opened(application, "Model")
    panel, layers = application.engine_settings, row(dialog, "gpu_layers")
    open_model(qtbot, application)
    control = layers.control
    assert isinstance(control, NumberControl)
    assert layers.isEnabled() and control.field.text() == "auto" and control.slider.maximum() == 8
    control.slider.setValue(5)
    qtbot.waitUntil(lambda: panel.model.pending == {"gpu_layers": "5"}, timeout=3000)
    assert layers.is_marked and control.field.text() == "5 of 8"
    assert layers.reset is not None and layers.reset.toolTip().endswith("default: auto")
    layers.reset.click()
    assert panel.model.pending == {} and control.field.text() == "auto"


def test_the_search_shows_what_was_found_and_how_much_where(
    qtbot: QtBot, application: Application
) -> None:
    dialog = opened(application)
    qtbot.keyClicks(dialog.search, "size")
    assert {"text_size", "log_size"} <= set(dialog.shown_names)
    dialog.search.setText("chat.tokens")
    assert dialog.list.chosen == "Keyboard" and dialog.keyboard.table.rowCount() == 1
    dialog.search.setText("no such thing")
    assert not dialog.shown_names
    dialog.search.setText("")
    dialog.show_section("Log")
    assert dialog.shown_names == ["log_level", "log_size"]
    qtbot.keyClick(dialog, Qt.Key.Key_Escape)
    assert application.preferences.dialog is None or not dialog.isVisible()


@pytest.mark.slow
def test_folders_log_and_questions_take_effect(
    qtbot: QtBot, application: Application, tmp_path: Path
) -> None:
    dialog = opened(application, "Folders")
    folders = row(dialog, "model_folders").control
    folders.add_folder(str(tmp_path))  # type: ignore[union-attr]
    assert application.settings.folders == [str(tmp_path)]
    preferences = application.settings.preferences
    preferences.set("log_level", "error")
    assert logging.getLogger("app").level == logging.ERROR
    preferences.reset("log_level")
    preferences.set("confirm_links", False)
    preferences.set("confirm_leave", False)
    assert not application.pages.chat_page._asks_about_links()
    assert application.pages.runs.may_close(application.window)


@pytest.mark.parametrize(("choice", "loads"), first_fast(1, [("none", False), ("starter", True)]))
def test_what_is_opened_at_the_start(
    qapp: QApplication,
    qtbot: QtBot,
    application: Application,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    loads: bool,
) -> None:
    opened_models: list[object] = []
    monkeypatch.setattr(ModelSession, "load", lambda self, config: opened_models.append(config))
    SettingsStore().preferences.set("open_at_start", choice)
    application.startup.open_at_start({})
    assert bool(opened_models) is loads


@pytest.mark.slow
def test_the_keys_of_the_window_are_changed_in_the_dialog_and_come_back(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    window.commands.run("app.keyboard")
    dialog = application.preferences.dialog
    assert dialog is not None and dialog.list.chosen == "Keyboard"
    dialog.keyboard.choose("chat.new")
    dialog.keyboard.give("F7")
    page = application.pages.chat_page
    assert page.list.new_button.text() == "New chat     F7"
    assert ("New chat", "F7") in window.commands.shortcuts()["Chat"]
    assert SettingsStore().keymap._chosen == {"chat.new": "F7"}
    dialog.keyboard.reset_all.click()
    assert page.list.new_button.text() == "New chat     Ctrl+N"


@pytest.mark.slow
def test_tab_goes_through_the_rows_before_the_buttons(
    qtbot: QtBot, application: Application
) -> None:
    dialog = opened(application, "Appearance")
    theme_row = row(dialog, "theme")
    seen = [dialog.list]
    while seen[-1] is not dialog:
        seen.append(seen[-1].nextInFocusChain())
    assert 0 < seen.index(theme_row) < seen.index(dialog.reset_all)
    assert seen.index(dialog.reset_all) < seen.index(dialog.close_button) == len(seen) - 2
