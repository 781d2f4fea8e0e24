"""Profiling steps from the window: asked for, shown, exported."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.inspect.bottleneck import PROFILED_STEPS, BottleneckPanel
from app.features.inspect.profile_view import LEAST_PLOT, ProfileView
from engine.hardware.peaks import Peaks
from engine.messages import PeaksMeasured, ProfileSteps, StepsProfiled
from engine.snapshot.profile import DECODE, PREFILL, REST, Operation, StepsProfile
from engine.telemetry.profile import HEADINGS
from tests.app.fakes import FakeEngineThread
from tests.app.features.inspect.steps import seen, step
from tests.app.window_fixtures import next_run

PEAKS = Peaks(10e9, 100e9, "bfloat16", 2, "a machine", 0.0)
LINEAR = Operation("qkv projection", "int4", 40, 0.2, 1e9, 4e9)
WRITE = Operation("KV write", "", 40, 0.05, 1e8, 0.0)
TRACE = json.dumps({"traceEvents": []}).encode()
EVENT = StepsProfiled(
    (
        StepsProfile(PREFILL, 1, 64, 0.1, (Operation("qkv projection", "int4", 4, 0.1, 1e8, 4e9),)),
        StepsProfile(DECODE, 10, 20, 0.4, (LINEAR, WRITE)),
    ),
    trace=gzip.compress(TRACE),
)  # fmt: skip


@pytest.fixture
def panel(qtbot: QtBot) -> BottleneckPanel:
    made = BottleneckPanel()
    qtbot.addWidget(made)
    made.resize(1180, 640)
    made.open_model()
    made.show()
    made.show_peaks(PeaksMeasured(PEAKS))
    made.update_snapshot(seen(2.0, step(1)))
    return made


def shown(view: ProfileView) -> list[dict[str, str]]:
    model = view.table.figures
    rows = (model.row_at(place) for place in range(model.rowCount()))
    return [dict(zip(HEADINGS, row.texts, strict=True)) for row in rows if row is not None]


def test_the_next_steps_are_asked_for_once(panel: BottleneckPanel) -> None:
    asked: list[int] = []
    panel.profile_wanted.connect(asked.append)
    panel.profile_steps.click()
    panel.profile_steps.click()
    assert asked == [PROFILED_STEPS]
    panel.show_profile(StepsProfiled(why_not="The engine is idle."))
    assert "idle" in panel.profile_line.text() and panel.profile_steps.isEnabled()
    assert not panel.profile.isVisible()


def test_without_peaks_a_profile_is_not_shown_and_it_is_said(qtbot: QtBot) -> None:
    panel = BottleneckPanel()
    qtbot.addWidget(panel)
    panel.open_model()
    panel.show()
    panel.show_profile(EVENT)
    assert "peaks" in panel.profile_line.text() and not panel.profile.isVisible()


def test_words_are_at_the_left_and_the_table_is_no_higher_than_its_rows(
    qtbot: QtBot, panel: BottleneckPanel
) -> None:
    panel.resize(1180, 1400)
    panel.show_profile(EVENT)
    view, model = panel.profile, panel.profile.table.figures
    role, sides = Qt.ItemDataRole.TextAlignmentRole, Qt.AlignmentFlag
    for place, heading in enumerate(HEADINGS):
        side = sides.AlignLeft if heading in ("Operation", "Kernel", "Bound") else sides.AlignRight
        assert model.data(model.index(0, place), role) & side, heading
        assert model.headerData(place, Qt.Orientation.Horizontal, role) & side, heading
    bar = view.table.verticalScrollBar()
    qtbot.waitUntil(lambda: view.table.height() < 200 and view.plot.height() > 1000)
    assert bar.maximum() == 0  # every row is seen
    panel.resize(1180, 250)
    qtbot.waitUntil(lambda: panel.height() < 300 and view.plot.height() == LEAST_PLOT)


def test_the_table_has_the_operations_and_the_rest(panel: BottleneckPanel) -> None:
    panel.show_profile(EVENT)
    view = panel.profile
    assert view.isVisible() and view.kind.currentIndex() == 1  # where the time is
    assert "2 tokens" in view.heading.text()  # not 2.00
    rows = shown(view)
    assert [row["Operation"] for row in rows] == [LINEAR.name, WRITE.name, REST]
    first = rows[0]
    assert (first["Time"], first["Share"], first["Bound"]) == ("20 ms", "50 %", "memory")
    assert (first["Bandwidth"], first["Compute"]) == ("5.00 GB/s", "20.0 GFLOP/s")
    assert first["% of roof"] == "50 %" and first["Calls"] == "4"
    assert rows[2]["Time"] == "15 ms"
    view.kind.setCurrentIndex(0)
    assert shown(view)[0]["Bound"] == "compute"
    view.back.click()
    assert not view.isVisible() and panel.bar.isVisible()


def test_the_roofline_has_a_dot_for_each_operation_that_computes(
    qtbot: QtBot, panel: BottleneckPanel
) -> None:
    panel.show_profile(EVENT)
    plot = panel.profile.plot
    assert [dot.lines[0] for dot in plot.dots] == [LINEAR.name]
    assert plot.ridge == 10
    dot = plot.dots[0]
    at = plot.place(dot)
    assert plot.item_at(at) == 0 and plot.item_at(at + QPointF(100, 0)) == -1
    # half of the roof that it is below
    roof = dot.flops_per_byte * plot.bytes_per_s
    assert roof == 2 * dot.flops_per_s and plot.to_y(roof / 1e9) < at.y()
    qtbot.keyClick(plot, Qt.Key.Key_Right)
    assert plot.pointed_index == 0
    assert plot.values_table().rows == ((LINEAR.name, 4.0, 20.0, 50.0),)


def test_the_trace_is_saved_plain_or_compressed(panel: BottleneckPanel, tmp_path: Path) -> None:
    panel.show_profile(EVENT)
    plain, small = tmp_path / "steps.json", tmp_path / "steps.json.gz"
    panel.profile.save_trace(plain)
    panel.profile.save_trace(small)
    assert plain.read_bytes() == TRACE == gzip.decompress(small.read_bytes())


def test_a_profile_stays_until_it_is_left(panel: BottleneckPanel) -> None:
    panel.show_profile(EVENT)
    panel.update_snapshot(seen(9.0, step(2)))
    assert panel.profile.isVisible()
    panel.close_model()
    assert not panel.profile.isVisible() and panel.profile_steps.isEnabled()


def test_the_window_passes_it_on(qapp: QApplication, qtbot: QtBot) -> None:
    with next_run(qapp) as application:
        with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
            application.session.open("/models/tiny")
        thread = application.bridge.engine
        assert isinstance(thread, FakeEngineThread)
        panel = application.views.bottleneck
        panel.profile_steps.click()
        qtbot.waitUntil(lambda: ProfileSteps(PROFILED_STEPS) in thread.commands, timeout=3000)
        thread.on_event(StepsProfiled(why_not="The engine is idle."))
        qtbot.waitUntil(lambda: "idle" in panel.profile_line.text(), timeout=3000)
