"""Settings of devices in the real window: GPUs, and layers on the CPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.tune.row_remarks import RowRemarks
from app.features.tune.settings_model import SettingsModel
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.window.setting_specs import only_on, sections
from engine.config import EngineConfig
from engine.snapshot import GpuFigures
from tests.app.fakes import Script
from tests.app.window_fixtures import application, next_run, open_model, script
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.controls.number_control import NumberControl
from widgets.controls.setting_row import ChoiceControl

__all__ = ["application", "script"]

DOCK = "engine-settings"


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


def test_layers_are_for_a_gpu_and_threads_for_the_cpu() -> None:
    model = SettingsModel()
    everything = SimpleNamespace(matters=lambda name, weights: True)
    remarks = RowRemarks(model, everything)  # type: ignore[arg-type]
    for device, why in (("cpu", only_on("gpu_layers", "cpu")), ("cuda:0", ""), ("auto", "")):
        model.open(EngineConfig(model="any", device=device), {})
        assert remarks.idle_because("enforce_eager") == ""
        only = only_on("adaptive_threads", "cuda:0") if device == "cuda:0" else ""
        assert remarks.idle_because("adaptive_threads") == only
        assert remarks.idle_because("num_threads") == ""  # a model is loaded by them
        assert remarks.idle_because("block_size") == ""
        assert remarks.idle_because("gpu_layers") == why


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


@pytest.mark.slow
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
