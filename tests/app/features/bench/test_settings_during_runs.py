"""Settings while a run of the Bench page changes them, and after it."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.features.bench.controller import NOT_RESTORED
from app.features.bench.engine import OPENED, WindowEngine
from app.features.bench.page import BenchPage
from app.main.application import Application
from app.storage.run_records import Kind, State
from engine.messages import Load, Reconfigure, Reconfigured
from tests.app.fakes import Script
from tests.app.features.bench.bench_fixtures import (
    config_of,
    page,
    page_in_window,
    sweep,
    wait_end,
    wait_restored,
)
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import application, script, usual_text
from widgets.plot.series import MarkKind

__all__ = ["application", "page", "parts", "script", "usual_text"]
OPENS = "/models/tiny"


def sweep_to_first_point(qtbot: QtBot, page: BenchPage) -> None:
    """Of six: the sweep goes on."""
    sweep(page, "max_num_seqs", "2, 3, 4, 5, 6, 7")
    qtbot.waitUntil(
        lambda: page.bench.result is not None and page.bench.result.points[0].is_measured,
        timeout=20_000,
    )


def test_settings_are_locked_during_a_run(qtbot: QtBot, application: Application) -> None:
    page, bridge, panel = (
        page_in_window(qtbot, application), application.bridge, application.engine_settings
    )  # fmt: skip
    config, commands, applied = bridge.config, panel.commands, list[int]()
    assert config is not None
    commands.choose("block_size", 32)  # waits for Apply
    bridge.reconfigured.connect(lambda event: applied.append(event.config.max_num_seqs))
    sweep(page, "max_num_seqs", "2, 3")
    assert page.bench.is_running and bridge.locked
    assert panel.message == bridge.locked == commands.refusal_of("max_num_seqs", 9)
    assert not panel.pending.apply.isEnabled()
    assert not any(row.isEnabled() for row in panel.rows.values())
    commands.choose("max_num_seqs", 9)
    for command in (commands.apply, commands.undo, commands.redo, commands.reset):
        command()
    commands.change({"max_num_seqs": 9})
    commands.restore({"max_num_seqs": 9})
    page._apply({"max_num_seqs": 9})
    page._undo()
    assert page.results.bar.applied.text() == bridge.locked
    wait_end(qtbot, page)
    wait_restored(qtbot, bridge, config)
    assert applied == [2, 3, config.max_num_seqs]
    assert not bridge.locked and panel.model.pending == {"block_size": 32}
    with qtbot.waitSignal(bridge.reconfigured):
        panel.pending.apply.click()
    assert config_of(bridge)("block_size") == 32


def test_a_run_starts_after_what_was_chosen_just_before(
    qtbot: QtBot, application: Application
) -> None:
    page, panel = page_in_window(qtbot, application), application.engine_settings
    sent = list[tuple[dict[str, object], bool]]()
    application.bridge.reconfiguring.connect(
        lambda changes: sent.append((dict(changes), page.bench.is_running))
    )
    panel.commands.choose("max_num_seqs", 9)
    sweep(page, "concurrency", "1")
    assert not page.bench.is_running
    qtbot.waitUntil(lambda: page.bench.is_running)
    wait_end(qtbot, page)
    assert sent == [({"max_num_seqs": 9}, False)]
    assert panel.model.applied is not None and panel.model.applied.max_num_seqs == 9


def test_no_run_starts_while_settings_are_applied(
    qtbot: QtBot, application: Application
) -> None:
    """And no comparison."""
    page, view = page_in_window(qtbot, application), application.pages.runs.compare
    view.prompt.setPlainText("one")
    view.sides[1].precision.choose({"quantization": "int8"})
    action = application.window.commands.action("bench.run")
    may_run = lambda: {page.form.run.isEnabled(), action.isEnabled(), view.start.isEnabled()}
    assert may_run() == {True}
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        application.engine_settings.commands.change({"block_size": 32})
        assert may_run() == {False}
    qtbot.waitUntil(lambda: may_run() == {True})


def test_trials_are_no_changes_of_the_user(
    qtbot: QtBot, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, tune = page_in_window(qtbot, application), application.pages.tune
    source, changes, remembered = tune.comparison.source, tune.result.changes, list[object]()
    remember = lambda chosen: remembered.append(chosen)
    monkeypatch.setattr(application.session, "remember_settings", remember)
    config, before, num_changes = application.bridge.config, source.count(), len(changes.entries)
    sweep(page, "max_num_seqs", "2, 3, 4")
    wait_end(qtbot, page)
    wait_restored(qtbot, application.bridge, config)
    kinds = [mark.kind for mark in application.charts.marks.marks]
    assert kinds.count(MarkKind.TRIAL) == 4 and source.count() == before
    assert len(changes.entries) == num_changes and remembered == []


def test_a_change_by_another_window_ends_the_run(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    """As one that is attached: what comes after would be measured with other settings."""
    before = parts.bridge.config
    sweep_to_first_point(qtbot, page)
    engine = parts.bridge.engine
    assert engine is not None and before is not None
    engine.submit(Reconfigure({"block_size": 32}))
    wait_end(qtbot, page)
    problem, result = page.bench.problem, page.bench.result
    assert problem is not None and "32" in problem.cause and result is not None
    assert result.state is State.STOPPED and result.points[0].is_measured
    assert not result.points[-1].is_measured
    wait_restored(qtbot, parts.bridge, before.replace(block_size=32))


def test_late_answers_to_the_run_are_no_change_by_others(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    """After one to another program that came first."""
    assert parts.bridge.config is not None
    engine = WindowEngine(parts.bridge, page)
    config, answered = engine.config, engine._answers
    engine._sent, engine.is_applying = {"max_num_seqs": 3}, True
    for max_num_seqs in (config.max_num_seqs, 3):
        answer = config.replace(max_num_seqs=max_num_seqs)
        engine._on_reconfigured(Reconfigured(answer, None, 0.0))
        assert not engine.is_over() and answered.get().max_num_seqs == max_num_seqs
    engine._on_reconfigured(Reconfigured(config.replace(max_num_seqs=4), None, 0.0))
    assert engine.is_over() and engine.problem is not None
    engine.close()


def test_a_model_that_another_program_opens_ends_the_run(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    sweep_to_first_point(qtbot, page)
    config, engine = parts.bridge.config, parts.bridge.engine
    assert config is not None and engine is not None
    engine.submit(Load(config))
    wait_end(qtbot, page)
    assert page.bench.problem is not None and page.bench.problem.cause == OPENED
    qtbot.waitUntil(lambda: not parts.bridge.locked)


def test_cancel_keeps_what_is_done_and_puts_settings_back(
    qtbot: QtBot, page: BenchPage, parts: Parts, script: Script
) -> None:
    before = parts.bridge.config
    sweep_to_first_point(qtbot, page)
    page.bench.cancel()
    wait_end(qtbot, page)
    result = page.bench.result
    assert result is not None and result.state is State.STOPPED
    measured = [point.is_measured for point in result.points]
    assert measured[0] and not measured[-1]
    wait_restored(qtbot, parts.bridge, before)


def test_cancel_while_settings_are_applied_puts_them_back(
    qtbot: QtBot, page: BenchPage, parts: Parts, script: Script
) -> None:
    script.reconfigure_s = 0.5
    bridge, applied = parts.bridge, list[int]()
    assert bridge.config is not None
    before = bridge.config.max_num_seqs
    bridge.reconfiguring.connect(lambda changes: page.bench.cancel())
    bridge.reconfigured.connect(lambda event: applied.append(event.config.max_num_seqs))
    sweep(page, "max_num_seqs", "2, 3")
    wait_end(qtbot, page)
    assert bridge.locked and not page.form.run.isEnabled()  # until all is as before
    page.form.press_run()
    assert not page.bench.is_running and page.bench.problem is not None
    qtbot.waitUntil(lambda: not bridge.locked)
    assert applied == [2, before] and page.form.run.isEnabled()


def test_settings_that_cannot_be_put_back_are_said(
    qtbot: QtBot, page: BenchPage, parts: Parts, script: Script
) -> None:
    sweep(page, "max_num_seqs", "2, 3, 4, 5, 6")
    qtbot.waitUntil(lambda: config_of(parts.bridge)("max_num_seqs") == 2)
    script.failing_settings = ("max_num_seqs",)
    page.bench.cancel()
    wait_end(qtbot, page)
    qtbot.waitUntil(lambda: not parts.bridge.locked)
    assert page.bench.problem is not None and page.bench.problem.cause.startswith(NOT_RESTORED)


@pytest.mark.slow
def test_closing_the_window_keeps_what_is_done(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    sweep_to_first_point(qtbot, page)
    page.close_down(5.0)
    assert not page.bench.is_running
    qtbot.waitUntil(lambda: not parts.bridge.locked)
    kept = [run for run in page._book.runs if run.kind is Kind.BENCH]
    assert [run.state for run in kept] == [State.STOPPED]
    wait_restored(qtbot, parts.bridge, before)


def test_no_comparison_starts_during_a_run(qtbot: QtBot, application: Application) -> None:
    page, view = page_in_window(qtbot, application), application.pages.runs.compare
    view.prompt.setPlainText("one")
    view.sides[1].precision.choose({"quantization": "int8"})
    assert view.start.isEnabled()
    sweep(page, "concurrency", "1")
    assert not view.start.isEnabled()
    view.start_or_stop()
    assert not view._runner.is_running
    wait_end(qtbot, page)
    assert view.start.isEnabled()


def test_no_run_starts_during_a_comparison(qtbot: QtBot, application: Application) -> None:
    page, view = page_in_window(qtbot, application), application.pages.runs.compare
    view.prompt.setPlainText("one")
    view.sides[1].precision.choose({"quantization": "int8"})
    view.start.click()
    assert view._runner.is_running and application.bridge.locked
    assert not page.form.run.isEnabled()
    page.form.press_run()
    assert not page.bench.is_running
    qtbot.waitUntil(lambda: not view._runner.is_running)
    assert not application.bridge.locked and page.form.run.isEnabled()


def test_a_lesson_that_is_left_during_a_run_puts_its_settings_back_after_it(
    qtbot: QtBot, application: Application
) -> None:
    page, lessons = page_in_window(qtbot, application), application.lessons
    config = application.bridge.config
    lessons.start(lessons.course.lesson)
    load = application.pages.tune.load
    qtbot.waitUntil(lambda: load.is_on and not application.engine_settings.model.sent)
    application.engine_settings.commands.change({"max_num_seqs": 2})
    qtbot.waitUntil(lambda: config_of(application.bridge)("max_num_seqs") == 2)
    load.stop()
    sweep(page, "concurrency", "1")
    lessons.leave()
    assert page.bench.is_running and config_of(application.bridge)("max_num_seqs") == 2
    wait_end(qtbot, page)
    wait_restored(qtbot, application.bridge, config)
