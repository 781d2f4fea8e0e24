"""The Tune mode of the Bench page: a search, its Pareto chart, apply and undo."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from pytestqt.qtbot import QtBot

from app.bench.ranking import Objective
from app.features.bench.form import Mode
from app.features.bench.page import BenchPage
from app.features.bench.results import EMPTY, LATENCY, MEMORY
from app.features.tune.server_dialog import ServerDialog
from app.storage.run_records import Kind, State
from engine.config import SETTINGS
from tests.app.features.bench.bench_fixtures import (
    AMPLE,
    WAIT_MS,
    config_of,
    kept,
    page,
    run,
    search,
    wait_end,
    wait_restored,
)
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import script, usual_text
from widgets.plot.pareto_plot import ParetoPlot

__all__ = ["page", "parts", "script", "search", "usual_text"]
OPENS = "/models/tiny"


def click(plot: ParetoPlot, index: int) -> None:
    at = plot.place(plot.dots[index])
    button = Qt.MouseButton.LeftButton
    for kind in (QEvent.Type.MouseButtonPress, QEvent.Type.MouseButtonRelease):
        plot.event(QMouseEvent(kind, at, plot.mapToGlobal(QPointF(at)), button, button,
                               Qt.KeyboardModifier.NoModifier))  # fmt: skip


def test_before_a_run_the_answer_explains_the_chosen_mode(search: BenchPage) -> None:
    for mode in (Mode.TUNE, Mode.SWEEP):
        search.form.choose(mode)
        assert search.results.answer.text() == EMPTY[mode]


def test_a_search_is_a_pareto_chart_and_a_kept_run(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    result, results = search.bench.result, search.results
    assert result is not None and search.bench.problem is None
    assert sum(len(point.rounds) for point in result.points) <= 5
    assert results.kind.currentData() == LATENCY and results.pareto.goal == AMPLE
    dots = results.pareto.dots
    rates = sorted(point.figures["output_tokens_per_s"] for point in result.points)
    assert sorted(dot.x for dot in dots) == rates
    assert sum(dot.is_best for dot in dots) == 1 and any(dot.is_front for dot in dots)
    names = {"max_num_seqs", "max_num_batched_tokens"}
    assert all(point.settings.keys() == names for point in result.points)
    assert [one.state for one in kept(search, Kind.BENCH)] == [State.DONE]
    wait_restored(qtbot, parts.bridge, before)


def test_hover_explains_a_click_applies_and_undo_returns(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    wait_restored(qtbot, parts.bridge, before)
    results, value = search.results, config_of(parts.bridge)
    plot = results.pareto
    index = next(i for i, dot in enumerate(plot.dots) if "3" in dot.lines[0])
    assert plot.item_at(plot.place(plot.dots[index])) in range(len(plot.dots))
    wanted = results._dotted[index].settings
    click(plot, index)
    qtbot.waitUntil(lambda: value("max_num_seqs") == wanted["max_num_seqs"], timeout=WAIT_MS)
    assert value("max_num_batched_tokens") == wanted["max_num_batched_tokens"]
    assert results.chosen is results._dotted[index] and not results.bar.undo.isHidden()
    qtbot.waitUntil(lambda: not parts.engine_settings.model.sent)
    results.bar.undo.click()
    assert before is not None
    qtbot.waitUntil(lambda: value("max_num_seqs") == before.max_num_seqs, timeout=WAIT_MS)
    assert results.bar.undo.isHidden()


@pytest.mark.slow
def test_a_trial_is_copied_as_command_lines(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    results = search.results
    results.table.selectRow(0)
    assert results.chosen is not None
    batch = results.chosen.settings["max_num_seqs"]
    results.bar.copy.click()
    dialog = parts.engine_settings.findChild(ServerDialog)
    assert dialog is not None and f"--max-num-seqs {batch}" in dialog.commands[0].text
    dialog.close()


@pytest.mark.slow
def test_the_least_memory_has_its_own_chart(qtbot: QtBot, search: BenchPage) -> None:
    box = search.form.tune.objective
    box.setCurrentIndex(box.findData(Objective.MEMORY))
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    result, results = search.bench.result, search.results
    assert result is not None and result.objective is Objective.MEMORY
    assert results.kind.currentData() == MEMORY and results.pareto.goal is None
    best = min(point.figures["memory_bytes"] for point in result.points)
    assert result.best is not None and result.best.figures["memory_bytes"] == best


@pytest.mark.slow
def test_without_a_goal_nothing_is_searched(search: BenchPage) -> None:
    run(search, Mode.TUNE, 0.0)
    assert not search.bench.is_running and not search.form.error.isHidden()
    assert search.bench.problem is not None and search.bench.result is None


@pytest.mark.slow
def test_nothing_is_applied_while_it_runs(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    run(search, Mode.TUNE, AMPLE)
    search._apply({"max_num_seqs": 7})
    wait_end(qtbot, search)
    commands = [one.changes for one in parts.bridge.engine.commands  # type: ignore[union-attr]
                if hasattr(one, "changes")]  # fmt: skip
    assert {"max_num_seqs": 7} not in commands and search.results.bar.undo.isHidden()


@pytest.mark.slow
def test_closing_the_window_keeps_the_trials(
    qtbot: QtBot, search: BenchPage, parts: Parts
) -> None:
    before = parts.bridge.config
    run(search, Mode.TUNE, AMPLE)
    qtbot.waitUntil(
        lambda: search.bench.result is not None and bool(search.bench.result.points)
        and search.bench.result.points[0].is_measured,
        timeout=WAIT_MS,
    )  # fmt: skip
    search.close_down(5.0)
    assert not search.bench.is_running
    assert [one.state for one in kept(search, Kind.BENCH)] == [State.STOPPED]
    wait_restored(qtbot, parts.bridge, before)


def test_axes_without_values_are_errors(search: BenchPage) -> None:
    search.form.varied[0].line.setText("many")
    run(search, Mode.TUNE, AMPLE)
    assert not search.form.error.isHidden() and not search.bench.is_running


@pytest.mark.slow
def test_progress_names_settings_as_the_form_does(qtbot: QtBot, search: BenchPage) -> None:
    seen: list[str] = []
    search.bench.changed.connect(lambda: seen.append(search.form.status.text()))
    run(search, Mode.TUNE, AMPLE)
    wait_end(qtbot, search)
    shown = [place for point in search.bench.result.points
             if any(text.startswith(place := point.label) for text in seen)]  # fmt: skip
    assert shown, "beside the calibration"
    assert all(SETTINGS["max_num_seqs"].label in place for place in shown)
    assert not any("max_num_seqs" in text for text in seen)
