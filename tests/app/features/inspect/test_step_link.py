"""Timeline and charts point at the same time, and a chosen step is shown in full."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.inspect.engine_views import EngineViews
from app.features.inspect.page import InspectPage
from app.main.application import Application
from engine.snapshot import StepEntry, StepRecord
from tests.app.window_fixtures import application, script
from widgets.plot.painted import NONE

__all__ = ["application", "script"]  # fixtures


def record(index: int) -> StepRecord:
    """A step of 10 ms each 20 ms; request "b" joins every tenth."""
    entries = [StepEntry("a", "decode", 1)]
    if index % 10 == 0:
        entries.append(StepEntry("b", "prefill", 64, 32))
    return StepRecord(
        index, index * 0.02, 0.01, tuple(entries), len(entries), 0, model_s=0.008, sample_s=0.001
    )


@pytest.fixture
def views(application: Application) -> EngineViews:
    made = application.views
    application.window.show_page_named("Inspect")
    made.timeline.view.history.add([record(index) for index in range(200)])
    made.timeline._stack.setCurrentIndex(1)
    made.timeline.view.redraw()
    return made


def test_the_timeline_and_the_charts_have_one_cursor(
    application: Application, views: EngineViews
) -> None:
    cursor, view = application.charts.group.cursor, views.timeline.view
    assert cursor is application.pages.tune.charts.group.cursor
    assert cursor is views.speculation.chart.group.cursor
    view.point_at(150)
    assert cursor.time == pytest.approx(3.01) and cursor.source is view
    view.point_at(NONE)
    assert cursor.time is None
    cursor.point(3.015, application.charts)
    assert view.pointed_index == 150 and cursor.source is application.charts
    cursor.leave(application.charts)
    assert view.pointed_index == NONE and cursor.time is None
    cursor.point(99.0, application.charts)
    assert view.pointed_index == NONE


@pytest.mark.slow
def test_a_chosen_step_keeps_the_cursor_and_shows_its_requests(views: EngineViews) -> None:
    view, cursor, state = views.timeline.view, views.step_link.cursor, views.step_state
    assert not state.isVisible()
    view.choose(150)
    assert state.isVisible() and "150" in state.title.text()
    assert state.table.rowCount() == 2 and state.table.item(1, 2).text() == "64"
    assert [part.share for part in state.bar.parts] == pytest.approx([0.8, 0.1])
    assert cursor.time == pytest.approx(3.01)
    view.point_at(10)
    view.point_at(NONE)
    assert cursor.time == pytest.approx(3.01)
    assert views.requests.model.marked == {"a", "b"}
    state.closed.emit()
    assert not state.isVisible() and cursor.time is None and not views.requests.model.marked


@pytest.mark.slow
def test_a_request_of_the_step_is_shown_in_the_table(
    application: Application, views: EngineViews
) -> None:
    views.timeline.view.choose(150)
    views.step_state.table.cellActivated.emit(0, 0)
    page: InspectPage = application.pages.inspect
    assert page.current == "requests"
    views.clear()
    assert views.step_link.chosen is None and not views.step_state.isVisible()


@pytest.mark.parametrize("size", [(1000, 640), (1600, 1000)])
def test_the_step_is_beside_or_below_the_timeline(
    qtbot: QtBot, qapp: QApplication, application: Application, views: EngineViews,
    size: tuple[int, int],
) -> None:  # fmt: skip
    application.window.resize(*size)
    views.timeline.view.choose(150)
    qtbot.waitUntil(lambda: views.step_state.width() > 100)
    qapp.processEvents()
    assert views.timeline.width() >= 400 and views.timeline.height() >= 160
    assert views.step_state.height() >= 160
