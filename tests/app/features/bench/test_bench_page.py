"""The Bench page over a scripted engine: sweeps, cancel, settings back, bad input."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.bench.progress import Progress
from app.bench.ranking import nearest
from app.bench.sweep import Point
from app.features.bench.controller import UNMEASURED
from app.features.bench.form import Mode
from app.features.bench.page import BenchPage
from app.main.application import Application
from app.storage.intervals import ONE_RUN, difference_of
from app.storage.run_records import Kind, State
from tests.app.cuts import expect_whole
from tests.app.features.bench.bench_fixtures import (
    AMPLE,
    page,
    page_in_window,
    sweep,
    wait_end,
)
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import application, open_model, script, set_text, usual_text
from tests.figures import numbers
from widgets.theme.theme import SPACE_3

__all__ = ["application", "page", "parts", "script", "usual_text"]
OPENS = "/models/tiny"
TUNED = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "kv_cache_dtype": "int8"}


def test_a_sweep_fills_the_table_and_is_kept(qtbot: QtBot, page: BenchPage) -> None:
    sweep(page, "concurrency", "1, 2")
    wait_end(qtbot, page)
    result = page.bench.result
    assert result is not None and page.bench.problem is None
    assert [point.figures["completed"] for point in result.points] == [4, 4]
    assert all(not point.error for point in result.points)
    table = page.results.table
    assert page.results.model.rowCount() == 2
    page.resize(1200, 1100)
    qtbot.waitUntil(lambda: page.results._split.orientation() is Qt.Orientation.Vertical)
    qtbot.waitUntil(lambda: table.viewport().height() == table.verticalHeader().length())
    kept = [run for run in page._book.runs if run.kind is Kind.BENCH]
    assert [run.state for run in kept] == [State.DONE]


def test_the_requests_of_each_run_are_shown(qtbot: QtBot, page: BenchPage) -> None:
    """Two for each concurrent one, where that is more than is chosen."""
    form, shown = page.form, page.form.per_run
    box, line = form.axes[0]
    box.setCurrentIndex(box.findData("max_num_seqs"))
    form.concurrency.setValue(32)
    form.requests.setValue(16)
    assert shown.isVisible() and numbers(shown.text()) == [64]
    form.requests.setValue(64)
    assert not shown.isVisible()
    box.setCurrentIndex(box.findData("concurrency"))
    for text, counts in (("1, 40, 8", [64, 80]), ("40,", [80]), ("40, x", []), ("32", [])):
        line.setText(text)
        assert numbers(shown.text()) == counts and shown.isVisible() is bool(counts)
    box.setCurrentIndex(box.findData("request_rate"))
    line.setText("100")
    assert not shown.isVisible()
    form.choose(Mode.LADDER)
    assert numbers(shown.text()) == [2]
    line.setText("40")
    box.setCurrentIndex(box.findData("concurrency"))
    line.setText("40")
    form.choose(Mode.SWEEP)
    page.form.press_run()
    wait_end(qtbot, page)
    assert page.bench.result is not None
    (point,) = page.bench.result.points
    assert numbers(shown.text()) == [point.figures["completed"]]


def test_a_kept_sweep_is_opened_from_the_runs(
    qtbot: QtBot, application: Application
) -> None:
    page = page_in_window(qtbot, application)
    sweep(page, "concurrency", "1, 2")
    wait_end(qtbot, page)
    labels = [point.label for point in page.bench.result.points] if page.bench.result else []
    (kept,) = (run for run in page._book.runs if run.kind is Kind.BENCH)
    page.bench.result = None
    application.window.show_widget(application.pages.runs)
    runs = application.pages.runs
    qtbot.waitUntil(lambda: kept.id in [run.id for run in runs.table.runs])
    runs.table.choose(kept.id)
    qtbot.waitUntil(lambda: runs.detail.currentWidget() is runs.detail.stored)
    runs.detail.stored.bench.click()
    qtbot.waitUntil(lambda: page.bench.result is not None and page.isVisible())
    assert page.bench.result is not None and labels
    assert [point.label for point in page.bench.result.points] == labels
    assert page.results.model.rowCount() == 2


def test_a_run_without_a_result_says_that_nothing_was_kept(
    qtbot: QtBot, page: BenchPage
) -> None:
    sweep(page, "concurrency", "1")
    page.bench.cancel()
    wait_end(qtbot, page)
    assert page.bench.problem == UNMEASURED
    assert not [run for run in page._book.runs if run.kind is Kind.BENCH]


def test_a_curve_of_an_older_record_has_every_second_percentile(
    qtbot: QtBot, page: BenchPage
) -> None:
    sweep(page, "concurrency", "1")
    wait_end(qtbot, page)
    results = page.results
    assert results.result is not None
    results.show_kind("percentiles")
    for size, step in ((101, 1.0), (51, 2.0)):
        results.result.points[0].curves["itl"] = list(map(float, range(size)))
        results.show_result(results.result)
        (curve,) = results.plot.curves
        assert [x for x, _, _ in curve.points] == [step * place for place in range(size)]


@pytest.mark.slow
def test_an_engine_that_has_idled_is_swept(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    """It sent its last snapshot before the sweep began to listen."""
    qtbot.waitUntil(lambda: parts.bridge.latest is not None)
    sweep(page, "concurrency", "1")
    wait_end(qtbot, page)
    result = page.bench.result
    assert result is not None and result.points[0].is_measured and not result.points[0].error
    steps = result.points[0].figures
    assert steps["max_concurrent_requests"] == 1


@pytest.mark.slow
def test_a_server_that_reports_neither_cache_nor_settings(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    bridge = parts.bridge
    assert bridge.model is not None and bridge.plan is not None
    bridge.model = dataclasses.replace(bridge.model, architecture="")
    bridge.plan = bridge.plan.with_blocks(0)
    sweep(page, "max_num_seqs", "2, 3")
    assert page.bench.problem is not None and page.bench.result is None
    sweep(page, "concurrency", "1, 2")
    wait_end(qtbot, page)
    assert page.bench.problem is None and page.bench.result is not None
    assert all(point.is_measured for point in page.bench.result.points)


@pytest.mark.slow
def test_no_choice_is_cut_in_a_small_window_with_large_text(
    qtbot: QtBot, application: Application
) -> None:
    page = page_in_window(qtbot, application)
    form = page.form
    boxes = (form.workload, form.pacing, *(box for box, _ in form.axes))
    top = lambda widget: widget.mapTo(form, QPoint()).y()
    beside = 40  # pixels of the arrow and the frame
    words = lambda box: box.fontMetrics().horizontalAdvance(box.currentText())
    are_whole = lambda: all(box.width() >= words(box) + beside for box in boxes)
    application.window.resize(1000, 640)
    set_text(qtbot, application, 160)
    qtbot.waitUntil(lambda: are_whole() and top(form.pacing) > top(form.workload))
    expect_whole(qtbot, form)
    below = form.height() - form.goal_fields.geometry().bottom()
    assert below <= 2 * SPACE_3  # no empty strip
    needed = lambda: form.layout().heightForWidth(form.width())
    for mode in Mode:  # more rows than a low window has room for
        form.choose(mode)
        qtbot.waitUntil(lambda: form.height() >= needed())
        expect_whole(qtbot, form)
        assert form.width() < page.width()
    form.choose(Mode.SWEEP)
    form.show_state(True, str(Progress(Point(TUNED).label, 16, 128, 300.0)), 0.2, None)
    qtbot.waitUntil(form.status.isVisible)
    expect_whole(qtbot, form)
    form.show_state(False, "", 0.0, None)
    application.window.resize(1600, 1000)
    set_text(qtbot, application, 100)
    qtbot.waitUntil(lambda: are_whole() and top(form.pacing) < top(form.rounds))


def test_settings_go_back_and_the_goal_picks_a_point(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    config = parts.bridge.config
    assert config is not None
    before = config.max_num_seqs
    page.form.goal_fields.limits["itl"].setValue(100_000)
    sweep(page, "max_num_seqs", "2, 3")
    wait_end(qtbot, page)
    result = page.bench.result
    assert result is not None and all(point.is_measured for point in result.points)
    assert result.goals.itl == 100_000 and result.points[0].goodput(result.goals)
    qtbot.waitUntil(
        lambda: parts.bridge.config is not None
        and parts.bridge.config.max_num_seqs == before
    )
    results = page.results
    usual = results.bar.apply.text()
    page.form.goal_fields.limits["itl"].setValue(0.1)  # which nothing meets
    assert page.bench.result is not None and page.bench.result.best is None
    assert results.bar.apply.isEnabled() and results.bar.apply.text() != usual
    assert results.chosen is nearest(result.points, page.bench.result.goals)
    results.table.selectRow(0)
    assert results.bar.apply.text() == usual and results.chosen is result.points[0]


def test_an_engine_that_goes_away_ends_the_sweep(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    sweep(page, "concurrency", "1, 2, 4, 8, 16, 32")
    parts.bridge.unload()
    wait_end(qtbot, page)
    assert page.bench.problem is not None and not parts.bridge.locked
    open_model(qtbot, parts)  # and the next one works
    sweep(page, "concurrency", "1")
    wait_end(qtbot, page)
    assert page.bench.problem is None


def test_bad_values_and_files_are_errors_in_the_form(
    qtbot: QtBot, page: BenchPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leave the choice as it was."""
    sweep(page, "concurrency", "1, many")
    assert not page.form.error.isHidden() and not page.bench.is_running
    file = tmp_path / "prompts.jsonl"
    file.write_text("{no json\n", encoding="utf-8")
    box = page.form.workload
    before, chosen = box.count(), box.currentText()
    page.form._show_error(None)
    box.setCurrentIndex(before - 1)
    page.form.open_file(file)
    qtbot.waitUntil(lambda: not page.form.error.isHidden())
    assert box.count() == before and box.currentText() == chosen
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))
    box.setCurrentIndex(before - 1)
    box.activated.emit(before - 1)
    assert box.currentText() == chosen


