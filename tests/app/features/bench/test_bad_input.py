"""Searches of the Bench page with bad input: goals, prompts, settings, an end in mid-search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from app.features.bench.form import Mode
from app.features.bench.page import BenchPage
from app.main.application import Application
from app.storage.run_records import Kind, State
from tests.app.fakes import Script
from tests.app.features.bench.bench_fixtures import (
    AMPLE,
    WAIT_MS,
    kept,
    narrow,
    page,
    page_in_window,
    run,
    search,
    wait_end,
    wait_restored,
)
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import application, next_run, open_model, script, usual_text
from tests.figures import numbers
from tests.tiers import first_fast

__all__ = ["application", "page", "parts", "script", "search", "usual_text"]
OPENS = "/models/tiny"
NEVER = 0.1


def test_a_goal_that_nothing_meets_has_the_nearest_trial(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    run(search, Mode.TUNE, NEVER)
    wait_end(qtbot, search)
    result, results = search.bench.result, search.results
    assert result is not None and result.best is None and result.points
    near = min(result.points, key=lambda point: result.goals.excess(point.figures) or 1e9)
    assert {float(value) for value in near.settings.values()} <= set(numbers(results.answer.text()))
    assert [one.state for one in kept(search, Kind.BENCH)] == [State.DONE]
    wait_restored(qtbot, parts.bridge, before)


@pytest.mark.slow
def test_a_setting_that_the_model_cannot_take_is_a_failed_trial(
    qtbot: QtBot, search: BenchPage, parts: Parts, script: Script
) -> None:
    script.failing_settings = ("max_num_batched_tokens",)
    before = parts.bridge.config
    search.form.varied[1].line.setText("128, 512")  # 512: as it is
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    result, problem = search.bench.result, search.bench.problem
    assert result is not None
    assert problem is not None and "9 GiB" in problem.cause  # of the calibration
    failed = [point for point in result.points if point.error]
    assert failed and {point.settings["max_num_batched_tokens"] for point in failed} == {128}
    assert result.best is not None and not result.best.error
    assert all("9 GiB" in point.error for point in failed)
    assert "9 GiB" in search.results.answer.text()
    wait_restored(qtbot, parts.bridge, before)


@pytest.mark.slow
def test_prompts_that_are_rejected_fail_their_trials(
    qtbot: QtBot, search: BenchPage, parts: Parts, tmp_path: Path, script: Script
) -> None:
    """As those beyond the context."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": script.rejected_prompt, "max_tokens": 4}) + "\n")
    search.form.open_file(file)
    qtbot.waitUntil(lambda: search.form.workload.currentText().startswith(file.name))
    before = parts.bridge.config
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    result = search.bench.result
    assert result is not None and result.points and result.best is None
    assert all({9000, 2048} <= set(numbers(point.error)) for point in result.points)
    assert [one.state for one in kept(search, Kind.BENCH)] == [State.FAILED]
    wait_restored(qtbot, parts.bridge, before)


@pytest.mark.slow
def test_an_end_in_mid_search_leaves_the_stored_settings(
    qtbot: QtBot, qapp: QApplication
) -> None:
    with next_run(qapp) as first:
        first.show()
        open_model(qtbot, first, OPENS)
        search = first.pages.bench
        first.window.show_widget(search)
        stored = first.settings.settings_of(OPENS, "auto")
        narrow(search)
        search.form.warmups.setValue(0)
        run(search, Mode.TUNE, AMPLE)
        qtbot.waitUntil(
            lambda: search.bench.result is not None and bool(search.bench.result.points)
            and search.bench.result.points[0].is_measured,
            timeout=WAIT_MS,
        )  # fmt: skip
        assert first.settings.settings_of(OPENS, "auto") == stored
    with next_run(qapp) as again:
        assert again.settings.settings_of(OPENS, "auto") == stored
        book = again.pages.bench._book
        book.reload()
        qtbot.waitUntil(lambda: any(one.kind is Kind.BENCH for one in book.runs))
        assert [one.state for one in book.runs if one.kind is Kind.BENCH] == [State.STOPPED]


@pytest.mark.parametrize("mode", first_fast(1, list(Mode)))
def test_closing_the_window_in_mid_run_asks_and_puts_the_settings_back(
    qtbot: QtBot, application: Application, mode: Mode
) -> None:
    search = page_in_window(qtbot, application)
    narrow(search)
    before = application.bridge.config
    run(search, mode, AMPLE)
    assert not application.window.close() and application.window.isVisible()
    asked = search.leaving.dialog
    assert asked is not None and asked.isVisible()
    asked.defaultButton().click()
    assert search.bench.is_running and search.leaving.dialog is None
    assert not application.window.close()
    asked = search.leaving.dialog
    assert asked is not None
    leave = QMessageBox.ButtonRole.AcceptRole
    next(one for one in asked.buttons() if asked.buttonRole(one) is leave).click()
    assert not application.window.isVisible()
    wait_end(qtbot, search)
    wait_restored(qtbot, application.bridge, before)


@pytest.mark.slow
def test_closing_the_window_in_mid_run_asks_only_if_the_user_wants_it(
    qtbot: QtBot, application: Application
) -> None:
    search = page_in_window(qtbot, application)
    narrow(search)
    application.settings.preferences.set("confirm_leave", False)
    run(search, Mode.TUNE, AMPLE)
    assert search.bench.is_running and application.window.close()
