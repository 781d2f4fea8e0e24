"""The Tune page in the real window, over a scripted engine thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.features.tune.comparison_view import HINT, HINT_SECOND
from app.features.tune.load_bar import LoadBar
from app.features.tune.load_plan import LoadState
from app.features.tune.page import TunePage
from app.features.tune.result_bar import HINT as RESULT_HINT
from app.features.tune.verdict import WANTED
from app.main.application import Application
from app.main.main_window import MINIMUM_SIZE
from app.storage.run_records import Kind
from app.window.docks import CardDock, DockArea, DockPlan
from app.window.settings_store import LoadChoice, SettingsStore
from engine.config import SETTINGS
from engine.messages import AddRequest
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import next_run
from tests.figures import numbers
from widgets.plot.series import MarkKind


@pytest.fixture
def script() -> Script:
    return Script(step_s=0.002)


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, script: Script) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, script))
    made.show()
    made.window.resize(1400, 950)
    with qtbot.waitSignal(made.bridge.loaded, timeout=5000):
        made.session.open("/models/tiny")
    made.window.show_page(1)
    yield made
    made.shutdown()


@pytest.fixture
def page(application: Application) -> TunePage:
    return application.pages.tune


def choose(page: TunePage, workload: str, concurrency: int = 3) -> None:
    page.load_bar.choose(workload)
    page.load_bar.concurrency.setValue(concurrency)


def start(qtbot: QtBot, page: TunePage, completed: int = 1) -> None:
    choose(page, "query-rewrite")
    page.load_bar.button.click()
    qtbot.waitUntil(lambda: page.load.counts.completed >= completed, timeout=5000)


def wait_for_samples(qtbot: QtBot, page: TunePage, count: int) -> None:
    """Until so many gaps between tokens are known; snapshots bring them."""
    figures = lambda: page.store.figures(0.0, page.charts.now)
    qtbot.waitUntil(lambda: figures()["itl"].num_samples >= count)


def set_number(qtbot: QtBot, application: Application, name: str, value: float) -> None:
    row = application.engine_settings.rows[name]
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        row.control.field.setValue(value)


@pytest.mark.slow
def test_the_second_page_has_its_own_arrangement_of_the_docks(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    area = window.dock_area
    left = Qt.DockWidgetArea.LeftDockWidgetArea
    assert window.page.name == "Tune" and window.commands.action("page.tune").shortcut() == "Ctrl+2"
    assert area.dockWidgetArea(application.settings_dock) == left
    assert application.charts_dock.isHidden() and not application.views.timeline_dock.isHidden()
    application.views.blocks_dock.close()
    window.show_page(0)
    assert all(dock.isHidden() for dock in area.docks)  # the conversation takes the whole page
    window.commands.run("dock.engine-settings")
    assert area.dockWidgetArea(application.settings_dock) == left  # as on every page
    window.show_page(1)
    assert area.dockWidgetArea(application.settings_dock) == left
    assert application.charts_dock.isHidden() and application.views.blocks_dock.isHidden()
    window.docks.reset()
    assert not application.views.blocks_dock.isHidden() and application.charts_dock.isHidden()


def test_a_plan_puts_docks_side_by_side_and_closes_what_it_does_not_name(qtbot: QtBot) -> None:
    area = DockArea(QWidget())
    qtbot.addWidget(area)
    docks = [CardDock(name, name, QWidget()) for name in ("settings", "a", "b", "c")]
    settings, *others = docks
    area.show()
    area.arrange(DockPlan(below=(("a",), ("b",))), settings, others)
    assert [dock.isHidden() for dock in docks] == [True, False, False, True]
    assert area.tabifiedDockWidgets(others[0]) == []
    area.arrange(DockPlan(True, (("c", "a"),)), settings, others)
    assert [dock.isHidden() for dock in docks] == [False, False, True, False]
    assert area.tabifiedDockWidgets(others[2]) == [others[0]]
    area.arrange(DockPlan(True), settings, others)
    assert [dock.isHidden() for dock in docks] == [False, True, True, True]


@pytest.mark.slow
def test_both_arrangements_are_there_again_in_the_next_run(
    qapp: QApplication, application: Application
) -> None:
    application.views.blocks_dock.close()
    application.window.show_page(0)
    application.window.commands.run("dock.live-charts")
    application.shutdown()
    with next_run(qapp) as again:
        again.show()
        again.window.show_page(0)
        assert not again.charts_dock.isHidden()
        again.window.show_page(1)
        assert again.views.blocks_dock.isHidden() and again.charts_dock.isHidden()


def test_a_load_runs_beside_and_is_named_in_the_requests(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    start(qtbot, page, completed=4)
    assert page.load_bar.button.text() == "Stop load" and not page.load_bar.workload.isEnabled()
    model = application.views.requests.model
    qtbot.waitUntil(lambda: model.rowCount() > 0, timeout=3000)
    assert model.index(0, 0).data().startswith("load ")
    qtbot.waitUntil(lambda: "completed" in page.load_bar.status.text(), timeout=3000)
    page.load_bar.button.click()
    assert page.load.state is LoadState.IDLE and page.load_bar.button.text() == "Start load"
    assert page.load_bar.status.text().startswith("stopped")
    qtbot.waitUntil(lambda: not any(r.is_active for r in model.records), timeout=3000)


@pytest.mark.slow
def test_what_cannot_fit_is_said_where_it_was_asked_for(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    choose(page, "voice-bot")
    page.load_bar.button.click()
    assert not page.load.is_on and not page.load_bar.problem.isHidden()
    assert {2200, 2048} <= set(numbers(page.load_bar.problem.text()))
    choose(page, "query-rewrite")
    assert page.load_bar.problem.isHidden()


def test_a_command_starts_and_stops_the_load(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    choose(page, "query-rewrite")
    commands = application.window.commands
    commands.run("tune.load")
    qtbot.waitUntil(lambda: page.load.state is LoadState.RUNNING, timeout=3000)
    assert commands.action("tune.load").isChecked()
    commands.run("tune.load")
    assert not page.load.is_on and not commands.action("tune.load").isChecked()


@pytest.mark.slow
def test_a_pace_that_is_stepped_through_is_sent_when_the_hand_rests(
    qtbot: QtBot, page: TunePage
) -> None:
    start(qtbot, page)
    for number in range(4, 9):
        page.load_bar.concurrency.setValue(number)
    qtbot.waitUntil(lambda: page.load.counts.in_flight == 8, timeout=5000)
    assert [numbers(m.text) for m in page.charts.marks.marks] == [[3], [8]]
    page.load.stop()


@pytest.mark.slow
def test_every_chart_bears_the_same_marks(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    start(qtbot, page)
    set_number(qtbot, application, "max_num_seqs", 4)
    page.load.stop()
    marks, label = page.charts.marks.marks, SETTINGS["max_num_seqs"].label
    assert [numbers(m.text) for m in marks] == [[3], [16, 4], []]
    assert [m.kind for m in marks] == [MarkKind.LOAD, MarkKind.SETTING, MarkKind.LOAD]
    assert marks[1].details == (f"{label}: 16 → 4",)
    for chart in (*page.charts.charts, *application.charts.charts):
        assert chart.marks == marks
    application.window.commands.run("theme.dark")
    assert page.charts.itl.marks == marks


@pytest.mark.slow
def test_another_model_leaves_a_mark_and_what_was_measured(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    start(qtbot, page, completed=2)
    qtbot.waitUntil(lambda: not page.charts.ttft.data.is_empty, timeout=3000)
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open("/models/other")
    assert not page.load.is_on and page.load.problem is not None
    assert page.load.problem.cause in page.load_bar.problem.text()
    marks = page.charts.marks.marks
    assert (marks[-1].text, marks[-1].kind) == ("other", MarkKind.MODEL)
    assert all(name in marks[-1].details[0] for name in ("other", "tiny"))
    assert not page.charts.ttft.data.is_empty
    page.load_bar.button.click()
    qtbot.waitUntil(lambda: page.load.counts.completed >= 1, timeout=5000)


def test_a_change_is_compared_with_what_was_before(
    qtbot: QtBot, application: Application, page: TunePage, script: Script
) -> None:
    view = page.comparison
    assert view.isHidden() and not page.spans.spans
    application.window.commands.run("tune.figures")
    assert not view.isHidden()
    assert view.note.text() == HINT and not view.copy_button.isEnabled()
    start(qtbot, page, completed=6)
    wait_for_samples(qtbot, page, 100)
    script.step_s = 0.2  # much longer than a step of 2 ms takes on a busy machine
    set_number(qtbot, application, "max_num_seqs", 2)
    qtbot.waitUntil(lambda: bool(view.rows) and view.rows[1].b.num_samples > 10)
    itl = view.rows[1]
    assert itl.metric.key == "itl" and itl.level_change is not None and itl.level_change > 1
    change = view.table.cells["itl"][2]
    assert change.text().startswith("+") and not change.property("role")  # too few seconds
    view.table.show_rows(view.rows, {"itl"})
    assert change.property("role") == "worse"
    assert [span.label for span in page.charts.itl._spans.spans] == ["A", "B"]  # type: ignore[union-attr]
    application.window.commands.run("tune.copy_comparison")
    assert QGuiApplication.clipboard().text().splitlines()[1].startswith("metric\tunit\tA p50")


@pytest.mark.slow
def test_the_comparison_has_the_merged_change_of_the_headline(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    start(qtbot, page)
    set_number(qtbot, application, "max_num_seqs", 12)
    set_number(qtbot, application, "max_num_seqs", 4)
    application.window.commands.run("tune.figures")
    latest, view = page.result.changes.latest, page.comparison
    assert latest is not None and latest.since < latest.at and view.ranges is not None
    assert view.note.text().startswith(latest.text) and page.result.text.startswith(latest.text)


def test_two_dragged_ranges_are_compared_and_forgotten(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    start(qtbot, page, completed=4)
    wait_for_samples(qtbot, page, 100)
    times = page.store.rings["itl"].times
    qtbot.waitUntil(lambda: page.store.rings["itl"].times[-1] - times[0] > 0.7)
    first, last = float(times[0]), float(page.store.rings["itl"].times[-1])
    view = page.comparison
    page.charts.span_picked.emit(last - 0.3, last)
    assert view.note.text() == HINT_SECOND and view.ranges is None
    page.charts.span_picked.emit(first, first + 0.3)  # the earlier one is A, whichever was first
    assert view.ranges is not None
    assert view.ranges[0].start == first and view.ranges[1].end == last
    assert view.rows[1].a.num_samples > 0
    page.charts.span_picked.emit(last - 0.2, last)
    assert view.ranges is None
    view.clear_button.click()
    assert view.note.text() == HINT or view.ranges is not None
    assert page.spans.spans == () or view.ranges is not None


@pytest.mark.slow
def test_in_a_low_window_the_comparison_is_a_line(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    application.window.commands.run("tune.figures")
    start(qtbot, page, completed=2)
    wait_for_samples(qtbot, page, 20)  # range A has some, however slow the machine is after it
    set_number(qtbot, application, "max_num_seqs", 4)
    qtbot.waitUntil(lambda: not page.comparison.table.isHidden(), timeout=3000)
    before = page.load.counts.completed
    qtbot.waitUntil(lambda: page.load.counts.completed > before + 2, timeout=3000)
    application.window.resize(1000, 640)
    qtbot.waitUntil(lambda: page.comparison.table.isHidden(), timeout=3000)
    assert not page.comparison.brief.isHidden()
    qtbot.waitUntil(lambda: "ITL" in page.comparison.brief.text())  # with the next snapshot
    application.window.resize(*MINIMUM_SIZE)
    bar = page.load_bar
    # nothing is cut off
    qtbot.waitUntil(lambda: bar.button.geometry().right() < bar.width(), timeout=3000)
    assert bar._title.isHidden()
    assert page.comparison.geometry().bottom() <= page.height()


@pytest.mark.slow
def test_the_load_that_was_chosen_is_remembered(
    qapp: QApplication, application: Application, page: TunePage
) -> None:
    choose(page, "query-rewrite", 12)
    page.load_bar.pacing.setCurrentIndex(1)
    page.load_bar.rate.setValue(2.5)
    application.shutdown()
    with next_run(qapp) as again:
        bar = again.pages.tune.load_bar
        assert bar.choice.workload.name == "query-rewrite" and bar.pace.request_rate == 2.5
        assert bar.concurrency.value() == 12


@pytest.mark.parametrize("stored", ['{"workload": 3}', "no json", '{"what": 1}', '"x"'])
def test_a_damaged_choice_of_load_is_the_first_one(stored: str) -> None:
    store = SettingsStore()
    store._ini.setValue("tune/load", stored)
    assert store.load_choice == LoadChoice()


@pytest.mark.slow
def test_every_control_has_a_name_and_a_tip(page: TunePage) -> None:
    bar, view = page.load_bar, page.comparison
    for control in (bar.workload, bar.pacing, bar.concurrency, bar.rate, view.source):
        assert control.accessibleName() and control.toolTip()
        assert control.focusPolicy() != Qt.FocusPolicy.NoFocus
    for button in (bar.button, view.copy_button, view.clear_button):
        assert button.text() and button.toolTip()


@pytest.mark.slow
def test_a_usual_small_window_shows_four_charts_and_scrolls_to_the_others(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    application.window.resize(1280, 800)
    application.window.docks.reset()
    start(qtbot, page)
    bar = page.charts.findChild(QScrollArea).verticalScrollBar()
    qtbot.waitUntil(lambda: page.charts.num_columns == 2 and bar.maximum() > 0)
    seen = page.charts.visibleRegion().boundingRect()
    for chart in page.charts.charts[:4]:
        corner = chart.mapTo(page.charts, chart.rect().topLeft())
        assert seen.contains(chart.rect().translated(corner))


def test_the_result_of_a_change_is_told_and_the_list_leads_back(
    qtbot: QtBot, application: Application, page: TunePage
) -> None:
    result, commands = page.result, application.window.commands
    assert result.text == RESULT_HINT and len(result.changes.entries) == 1
    start(qtbot, page, completed=WANTED)
    set_number(qtbot, application, "max_num_seqs", 4)
    assert numbers(result.text)[:2] == [16, 4]
    qtbot.waitUntil(result.keep.isEnabled)
    page.load.stop()
    result.keep_as_run()
    [kept] = application.pages.runs.book.runs
    assert kept.kind is Kind.CHANGE and numbers(kept.title)[:2] == [16, 4]
    qtbot.waitUntil(lambda: not result.keep.isEnabled())
    commands.run("tune.changes")
    rows = [result.list.list.topLevelItem(n) for n in range(2)]
    assert numbers(rows[0].text(1)) == [16, 4] and not result.list.button.isEnabled()
    qtbot.keyClick(result.list.list, Qt.Key.Key_Down)
    assert result.list.button.isEnabled()
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        qtbot.keyClick(result.list.list, Qt.Key.Key_Return)
    assert application.engine_settings.rows["max_num_seqs"].value() == 16
    assert result.list.isHidden()


def test_a_prompt_file_is_a_load_and_is_remembered(
    qtbot: QtBot, application: Application, page: TunePage, tmp_path: Path
) -> None:
    file, bar = tmp_path / "questions.txt", page.load_bar
    file.write_text("What is paging?\nWhat is batching?\n")
    bar.use_prompts(file)
    qtbot.waitUntil(lambda: bar.choice.workload.name == file.name, timeout=5000)
    assert numbers(bar.workload.currentText()) == [2] and bar.raw.isVisible()
    bar.button.click()
    qtbot.waitUntil(lambda: page.load.counts.in_flight > 0, timeout=5000)
    thread = application.bridge.engine
    assert isinstance(thread, FakeEngineThread)
    sent = [c.prompt for c in thread.commands if isinstance(c, AddRequest)]
    assert sent[0] == ({"role": "user", "content": "What is paging?"},)
    page.load.stop()
    bar.raw.click()
    bar.button.click()
    qtbot.waitUntil(lambda: page.load.counts.in_flight > 0, timeout=5000)
    sent = [c.prompt for c in thread.commands if isinstance(c, AddRequest)]
    assert isinstance(sent[-1], str)
    stored = application.settings.load_choice
    assert stored.prompts == str(file) and stored.is_raw
    again = LoadBar(page.load, application.bridge, application.settings)
    qtbot.addWidget(again)
    qtbot.waitUntil(lambda: again.choice.workload.name == file.name, timeout=5000)
    assert again.raw.isChecked()


@pytest.mark.slow
def test_an_unusable_prompt_file_is_refused_where_it_was_asked_for(
    qtbot: QtBot, page: TunePage, tmp_path: Path
) -> None:
    before = page.load_bar.choice
    page.load_bar.use_prompts(tmp_path / "none.csv")
    qtbot.waitUntil(lambda: not page.load_bar.problem.isHidden(), timeout=5000)
    assert "none.csv" in page.load_bar.problem.text() and page.load_bar.choice is before
