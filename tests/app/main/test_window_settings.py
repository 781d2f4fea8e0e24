"""The engine's settings in the real window: sent, collected, refused, undone, kept as profiles."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QApplication, QInputDialog, QMenu
from pytestqt.qtbot import QtBot

from app.features.models.placement import NOT_BOTH, RANKS, STAGES
from app.features.tune.row_remarks import WITH_CEILING, RowRemarks
from app.features.tune.server_commands import DRAFT_SETTINGS as SETTINGS_OF_IT
from app.features.tune.server_commands import VERIFY
from app.features.tune.server_dialog import ServerDialog
from app.features.tune.settings_model import SettingsModel
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.window.setting_specs import help_of, only_on, sections
from app.window.settings_store import SettingsStore
from engine.config import SETTINGS, EngineConfig
from engine.snapshot import GpuFigures
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import application, next_run, open_model, script, send
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.controls.number_control import NumberControl
from widgets.controls.setting_row import ChoiceControl

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


def test_a_number_out_of_range_becomes_the_nearest_and_the_range_is_named(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    row = application.engine_settings.rows["max_num_seqs"]
    field = row.control.field
    field.selectAll()
    qtbot.keyClicks(field, "5000")
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        qtbot.keyClick(field, Qt.Key.Key_Return)
    assert row.value() == 1024
    assert row.hint_tone == "error" and numbers(row.hint)[:3] == [5000, 1, 1024]
    choose_setting(qtbot, application, "max_num_seqs", 32)
    assert row.hint_tone == "small"
    field.selectAll()
    qtbot.keyClicks(field, "5000")
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        qtbot.keyClick(field, Qt.Key.Key_Return)
    assert row.hint_tone == "error"
    run_and_wait(qtbot, application, "tune.undo")
    assert row.value() == 32 and row.hint_tone == "small"  # nobody has written 32


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


def entry(menu: QMenu, text: str) -> QAction:
    """The entry of a menu, which is filled as if it were opened."""
    menu.aboutToShow.emit()
    return next(action for action in menu.actions() if action.text() == text)


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


def test_what_a_setting_could_win_moves_no_row(qtbot: QtBot, application: Application) -> None:
    """It is said from the first reply on, when the hand may be on its way to a control."""
    open_model(qtbot, application)
    panel = application.engine_settings
    panel.show_ceilings({})
    before = {name: row.sizeHint().height() for name, row in panel.rows.items()}
    panel.show_ceilings(dict.fromkeys(WITH_CEILING, "No gain expected"))
    assert all("No gain expected" in panel.rows[n].hint for n in ("max_num_seqs", "quantization"))
    assert {name: row.sizeHint().height() for name, row in panel.rows.items()} == before


def test_every_setting_of_the_registry_that_can_be_chosen_has_an_accessible_control(
    application: Application,
) -> None:
    for name, row in application.engine_settings.rows.items():
        control = getattr(row.control, "field", row.control)
        assert control.accessibleName() == SETTINGS[name].label
        assert help_of(SETTINGS[name]) in row.toolTip()


def test_gpus_of_the_driver_become_devices(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the row of the panel, and in the settings dialog that is opened afterwards."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    card = GpuFigures("NVIDIA H200", total=141 * 2**30, used=2**30, own=0, power_w=90.0)
    with next_run(qapp) as application:
        panel = application.engine_settings
        control = panel.rows["device"].control
        assert isinstance(control, ChoiceControl) and control.findData("cuda:0") < 0
        application.gpu.measured.emit(1.0, (card,))
        place = control.findData("cuda:0")
        assert control.itemText(place) == "cuda:0 · NVIDIA H200"
        assert [control.itemData(i) for i in range(control.count())] == ["auto", "cpu", "cuda:0"]
        rows = {s.name: s for specs in sections(panel.machine).values() for s in specs}
        assert ("cuda:0", "cuda:0 · NVIDIA H200") in rows["device"].choices
        application.gpu.measured.emit(2.0, (card,))
        assert control.count() == 3
        panel.offer_gpus(())
        assert [control.itemData(i) for i in range(control.count())] == ["auto", "cpu"]
        control.set_value("cuda:0")  # from the command line
        panel.offer_gpus((card.name,))
        panel.offer_gpus(())
        assert control.value() == "cuda:0"


def test_gpus_of_an_engine_elsewhere_are_shown_while_it_is_used(
    qapp: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = False
    monkeypatch.setattr(EngineBridge, "is_remote", property(lambda bridge: away))
    card = GpuFigures("NVIDIA H200", total=141 * 2**30, used=2**30, own=0)
    own = GpuFigures("A card", total=8 * 2**30, used=2**30, own=0)
    with next_run(qapp) as application:
        memory, panel = application.views.memory, application.engine_settings
        told = lambda gpus: application.bridge.snapshot.emit(
            dataclasses.replace(synthetic.snapshot(1.0), gpus=gpus)
        )
        application.gpu.measured.emit(1.0, (own,))
        told(())
        assert memory._gpus == (own,)
        away = True
        told(())  # it computes on its CPU: this machine's GPU is not its
        assert memory._gpus == () and panel.machine.gpus == ()
        told((card,))
        application.gpu.measured.emit(2.0, (own,))
        assert memory._gpus == (card,) and panel.machine.gpus == (card.name,)
        divided = dataclasses.replace(card, uuid="GPU-0")
        part = GpuFigures("A part", 18 * 2**30, 2**30, uuid="MIG-0", part_of="GPU-0")
        told((divided, part))
        assert memory._gpus == (part,) and panel.machine.gpus == (card.name,)
        away = False
        told(())
        assert memory._gpus == () and panel.machine.gpus == ()
        application.gpu.measured.emit(3.0, (own,))
        assert memory._gpus == (own,)


def test_eager_steps_are_for_a_gpu_and_threads_for_the_cpu() -> None:
    model = SettingsModel()
    everything = SimpleNamespace(matters=lambda name, weights: True)
    remarks = RowRemarks(model, everything)  # type: ignore[arg-type]
    for device, why in (("cpu", only_on("enforce_eager", "cpu")), ("cuda:0", ""), ("auto", "")):
        model.open(EngineConfig(model="any", device=device), {})
        assert remarks.idle_because("enforce_eager") == why
        only = only_on("adaptive_threads", "cuda:0") if device == "cuda:0" else ""
        assert remarks.idle_because("adaptive_threads") == only
        assert remarks.idle_because("num_threads") == ""  # a model is loaded by them
        assert remarks.idle_because("block_size") == ""
        assert remarks.idle_because("gpu_layers") == why


def test_eager_steps_are_no_choice_with_several_gpus() -> None:
    model = SettingsModel()
    everything = SimpleNamespace(matters=lambda name, weights: True)
    remarks = RowRemarks(model, everything)  # type: ignore[arg-type]
    for name in (RANKS, STAGES):
        for count, why in ((1, ""), (2, only_on("enforce_eager", "cuda:0", num_gpus=2))):
            model.open(EngineConfig(model="any", device="cuda:0").replace(**{name: count}), {})
            assert remarks.idle_because("enforce_eager") == why
            assert not any(map(remarks.idle_because, ("gpu_layers", RANKS, STAGES)))


def test_more_ranks_than_there_can_be_are_told_before_they_are_applied(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    """And what so many would be; on one the row is as quiet as the others."""
    open_model(qtbot, application)
    panel = application.engine_settings
    panel._machine = dataclasses.replace(panel.machine, num_nodes=1)
    row = panel.rows[RANKS]
    control = row.control
    assert isinstance(control, NumberControl)
    panel._show_values()
    shows = lambda found: row.hint_tone == "small" and numbers(row.hint) == found
    qtbot.waitUntil(lambda: shows([2, 1]), timeout=3000)
    control.slider.setValue(1)
    assert (numbers(row.hint), row.hint_tone) == ([1, 2, 1, 1], "warning")
    control.slider.setValue(2)
    assert (numbers(row.hint), row.hint_tone) == ([2, 4], "error")
    control.slider.setValue(1)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.pending.apply.click()
    assert application.bridge.config is not None
    assert application.bridge.config.tensor_parallel_size == 2
    qtbot.waitUntil(lambda: shows([2, 1, 1]), timeout=3000)
    assert row.value() == 2 and application.strip.title.endswith("cpu, TP 2, 2 threads")
    panel.choose("speculative_method", "eagle3")
    assert "EAGLE-3" in row.hint and row.hint_tone == "error"
    panel.commands.undo()
    assert row.hint_tone == "small"


def test_gpus_that_are_missing_for_ranks_are_told_before(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.host_layers = 0
    open_model(qtbot, application)
    panel = application.engine_settings
    row = panel.rows[RANKS]
    panel.offer_gpus(("A card",))
    panel.choose(RANKS, 2)
    assert numbers(row.hint) == [2, 2, 1] and row.hint_tone == "error"
    panel.offer_gpus(("A card", "A card"))
    qtbot.waitUntil(lambda: numbers(row.hint) == [1, 0, 1, 12.0], timeout=3000)
    assert row.hint_tone == "warning"
    panel.choose("gpu_layers", "3")
    assert "CPU offload" in row.hint and row.hint_tone == "error"


def test_stages_are_chosen_where_there_are_gpus_for_them(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    """And what speaks against so many is told before they are applied."""
    open_model(qtbot, application)
    panel = application.engine_settings
    row, ranks = panel.rows[STAGES], panel.rows[RANKS]
    assert not row.isEnabled() and numbers(row.hint) == [2]
    script.host_layers = 0
    open_model(qtbot, application, "/models/other")
    panel.offer_gpus(("A card",))
    assert not row.isEnabled() and ranks.isEnabled()
    panel.offer_gpus(("A card",) * 3)
    assert row.isEnabled()
    panel._show_values()
    shows = lambda found: row.hint_tone == "small" and numbers(row.hint) == found
    qtbot.waitUntil(lambda: shows([0, 3]), timeout=3000)
    control = row.control
    assert isinstance(control, NumberControl)
    control.slider.setValue(2)
    would = [1, 0, 2, 2, 3, 8.01]
    assert (row.value(), numbers(row.hint), row.hint_tone) == (3, would, "warning")
    eager = panel.rows["enforce_eager"]
    assert eager.hint == only_on("enforce_eager", "cuda:0", num_gpus=3) and not eager.isEnabled()
    control.slider.setValue(3)
    assert (numbers(row.hint), row.hint_tone) == ([4, 4, 3], "error")
    control.slider.setValue(2)
    panel.choose(RANKS, 2)
    assert row.hint == ranks.hint == NOT_BOTH and row.hint_tone == ranks.hint_tone == "error"
    panel.choose(RANKS, 1)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.pending.apply.click()
    assert application.bridge.config is not None
    assert application.bridge.config.pipeline_parallel_size == 3
    qtbot.waitUntil(lambda: shows([0, 2, 2, 3, 24.0]), timeout=3000)
    assert ", PP 3" in application.strip.title
    panel.choose("device", "cpu")
    assert row.isEnabled() and "cpu" in row.hint and row.hint_tone == "error"


def test_layers_are_chosen_as_words_or_numbers(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    """As many as the model has; what they cost is said, and the threads of the CPU matter."""
    open_model(qtbot, application)
    panel = application.engine_settings
    row, threads = panel.rows["gpu_layers"], panel.rows["adaptive_threads"]
    assert not row.isEnabled() and row.hint == only_on("gpu_layers", "cpu")
    script.host_layers = 0
    open_model(qtbot, application, "/models/other")
    qtbot.waitUntil(lambda: numbers(row.hint)[:3] == [8, 0, 2.5], timeout=3000)
    assert row.value() == "auto" and row.isEnabled() and not threads.isEnabled()
    control = row.control
    assert isinstance(control, NumberControl)
    shown = []
    for position in range(9):
        control.slider.setValue(position)
        shown.append((control.field.text(), panel.model.shown("gpu_layers")))
    counts = [(f"{n} of 8", f"{n}") for n in range(1, 8)]
    assert shown == [("auto", "auto"), *counts, ("all of 8", "all")]
    control.slider.setValue(6)
    assert (numbers(row.hint), row.hint_tone) == ([2, 5.01, 16.0], "warning")
    assert threads.isEnabled()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.pending.apply.click()
    assert application.bridge.config is not None and application.bridge.config.gpu_layers == "6"
    assert threads.isEnabled() and control.field.text() == "6 of 8"
    qtbot.waitUntil(lambda: numbers(row.hint)[:4] == [6, 8, 0, 2], timeout=3000)
    assert 4.0 in numbers(panel.rows["quantization"].hint)
    assert 16.0 in numbers(panel.rows["kv_cache_memory_bytes"].hint)
    assert "RAM" in panel.rows["gpu_memory_utilization"].hint
    assert set(numbers(panel.rows["max_model_len"].hint)) >= {1024, 0}
    control.slider.setValue(8)
    assert numbers(row.hint)[1:] == [2, 0, 5.01, 16.0, 8.0]
    assert not threads.isEnabled()


def test_layers_are_written_too(qtbot: QtBot, application: Application, script: Script) -> None:
    script.host_layers = 2
    open_model(qtbot, application)
    panel = application.engine_settings
    row = panel.rows["gpu_layers"]
    control = row.control
    assert isinstance(control, NumberControl)
    for text, value, field in (
        ("3", "3", "3 of 8"), ("all", "all", "all of 8"), ("5", "5", "5 of 8"),
        ("ALL", "all", "all of 8"), ("auto", "auto", "auto"), ("8", "all", "all of 8"),
    ):  # fmt: skip
        control.field.selectAll()
        qtbot.keyClicks(control.field, text)
        qtbot.keyClick(control.field, Qt.Key.Key_Return)
        assert (panel.model.shown("gpu_layers"), control.field.text()) == (value, field), text
        assert row.hint_tone != "error"
    control.field.selectAll()
    qtbot.keyClicks(control.field, "40")
    qtbot.keyClick(control.field, Qt.Key.Key_Return)
    assert numbers(row.hint) == [40, 1, 8] and control.field.text() == "all of 8"
    control.field.stepBy(-1)
    assert panel.model.shown("gpu_layers") == "7"
    row.set_value("30")  # of another model, or from the command line: more than there are
    assert control.field.text() == "all of 8"


def test_an_effect_of_a_preference_that_fails_is_a_notice(application: Application) -> None:
    def fail(value: object) -> None:
        raise PermissionError(13, "Permission denied", "/logs/inferdeck.log")

    preferences = application.settings.preferences
    preferences.follow("chart_span", fail)
    preferences.set("chart_span", 300)
    notice = application.notices.notice("preference-chart_span")
    assert notice is not None and notice.kind == "error"
    assert "/logs/inferdeck.log" in notice.cause
