"""The engine's settings in the real window: sent, collected, refused, undone, kept as profiles."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QApplication, QInputDialog, QMenu
from pytestqt.qtbot import QtBot

from app.features.tune.row_remarks import WITH_CEILING
from app.features.tune.server_commands import DRAFT_SETTINGS as SETTINGS_OF_IT
from app.features.tune.server_commands import VERIFY
from app.features.tune.server_dialog import ServerDialog
from app.main.application import Application
from app.window.setting_specs import help_of
from app.window.settings_store import SettingsStore
from engine.config import SETTINGS
from engine.errors import OutOfMemoryError
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import application, next_run, open_model, script, send
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.controls.setting_row import SettingRow
from widgets.controls.text import TIP_WIDTH

__all__ = ["application", "script"]

DOCK = "engine-settings"


def test_a_dragged_slider_sends_its_last_value(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    row = application.engine_settings.rows["max_num_seqs"]
    thread = application.bridge.engine
    assert isinstance(thread, FakeEngineThread)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        for position in (5, 6, 7, 8):
            row.control.slider.setValue(position)
    sent = [c for c in thread.commands if type(c).__name__ == "Reconfigure"]
    assert [dict(c.changes) for c in sent] == [{"max_num_seqs": row.value()}]  # type: ignore[union-attr]
    marks = [mark.text for chart in application.charts.charts for mark in chart.marks]
    assert marks and set(marks) == {f"Max running requests 16 → {row.value()}"}


def test_cache_and_reload_settings_wait_for_apply(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    panel = application.engine_settings
    panel.rows["block_size"].control.field.setValue(64)
    assert numbers(panel.rows["block_size"].hint) == [16]
    assert not panel.pending.isHidden() and panel.pending.apply.text() == "Apply (cache rebuild)"
    qtbot.wait(300)
    assert application.bridge.config is not None and application.bridge.config.block_size == 16
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.pending.apply.click()
    assert application.bridge.config.block_size == 64 and panel.pending.isHidden()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel._undo.click()
    assert panel.rows["block_size"].value() == 16


@pytest.mark.slow
def test_apply_leaves_the_keyboard_in_its_place(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    application.window.activateWindow()
    panel = application.engine_settings
    panel.rows["block_size"].control.field.setValue(64)
    panel.pending.apply.setFocus()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        qtbot.keyClick(panel.pending.apply, Qt.Key.Key_Space)
    assert panel.pending.isHidden()
    focused = QApplication.focusWidget()
    assert focused is not None and focused.isAncestorOf(panel.pending.apply)
    qtbot.keyClick(focused, Qt.Key.Key_Space)
    assert application.bridge.config is not None and application.bridge.config.block_size == 64
    qtbot.keyClick(focused, Qt.Key.Key_Tab)
    assert panel._undo.hasFocus()  # it stands behind Apply


def test_a_refused_setting_says_why_and_shows_the_value_before(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.failing_settings = ("kv_cache_memory_bytes",)
    open_model(qtbot, application)
    panel = application.engine_settings
    row = panel.rows["kv_cache_memory_bytes"]
    row.control.field.setValue(2.0)
    with qtbot.waitSignal(application.bridge.reconfigure_failed, timeout=3000):
        panel.commands.apply()
    assert row.hint_tone == "error" and "9 GiB of 3 GiB" in row.hint
    assert row.value() is None


def write(qtbot: QtBot, application: Application, name: str, text: str) -> SettingRow:
    """Type a value and Enter."""
    row = application.engine_settings.rows[name]
    field = row.control.field
    field.selectAll()
    qtbot.keyClicks(field, text)
    qtbot.keyClick(field, Qt.Key.Key_Return)
    return row


def test_a_number_out_of_range_is_not_taken_and_the_range_is_named_until_the_next_edit(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    row = write(qtbot, application, "max_num_seqs", "5000")
    assert row.value() == 16 and not application.engine_settings.commands.pending
    assert row.hint_tone == "error" and numbers(row.hint)[:3] == [5000, 1, 1024]
    write(qtbot, application, "max_num_seqs", "16")  # the value before, typed
    assert row.hint_tone == "small"
    write(qtbot, application, "max_num_seqs", "5000")
    choose_setting(qtbot, application, "max_num_seqs", 32)
    assert row.hint_tone == "small"
    write(qtbot, application, "max_num_seqs", "5000")
    assert row.hint_tone == "error"
    run_and_wait(qtbot, application, "tune.undo")
    assert row.value() == 16 and row.hint_tone == "small"


def test_a_kv_cache_that_the_machine_cannot_give_is_refused(
    qtbot: QtBot, application: Application
) -> None:
    """Its bounds can be typed, and are what the loaded model leaves."""
    open_model(qtbot, application)
    panel, plan = application.engine_settings, application.bridge.plan
    row = write(qtbot, application, "kv_cache_memory_bytes", "900")
    assert row.value() is None and not panel.model.pending and row.hint_tone == "error"
    typed, least, most = numbers(row.hint)[:3]
    assert plan is not None and typed == 900 and 0 < least < 0.01
    room = (plan.limit - plan.weights - plan.activations) / 2**30
    assert room - 0.001 <= most <= room
    write(qtbot, application, "kv_cache_memory_bytes", "0.0001")
    assert row.hint_tone == "error" and row.value() is None
    write(qtbot, application, "kv_cache_memory_bytes", f"{most}")
    assert row.hint_tone == "warning" and row.value() is not None
    for end in ("tune.discard", "tune.apply"):
        panel.choose("block_size", 32)
        write(qtbot, application, "kv_cache_memory_bytes", "900")
        assert row.hint_tone == "error"
        if end == "tune.apply":
            run_and_wait(qtbot, application, end)
        else:
            application.window.commands.run(end)
        assert row.hint_tone == "small" and row.value() is None


@pytest.mark.slow
def test_the_preview_names_settings_as_their_rows_do(application: Application) -> None:
    error = OutOfMemoryError("Too large.", "Choose a smaller kv_cache_memory_bytes.").info()
    pending = application.engine_settings.pending
    pending._not_found(error)
    assert SETTINGS["kv_cache_memory_bytes"].label in pending.memory.text()
    assert "kv_cache_memory_bytes" not in pending.memory.text()


@pytest.mark.slow
def test_who_wants_to_choose_a_method_of_drafting_is_led_to_its_row(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    window = application.window
    window.resize(1200, 700)
    window.show()
    with qtbot.waitActive(window):
        window.activateWindow()
    row = application.engine_settings.rows["speculative_method"]
    assert row.visibleRegion().isEmpty()
    application.views.speculation.choose.click()
    qtbot.waitUntil(lambda: row.visibleRegion().boundingRect() == row.rect())
    assert row.control.hasFocus()


def test_a_servers_command_is_copied_with_what_it_lacks(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    panel = application.engine_settings
    panel.rows["batching"].control.setCurrentIndex(1)
    panel.rows["batching"].control.activated.emit(1)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        pass
    panel._copy.click()
    [dialog] = application.window.findChildren(ServerDialog)
    for server, begin in (
        ("vLLM", "vllm serve /models/tiny"),
        ("SGLang", "python3 -m sglang.launch_server"),
        ("TensorRT-LLM", "cat > "),
    ):
        dialog.choose(server)
        assert "Batching (static)" in dialog.comments.text()
        dialog.copy_button.click()
        copied = QGuiApplication.clipboard().text()
        assert copied.startswith(begin)
        assert "Batching (static)" in copied and server in copied
        assert VERIFY in copied
    dialog.reject()


def copied_command(application: Application) -> str:
    application.engine_settings.show_command()
    [dialog] = application.window.findChildren(ServerDialog)
    dialog.choose("vLLM")
    dialog.copy_button.click()
    dialog.reject()
    dialog.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    return QGuiApplication.clipboard().text()


@pytest.mark.slow
def test_a_budget_is_copied_where_it_was_chosen(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    config = application.bridge.config
    assert config is not None and config.max_num_batched_tokens == 512  # of auto
    assert "--max-num-batched-tokens" not in copied_command(application)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        application.engine_settings.choose("max_num_batched_tokens", 256)
    assert "--max-num-batched-tokens 256" in copied_command(application)


def choose_setting(qtbot: QtBot, application: Application, name: str, value: float) -> None:
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        application.engine_settings.rows[name].control.field.setValue(value)


def run_and_wait(qtbot: QtBot, application: Application, command: str) -> None:
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        application.window.commands.run(command)


def test_settings_are_undone_and_redone_by_commands(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    row = application.engine_settings.rows["max_num_seqs"]
    undo, redo = (application.window.commands.action(f"tune.{n}") for n in ("undo", "redo"))
    assert not undo.isEnabled() and not redo.isEnabled()
    choose_setting(qtbot, application, "max_num_seqs", 32)
    assert undo.isEnabled()
    run_and_wait(qtbot, application, "tune.undo")
    assert row.value() == 16 and redo.isEnabled() and not undo.isEnabled()
    run_and_wait(qtbot, application, "tune.redo")
    assert row.value() == 32 and not redo.isEnabled()


@pytest.mark.slow
def test_undo_takes_back_no_older_change_while_one_is_not_answered(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    panel, commands = application.engine_settings, application.window.commands
    choose_setting(qtbot, application, "max_num_seqs", 32)
    panel.choose("quantization", "int8")
    refused: list[str] = []
    panel.commands.refused.connect(refused.append)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.commands.apply()
        commands.run("tune.undo")
        assert len(panel.model.sent) == 1 and len(refused) == 1 and panel.message == refused[0]
    assert panel.model.shown("max_num_seqs") == 32 and panel.model.shown("quantization") == "int8"
    run_and_wait(qtbot, application, "tune.undo")
    assert panel.model.shown("quantization") == SETTINGS["quantization"].default
    panel.choose("max_num_seqs", 48)  # sent a little later
    commands.run("tune.undo")
    assert panel.rows["max_num_seqs"].value() == 32 and not panel.model.sent
    panel.hide()
    said: list[object] = []
    panel.notice.connect(said.append)
    panel.choose("quantization", "int8")
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.commands.apply()
        commands.run("tune.undo")
    assert len(said) == 1  # the message of the panel is out of sight


def entry(menu: QMenu, text: str) -> QAction:
    """The entry of a menu, which is filled as if it were opened."""
    menu.aboutToShow.emit()
    return next(action for action in menu.actions() if action.text() == text)


@pytest.mark.slow
def test_the_saved_values_are_shown_while_the_model_loads(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    open_model(qtbot, application)
    row = application.engine_settings.rows["max_num_seqs"]
    choose_setting(qtbot, application, "max_num_seqs", 8)
    with qtbot.waitSignal(application.bridge.unloaded):
        application.session.unload()
    with qtbot.waitSignal(application.bridge.loaded):
        application.session.open("/models/tiny")
        assert application.engine_settings.model.applied is None
        assert row.value() == 8 and not row.isEnabled()
    assert row.value() == 8 and row.isEnabled()


def test_a_profile_is_saved_chosen_and_deleted_with_a_way_back(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    panel = application.engine_settings
    menu = panel.profiles
    assert not entry(menu, "No saved profiles").isEnabled()
    choose_setting(qtbot, application, "max_num_seqs", 64)
    application.window.commands.run("tune.save_profile")
    [dialog] = application.window.findChildren(QInputDialog)
    dialog.setTextValue("  many &  at once ")
    dialog.accept()
    assert entry(menu, "many && at once").isChecked()
    run_and_wait(qtbot, application, "tune.defaults")
    assert panel.rows["max_num_seqs"].value() == 16
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        entry(menu, "many && at once").trigger()
    assert panel.rows["max_num_seqs"].value() == 64
    entry(entry(menu, "Delete profile").menu(), "many && at once").trigger()
    assert application.settings.profiles.profiles == ()
    notice = application.notices.notice("profile")
    assert notice is not None and "many & at once" in notice.cause
    application.notices.frame("profile").buttons[0].click()
    assert [p.name for p in SettingsStore().profiles.profiles] == ["many & at once"]


@pytest.mark.slow
def test_a_damaged_file_of_profiles_is_kept_aside_and_said(
    qapp: QApplication, application: Application
) -> None:
    application.shutdown()
    path = application.settings.path.with_name("profiles.json")
    path.write_text("{ not json", encoding="utf-8")
    with next_run(qapp) as again:
        notice = again.notices.notice("profile")
        assert notice is not None and "profiles.damaged-1.json" in notice.cause
        assert path.with_name("profiles.damaged-1.json").read_text(encoding="utf-8") == "{ not json"


def test_hints_say_what_happens_now(qtbot: QtBot, application: Application, script: Script) -> None:
    script.replies, script.step_s = 100_000, 0.005
    open_model(qtbot, application)
    send(qtbot, application, "question")
    rows = application.engine_settings.rows
    qtbot.waitUntil(lambda: rows["max_num_seqs"].hint == "1 running · 0 waiting", timeout=3000)
    assert numbers(rows["block_size"].hint) == [25]
    assert numbers(rows["kv_cache_memory_bytes"].hint) == [64, 2048]  # and no preemptions
    assert rows["max_num_batched_tokens"].hint.split(", ")[0].endswith("2 ms")
    for name, row in rows.items():
        assert row.hint or name == "seed" or name in SETTINGS_OF_IT  # nothing was drafted


@pytest.mark.slow
def test_hints_follow_what_happened_while_they_were_hidden(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    panel = application.engine_settings
    application.window.show_page(1)
    panel.hide()
    panel.update_snapshot(synthetic.snapshot(1e6, num_running=3, num_waiting=2))
    assert numbers(panel.rows["max_num_seqs"].hint)[:2] != [3, 2]
    panel.show()
    assert panel.isVisible() and numbers(panel.rows["max_num_seqs"].hint)[:2] == [3, 2]


@pytest.mark.slow
def test_what_a_setting_could_win_moves_no_row(qtbot: QtBot, application: Application) -> None:
    """It is said from the first reply on, when the hand may be on its way to a control."""
    open_model(qtbot, application)
    panel = application.engine_settings
    panel.show_ceilings({})
    before = {name: row.sizeHint().height() for name, row in panel.rows.items()}
    panel.show_ceilings({key: {None: "No gain expected"} for key in WITH_CEILING})
    assert all("No gain expected" in panel.rows[n].hint for n in ("max_num_seqs", "quantization"))
    assert {name: row.sizeHint().height() for name, row in panel.rows.items()} == before


@pytest.mark.slow
def test_a_pending_value_has_its_own_gain(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    panel = application.engine_settings
    gains = {"int8": "Up to 1.2× faster with INT8", "int4": "INT4: no gain expected"}
    panel.show_ceilings({"quantization": gains, "max_num_seqs": {8: "Up to 2× at 8"}})
    assert panel.rows["quantization"].hint.endswith("; ".join(gains.values()))
    for value in gains:
        panel.choose("quantization", value)
        assert panel.pending.gain.text() == gains[value]
    panel.choose("quantization", "none")
    panel.choose("dtype", "float32")  # without an estimate
    assert panel.pending.gain.text() == ""


def test_every_setting_of_the_registry_that_can_be_chosen_has_an_accessible_control(
    application: Application,
) -> None:
    for name, row in application.engine_settings.rows.items():
        control = getattr(row.control, "field", row.control)
        assert control.accessibleName() == SETTINGS[name].label
        tip = row.toolTip()
        assert " ".join(tip.split()).startswith(" ".join(help_of(SETTINGS[name]).split()))
        assert max(map(len, tip.splitlines())) <= TIP_WIDTH


@pytest.mark.slow
def test_an_effect_of_a_preference_that_fails_is_a_notice(application: Application) -> None:
    def fail(value: object) -> None:
        raise PermissionError(13, "Permission denied", "/logs/inferdeck.log")

    preferences = application.settings.preferences
    preferences.follow("chart_span", fail)
    preferences.set("chart_span", 300)
    notice = application.notices.notice("preference-chart_span")
    assert notice is not None and notice.kind == "error"
    assert "/logs/inferdeck.log" in notice.cause
