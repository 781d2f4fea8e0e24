"""The Ladder mode of the Bench page: rungs, waterfall, cancel, settings put back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from pytestqt.qtbot import QtBot

from app.bench import ladder_record
from app.bench.rungs import Quality
from app.bench.rungs import State as RungState
from app.features.bench import controller
from app.features.bench.form import Mode
from app.features.bench.jobs import Job, LadderJob, make_job
from app.features.bench.page import BenchPage
from app.storage.run_records import Kind, State
from engine.config import EngineConfig
from engine.hardware.peaks import Peaks
from tests.app.bench.ladder_script import climb, result_of
from tests.app.fakes import Script
from tests.app.features.bench.bench_fixtures import (
    WAIT_MS,
    config_of,
    kept,
    page,
    run,
    wait_end,
    wait_restored,
)
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import usual_text

__all__ = ["page", "parts", "usual_text"]
OPENS = "/models/tiny"
NEVER = 0.1
"""A goal in ms that no run meets: each rung is measured with one user."""
QUALITY = Quality(0.002, 1e-4, 0.998, 500)


@pytest.fixture
def script() -> Script:
    return Script(peaks=Peaks(1e9, 1e12, "float32", 2, "test", 0.0))


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, EngineConfig]]:
    """Qualities that were asked for; nothing is loaded."""
    seen: list[tuple[EngineConfig, EngineConfig]] = []

    def measure(
        candidate: EngineConfig, reference: EngineConfig, cancelled: object
    ) -> Quality:
        seen.append((candidate, reference))
        return QUALITY

    monkeypatch.setattr(controller, "measure_quality", measure)
    monkeypatch.setattr("app.bench.ladder.Ladder._confirm", lambda self: None)
    monkeypatch.setattr("app.bench.ladder.CONFIRM", 0)
    return seen


def test_all_rungs_are_measured_and_settings_go_back(
    qtbot: QtBot, page: BenchPage, parts: Parts,
    compared: list[tuple[EngineConfig, EngineConfig]],
) -> None:  # fmt: skip
    before = parts.bridge.config
    page.form.ladder.price.setValue(2.0)
    run(page, Mode.LADDER, NEVER)
    wait_end(qtbot, page)
    result, view = page.bench.ladder, page.ladder
    assert result is not None and page.bench.problem is None
    assert page.views.currentWidget() is view
    assert [rung.state for rung in result.rungs] == [RungState.MEASURED] * 7
    assert all(rung.users == 0 and rung.split is not None for rung in result.rungs)
    assert all(result.cost(rung) for rung in result.rungs)
    assert [rung.quality for rung in result.rungs][4:6] == [QUALITY, QUALITY]
    assert {(one.quantization, base.quantization) for one, base in compared} >= {("int8", "auto")}
    assert len(view.figures.plot.steps) == 7 == view.figures.table.figures.rowCount()
    runs = kept(page, Kind.LADDER)
    assert [one.state for one in runs] == [State.DONE] and len(runs[0].sides) == 7
    assert not view.bar.apply.isEnabled()  # nothing meets the goal
    wait_restored(qtbot, parts.bridge, before)


def test_noise_has_a_color_of_its_own(page: BenchPage) -> None:
    """The prefix cache serves more users without a hit."""
    page.ladder.show_result(result := result_of(climb()))
    unclear = [step.label for step in page.ladder.figures.plot.steps if not step.is_clear]
    assert unclear == [result.rungs[3].title]


def test_users_are_searched_a_rung_is_applied_and_undone(
    qtbot: QtBot, page: BenchPage, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few_users(*given: Any) -> Job:
        job = make_job(*given)
        assert isinstance(job, LadderJob)
        job._ladder.users = (1, 2)
        return job

    monkeypatch.setattr(controller, "make_job", few_users)
    before = parts.bridge.config
    run(page, Mode.LADDER, 60_000.0)
    wait_end(qtbot, page)
    wait_restored(qtbot, parts.bridge, before)
    result, view = page.bench.ladder, page.ladder
    assert result is not None and {rung.users for rung in result.rungs} == {2}
    plot = view.figures.plot
    column = plot.room(1)
    at = QPointF(column.center().x(), plot.plot_rect.center().y())
    button = Qt.MouseButton.LeftButton
    plot.event(QMouseEvent(QEvent.Type.MouseButtonPress, at, plot.mapToGlobal(at),
               button, button, Qt.KeyboardModifier.NoModifier))  # fmt: skip
    assert view.rung is result.rungs[1] and view.settings["batching"] == "continuous"
    view.bar.apply.click()
    value = config_of(parts.bridge)
    qtbot.waitUntil(lambda: value("enable_prefix_caching") is False, timeout=WAIT_MS)
    assert value("kv_allocation") == "contiguous" and value("max_num_seqs") == 2
    assert before is not None and not view.bar.undo.isHidden()
    qtbot.waitUntil(lambda: not parts.engine_settings.model.sent)
    view.bar.undo.click()
    qtbot.waitUntil(lambda: value("max_num_seqs") == before.max_num_seqs, timeout=WAIT_MS)
    assert value("kv_allocation") == "paged" and value("enable_prefix_caching") is True


@pytest.mark.slow
def test_a_setting_that_fails_is_skipped_and_the_ladder_goes_on(
    qtbot: QtBot, page: BenchPage, parts: Parts, script: Script
) -> None:
    script.failing_settings = ("kv_cache_dtype",)
    before = parts.bridge.config
    run(page, Mode.LADDER, NEVER)
    wait_end(qtbot, page)
    result = page.bench.ladder
    assert result is not None
    states = {rung.key: rung.state for rung in result.rungs}
    assert states["kv"] is RungState.SKIPPED and states["drafts"] is RungState.MEASURED
    assert "9 GiB" in result.rungs[5].reason and page.ladder.figures.plot.steps[5].value is None
    wait_restored(qtbot, parts.bridge, before)


def test_cancel_keeps_the_rungs_that_are_done(
    qtbot: QtBot, page: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    run(page, Mode.LADDER, NEVER)
    qtbot.waitUntil(
        lambda: page.bench.ladder is not None
        and page.bench.ladder.rungs[0].state is RungState.MEASURED,
        timeout=WAIT_MS,
    )
    page.bench.cancel()
    wait_end(qtbot, page)
    result = page.bench.ladder
    assert result is not None and result.state is State.STOPPED
    assert result.rungs[-1].state is RungState.WAITING
    assert [one.state for one in kept(page, Kind.LADDER)] == [State.STOPPED]
    wait_restored(qtbot, parts.bridge, before)


@pytest.mark.slow
def test_exports_and_the_run_in_runs(
    qtbot: QtBot, page: BenchPage, parts: Parts, tmp_path: Path
) -> None:
    run(page, Mode.LADDER, NEVER)
    wait_end(qtbot, page)
    result = page.bench.ladder
    assert result is not None
    files = [tmp_path / f"ladder{suffix}" for suffix in (".json", ".csv", ".html", ".png")]
    for file in files:
        page.export(result, file)
    qtbot.waitUntil(lambda: all(file.exists() and file.stat().st_size > 100 for file in files))
    parts.show("runs")
    stored = parts.runs.detail.stored
    stored.show_run(ladder_record.to_run(result))
    assert stored.verdict.text() == result.answer
    users = [rung.users for rung in result.rungs]
    assert [step.value for step in stored.ladder.plot.steps] == users
    assert stored.ladder.table.figures.rowCount() == len(result.rungs)
    assert stored.ladder.isVisibleTo(stored) and stored.table.isHidden()
    damaged = replace(ladder_record.to_run(result), details={"rungs": 3})
    stored.show_run(damaged)
    assert not stored.ladder.isVisibleTo(stored) and not stored.table.isHidden()