@pytest.mark.slow
def test_an_answer_before_the_end_has_its_number_of_runs(
    qtbot: QtBot, page: BenchPage
) -> None:
    """And progress has the name of the setting as the form has it."""
    page.form.rounds.setValue(2)
    page.form.goal_fields.limits["itl"].setValue(100_000)
    answers, texts = list[str](), list[str]()
    page.bench.changed.connect(lambda: answers.append(page.results.answer.text()))
    page.bench._moved.connect(lambda progress: texts.append(str(progress)))
    sweep(page, "max_num_seqs", "2, 3")
    wait_end(qtbot, page)
    assert any({1, 4} <= set(numbers(text)) for text in answers)
    assert texts and all(text.startswith("Max running requests") for text in texts)
    assert 4 not in numbers(page.results.answer.text())


@pytest.mark.slow
def test_a_sweep_of_batch_limits_asks_for_as_many_concurrent_requests(page: BenchPage) -> None:
    """So that every limit is reached; a larger load stays."""
    form, box = page.form, page.form.axes[0][0]
    for before, after in ((8, 32), (100, 100)):
        form.concurrency.setValue(before)
        box.setCurrentIndex(box.findData("concurrency"))
        assert form.concurrency.value() == before
        box.setCurrentIndex(box.findData("max_num_seqs"))
        assert form.concurrency.value() == after
    line = form.axes[0].line
    for text, after in (("1, 200", 200), ("1, abc", 200)):
        line.setText(text)
        line.editingFinished.emit()
        assert form.concurrency.value() == after


