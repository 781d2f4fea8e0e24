"""Where a step goes: the panel, what it counts and what it keeps."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from app.features.inspect.bottleneck import (
    AGAIN_S,
    CALM_MS,
    MEASURING,
    NO_MODEL,
    NO_PEAKS,
    BottleneckPanel,
)
from app.features.inspect.step_breakdown import FASTER, MOST_ENTRIES, PARTS, Chosen, StepTracker
from app.features.inspect.what_if_table import ENABLED, NO_GAIN, what_if
from app.link.hardware_monitor import HELD_S
from engine.config import SETTINGS
from engine.hardware.machine import machine_name
from engine.hardware.peaks import Peaks
from engine.messages import MeasurePeaks, PeaksMeasured, Reconfigure
from engine.snapshot import StepEntry, StepRecord
from engine.telemetry.gain import THROUGHPUT, GainEstimate
from engine.units import NOTHING
from tests.app.fakes import FakeEngineThread
from tests.app.features.inspect.steps import CONFIG, seen, step
from tests.app.window_fixtures import next_run
from tests.figures import numbers
from tests.widgets import synthetic

PEAKS = Peaks(40e9, 800e9, "bfloat16", 2, "a machine", 0.0)


NO_GAIN_TEXT = "No gain expected"


@pytest.fixture
def panel(qtbot: QtBot) -> BottleneckPanel:
    made = BottleneckPanel()
    qtbot.addWidget(made)
    made.resize(1200, 320)
    return made


def test_peaks_are_asked_for_when_the_panel_is_seen_and_the_engine_rests(
    qtbot: QtBot, panel: BottleneckPanel
) -> None:
    asked: list[int] = []
    panel.measure_wanted.connect(lambda: asked.append(1))
    panel.open_model()
    panel.update_snapshot(seen(0.5, num_running=0))
    assert not asked  # nobody looks
    panel.show()
    assert asked == [1]
    panel.show_peaks(PeaksMeasured(None, "The engine is busy."))
    assert "busy" in panel.peaks_line.text()
    panel.update_snapshot(seen(2.0, step(1)))
    assert asked == [1] and "busy" in panel._empty.text()
    panel.update_snapshot(seen(3.0, num_running=0))
    assert asked == [1, 1]
    panel.show_peaks(PeaksMeasured(PEAKS))
    assert numbers(panel.verdict.text()) == [89]
    panel.update_snapshot(seen(4.0, num_running=0))
    assert asked == [1, 1]  # just measured
    assert panel._calm.isActive() and AGAIN_S - 5 < panel._calm.interval() / 1e3 <= AGAIN_S
    panel.update_snapshot(seen(4.5, step(2)))
    assert not panel._calm.isActive()  # a load goes on
    panel._measured_at -= AGAIN_S
    panel.update_snapshot(seen(5.0, num_running=0))
    assert panel._calm.isActive() and panel._calm.interval() == CALM_MS  # requests may follow
    panel._calm.timeout.emit()
    assert asked == [1, 1, 1] and not panel.measure.isEnabled()
    panel.show_peaks(PeaksMeasured(PEAKS))
    line, is_faster = panel.peaks_line, FASTER.rstrip(".")
    assert "40.0 GB/s" in line.text() and is_faster not in line.text()
    panel.measure.click()
    assert asked == [1, 1, 1, 1] and not panel.measure.isEnabled()
    panel.show_peaks(PeaksMeasured(dataclasses.replace(PEAKS, read_bytes_per_s=10e9)))
    assert panel.measure.isEnabled() and is_faster in line.text()
    panel.close_model()
    assert panel._empty.text() == NO_MODEL


def test_an_idle_engine_is_measured_and_not_asked_to_stop(panel: BottleneckPanel) -> None:
    panel.open_model()
    panel.show()
    panel.update_snapshot(seen(1.0, step(1)))
    assert panel._empty.text() == NO_PEAKS
    panel.update_snapshot(seen(2.0, num_running=0))
    assert panel._empty.text() == MEASURING


def test_steps_in_another_precision_say_nothing_of_this_one(panel: BottleneckPanel) -> None:
    told: list[dict[str, dict[Any, str]]] = []
    panel.estimated.connect(told.append)
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, *(step(i) for i in range(20))))
    assert {"int8", "int4"} == told[-1]["quantization"].keys()
    assert "INT8" in told[-1]["quantization"]["int8"]
    switched = CONFIG.replace(quantization="int8")
    late = dataclasses.replace(seen(1.1, step(20)), config=switched)  # of before, with the news
    panel.update_snapshot(late)
    assert told[-1] == {}
    panel.update_snapshot(dataclasses.replace(seen(9.0, step(21)), config=switched))
    assert "quantization" in told[-1]


def test_only_steps_with_the_current_settings_count(panel: BottleneckPanel) -> None:
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.show()
    queue = [dataclasses.replace(step(i), num_waiting=6) for i in range(20)]
    panel.update_snapshot(seen(1.0, *queue))
    more = CONFIG.replace(max_num_seqs=16)
    since = step(22).start
    changed = seen(2.5, *(step(i) for i in range(20, 24)))
    panel.update_snapshot(dataclasses.replace(changed, config=more, settings_since=since))
    assert [one.index for one in panel.model._steps] == [22, 23]
    slots = next(e for e in panel._estimates if e.setting == "max_num_seqs")
    assert not slots.is_worth_trying
    again = dataclasses.replace(seen(4.0), config=more, settings_since=step(23).start)  # a reload
    panel.update_snapshot(again)
    assert [one.index for one in panel.model._steps] == [23]


def test_other_devices_have_other_peaks(panel: BottleneckPanel) -> None:
    """A layer that moved to the CPU, for one."""
    asked: list[int] = []
    panel.measure_wanted.connect(lambda: asked.append(1))
    panel.open_model()
    panel.show()
    here, divided = seen(1.0, step(1)), synthetic.divided_snapshot(2.0)
    divided = dataclasses.replace(divided, config=CONFIG, requests=())
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(here)
    assert panel.model.has_steps
    panel.update_snapshot(divided)
    assert asked == [1] and panel.model.peaks is None and not panel.model.has_steps
    both = dataclasses.replace(PEAKS, machine=divided.model.device_name)
    panel.show_peaks(PeaksMeasured(both))
    moved = dataclasses.replace(
        divided, time=3.0, steps=(step(2),), model=dataclasses.replace(divided.model, num_heads=8)
    )
    panel.update_snapshot(moved)
    assert panel.model.peaks == both and panel.model.breakdown() is not None and asked == [1]
    # what is known of the devices before the news of them comes is kept
    panel.show_peaks(PeaksMeasured(dataclasses.replace(PEAKS, machine=here.model.device_name)))
    panel.update_snapshot(dataclasses.replace(here, time=4.0))
    assert panel.model.peaks is not None and asked == [1]


@given(st.lists(st.integers(0, 600), min_size=1, max_size=60))
def test_large_batches_count_for_fewer_steps(sizes: list[int]) -> None:
    tracker = StepTracker()
    entry = StepEntry("r", "decode", 1, num_context=9, num_logits=1)
    records = [
        StepRecord(index, index * 0.1, 0.01, (entry,) * size, size, 0)
        for index, size in enumerate(sizes)
    ]
    for part in (records[: len(records) // 2], records[len(records) // 2 :]):
        tracker.update(seen(1.0, *part))
    found = list(tracker._steps)
    assert found == records[-len(found) :] and found
    count = sum(len(step.entries) for step in found)
    assert len(found) == 1 or count <= MOST_ENTRIES
    if len(found) < len(records):
        assert count + len(records[-len(found) - 1].entries) > MOST_ENTRIES


def test_the_parts_add_up_and_each_bound_has_a_reason(qtbot: QtBot, panel: BottleneckPanel) -> None:
    panel.show()
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, *(step(i) for i in range(20)), step(20, "prefill", 300)))
    assert sum(part.share for part in panel.bar.parts) == pytest.approx(1.0)
    assert [part.label for part in panel.bar.parts] == [part[0] for part in PARTS]
    rows = {panel.table.item(r, 1).text(): r for r in range(panel.table.rowCount())}
    gain, why = (panel.table.item(rows["INT4"], column).text() for column in (2, 4))
    assert numbers(gain)[-1] > 1.5
    assert why
    assert panel.table.item(rows["larger token budget"], 2).text() == NO_GAIN_TEXT
    panel.chosen.setCurrentIndex(list(Chosen).index(Chosen.PREFILL))
    assert numbers(panel.note.text())[:2] == [1, 40.0]
    panel.chosen.setCurrentIndex(list(Chosen).index(Chosen.DECODE))
    assert numbers(panel.note.text())[:2] == [20, 39.8]


def test_a_setting_with_a_gain_is_applied_and_another_says_why_not(
    qtbot: QtBot, panel: BottleneckPanel
) -> None:
    applied: list[dict[str, object]] = []
    panel.applied.connect(applied.append)
    panel.table.refuse = lambda name, value: "Stored as AWQ." if value == "int8" else ""
    panel.show()
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, *(step(i) for i in range(20))))
    table = panel.table
    texts = lambda r: tuple(table.item(r, column).text() for column in (0, 1))
    rows = {texts(r): r for r in range(table.rowCount())}
    button = table.cellWidget(rows["Weights", "INT4"], 3)
    assert isinstance(button, QPushButton) and button.toolTip()
    assert button.accessibleName().endswith("Weights INT4")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert applied == [{"quantization": "int4"}]
    reasons = {texts: table.item(row, 3).text() for texts, row in rows.items()}
    assert reasons["Prefix caching", "every prefix cached"] == ENABLED
    assert reasons["Max running requests", "more batch slots"] == NO_GAIN
    assert reasons["Weights", "INT8"] not in ("", ENABLED, NO_GAIN)
    for row in range(table.rowCount()):  # what is on already has nothing to gain, in no words
        if table.item(row, 3).text() == ENABLED:
            assert table.item(row, 2).text() == NOTHING
            assert not numbers(table.item(row, 4).text())
    table.selectRow(rows["Weights", "INT8"])
    assert "Stored as AWQ." in panel.why.text()
    panel.set_recorded()
    panel.update_snapshot(seen(3.0, step(30)))
    assert table.cellWidget(rows["Weights", "INT4"], 3) is None


def test_the_table_is_of_the_same_steps_as_the_bar_when_the_panel_shows(
    panel: BottleneckPanel,
) -> None:
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, *(step(i) for i in range(20))))
    panel.update_snapshot(seen(1.5, *(step(i, "prefill", 300) for i in range(20, 60))))  # unseen
    panel.show()
    found = panel.model.breakdown()
    assert found is not None
    row = [one.label for one in found.estimates].index("KV cache dtype")
    shown = numbers(panel.table.item(row, 4).text())[0]
    assert shown == pytest.approx(100 * found.split.shares().kv, rel=0.1)


def test_reasons_are_seen_by_selection_where_their_column_has_no_room(
    qtbot: QtBot, panel: BottleneckPanel
) -> None:
    panel.show()
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, *(step(i) for i in range(20))))
    table = panel.table
    assert not table.isColumnHidden(4)
    panel.resize(600, 600)
    qtbot.waitUntil(lambda: table.isColumnHidden(4))
    qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
    table.selectRow(0)
    assert numbers(panel.why.text())
    panel.resize(1200, 320)
    qtbot.waitUntil(lambda: not table.isColumnHidden(4))


def test_changes_are_settings_of_the_engine() -> None:
    free = lambda name, value: ""
    config = CONFIG.replace(enable_prefix_caching=False)
    bounds = [
        ("quantization", "int8"), ("kv_cache_dtype", "INT8"), ("max_num_seqs", "12"),
        ("enable_prefix_caching", "every prefix cached"),
        ("max_num_batched_tokens", "larger token budget"), ("speculative_method", "4 draft tokens"),
    ]  # fmt: skip
    for setting, value in bounds:
        one = GainEstimate(setting, setting, value, 1.2, 1.5, THROUGHPUT, "why")
        found = what_if(one, config, free)
        changed = config.replace(**found.changes)
        assert setting in config.differences(changed) and SETTINGS[setting].label in found.text
        again = what_if(one, changed, free)
        assert again.refusal or setting == "max_num_batched_tokens"


@pytest.mark.parametrize("width", [320, 720, 1500])
def test_the_panel_fits_its_place(qtbot: QtBot, panel: BottleneckPanel, width: int) -> None:
    panel.resize(width, 240)
    panel.show()
    panel.open_model()
    panel.show_peaks(PeaksMeasured(PEAKS))
    panel.update_snapshot(seen(1.0, step(1)))
    qtbot.wait(10)
    assert panel.bar.width() <= width and panel.bar.x() >= 0
    assert panel._area.horizontalScrollBar().maximum() == 0


def test_the_window_asks_once_and_remembers(qapp: QApplication, qtbot: QtBot) -> None:
    with next_run(qapp) as application:
        application.show()
        views = application.views
        views.bottleneck_dock.bring_to_front()
        qtbot.waitUntil(views.bottleneck.isVisible)
        with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
            application.session.open("/models/tiny")
        thread = application.bridge.engine
        assert isinstance(thread, FakeEngineThread)
        qtbot.waitUntil(lambda: MeasurePeaks() in thread.commands, timeout=3000)
        measured = dataclasses.replace(PEAKS, dtype="float32", machine=machine_name())
        thread.on_event(PeaksMeasured(measured))
        qtbot.waitUntil(lambda: views.bottleneck.model.peaks == measured, timeout=3000)
        busy = dataclasses.replace(measured, read_bytes_per_s=9e9, busy_cores=1.4)
        seen_peaks: list[object] = []
        application.bridge.peaks_measured.connect(lambda event: seen_peaks.append(event.peaks))
        thread.on_event(PeaksMeasured(busy))
        qtbot.waitUntil(lambda: seen_peaks == [busy, measured], timeout=3000)
        assert views.bottleneck.model.peaks == measured  # the quiet measurement stays
        higher = dataclasses.replace(measured, flops_per_s=900e9, read_bytes_per_s=1e9)
        best = dataclasses.replace(measured, flops_per_s=900e9)
        later = dataclasses.replace(higher, measured_at=HELD_S + 1.0)
        for event, kept in ((higher, best), (later, later), (measured, measured)):
            thread.on_event(PeaksMeasured(event))
            shown = partial(lambda peaks: views.bottleneck.model.peaks == peaks, kept)
            qtbot.waitUntil(shown, timeout=3000)
        with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
            application.session.open("/models/other")
        assert views.bottleneck.model.peaks == measured
        assert thread.commands.count(MeasurePeaks()) == 1
        application.pages.chat_page.send("question")
        qtbot.waitUntil(lambda: views.bottleneck.bar.parts != (), timeout=5000)
        application.settings_dock.bring_to_front()
        rows = application.engine_settings.rows
        hint = lambda: rows["max_num_batched_tokens"].hint
        qtbot.waitUntil(lambda: hint().endswith(NO_GAIN_TEXT))
        assert "\n" not in rows["enable_prefix_caching"].hint  # it is on: no bound
        views.timeline.view.point_at(0)
        assert "launch" in views.timeline.line.text()
        table, settings = views.bottleneck.table, application.engine_settings
        row = next(r for r in range(table.rowCount()) if table.cellWidget(r, 3) is not None)
        with qtbot.waitSignal(application.bridge.reconfigured, timeout=5000):
            qtbot.mouseClick(table.cellWidget(row, 3), Qt.MouseButton.LeftButton)
        changes = next(c for c in thread.commands if isinstance(c, Reconfigure)).changes
        assert all(getattr(settings.model.applied, name) == v for name, v in changes.items())
        (mark,) = application.charts.marks.marks[-1:]
        assert SETTINGS[next(iter(changes))].label in mark.text
        with qtbot.waitSignal(application.bridge.reconfigured, timeout=5000):
            settings.commands.undo()
        assert all(getattr(settings.model.applied, name) != v for name, v in changes.items())