def test_the_percentile_of_the_goals_is_in_the_table_and_on_the_chart(
    qtbot: QtBot, page: BenchPage
) -> None:
    page.form.goal_fields.limits["itl"].setValue(AMPLE)
    page.form.goal_fields.percentile.setCurrentIndex(page.form.goal_fields.percentile.findData(90))
    sweep(page, "concurrency", "1, 2")
    wait_end(qtbot, page)
    headings = " ".join(page.results.model.headings)
    assert "ITL p90" in headings and "TTFT p90" in headings and "p99" not in headings
    assert [curve.label for curve in page.results.plot.curves] == ["p50", "p90"]


def test_dragging_the_line_moves_the_goal(qtbot: QtBot, page: BenchPage) -> None:
    sweep(page, "concurrency", "1, 2")
    wait_end(qtbot, page)
    page.form.goal_fields.limits["itl"].setValue(1.0)
    plot = page.results.plot
    assert plot.goal == 1.0
    target = 0.5 * plot.y_range.high
    wanted = plot.plot_rect.center().y()
    start = QPointF(plot.plot_rect.center().x(), plot.to_y(1.0))
    for kind, at in (
        (QEvent.Type.MouseButtonPress, start),
        (QEvent.Type.MouseMove, QPointF(start.x(), wanted)),
        (QEvent.Type.MouseButtonRelease, QPointF(start.x(), wanted)),
    ):
        button = Qt.MouseButton.LeftButton
        event = QMouseEvent(kind, at, plot.mapToGlobal(at), button, button,
                            Qt.KeyboardModifier.NoModifier)  # fmt: skip
        plot.event(event)
    assert page.form.goal_fields.limits["itl"].value() == pytest.approx(target, rel=0.05, abs=0.06)
    assert page.bench.goals.itl == page.form.goal_fields.limits["itl"].value()


@pytest.mark.slow
def test_an_earlier_run_is_beside_the_new_one(qtbot: QtBot, page: BenchPage) -> None:
    for _ in range(2):
        sweep(page, "concurrency", "1, 2")
        wait_end(qtbot, page)
    qtbot.waitUntil(lambda: page.results.earlier.count() == 3)
    page._load_earlier(1)
    qtbot.waitUntil(lambda: page.results.model.rowCount() == 6)
    model = page.results.model
    rows = [row for row in map(model.row_at, range(6)) if row is not None]
    changes = [row for row in rows if row.texts[0].startswith("change")]
    assert all(ONE_RUN in row.texts[0] for row in changes)
    assert len(changes) == 2 and all(len(row.texts) == len(model.headings) for row in changes)
    before, now = page.results._other, page.bench.result
    assert before is not None and now is not None
    rates = (one.points[0].figures["output_tokens_per_s"] for one in (before, now))
    assert str(difference_of(*rates, (), ())) in changes[0].texts


@pytest.mark.slow
def test_exports(qtbot: QtBot, page: BenchPage, tmp_path: Path) -> None:
    sweep(page, "concurrency", "1")
    wait_end(qtbot, page)
    assert page.bench.result is not None
    for suffix in (".json", ".csv", ".html", ".png"):
        page.export(page.bench.result, tmp_path / f"sweep{suffix}")
    files = [tmp_path / f"sweep{suffix}" for suffix in (".json", ".csv", ".html", ".png")]
    qtbot.waitUntil(lambda: all(file.exists() and file.stat().st_size > 100 for file in files))


def test_the_view_is_built_when_the_page_is_first_shown(application: Application) -> None:
    page = application.pages.bench
    assert "form" not in page.__dict__ and "results" not in page.__dict__
