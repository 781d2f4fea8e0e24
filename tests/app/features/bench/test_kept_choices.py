"""The choices of the Bench page stay between pages and starts of the program."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.bench.ranking import Objective
from app.features.bench.form import Mode
from app.features.bench.kept_choices import choices_of, recall
from app.features.bench.modes import FIRST, settings_names
from app.features.bench.page import BenchPage
from app.window.settings_store import BenchChoice
from engine.config import SETTINGS
from tests.app.features.bench.bench_fixtures import page
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import next_run, open_model, script, usual_text

__all__ = ["page", "parts", "script", "usual_text"]


def fill(page: BenchPage) -> None:
    form = page.form
    form.choose(Mode.TUNE)
    form.workload.choose("voice-bot", next(iter(form.workload._works[0][0].variants)))
    form.pacing.setCurrentIndex(1)
    form.rate.setValue(3.5)
    form.requests.setValue(40)
    form.goal_fields.limits["itl"].setValue(50)
    form.goal_fields.percentile.setCurrentIndex(0)
    form.axes[0].box.setCurrentIndex(form.axes[0].box.findData("block_size"))
    form.axes[0].line.setText("8, 32")
    form.varied[1].box.setCurrentIndex(0)
    form.tune.choose(Objective.MEMORY)


@pytest.mark.slow
def test_choices_stay_from_one_start_to_the_next(qtbot: QtBot, qapp: QApplication) -> None:
    with next_run(qapp) as first:
        first.show()
        open_model(qtbot, first, "/models/tiny")
        first.window.show_widget(first.pages.bench)
        fill(first.pages.bench)
        chosen = choices_of(first.pages.bench.form)
    with next_run(qapp) as again:
        again.show()
        again.window.show_widget(again.pages.bench)
        found = again.pages.bench
        assert choices_of(found.form) == chosen
        assert (found.form.mode, found.form.goal_fields.goals.itl) == (Mode.TUNE, 50)
        assert found.form.axes[0].text == "block_size=8, 32"
        assert found.bench.goals == found.form.goal_fields.goals
        assert not found.form.varied[1].text


def test_choices_are_kept_when_another_page_shows(
    page: BenchPage, parts: Parts
) -> None:
    fill(page)
    page.hide()
    assert parts.settings.bench_choice == choices_of(page.form)


def test_unknown_choices_leave_the_form_as_it_is(page: BenchPage) -> None:
    before = choices_of(page.form)
    odd = BenchChoice(
        mode="Race", workload="none", arrivals=-3, objective="fame", percentile=42,
        numbers={"requests": 1e18, "speed": 3.0}, goals={"luck": 1.0}, sweep=["model=1", "odd"],
    )  # fmt: skip
    recall(page.form, odd)
    found = choices_of(page.form)
    assert found.numbers["requests"] == page.form.requests.maximum()
    assert (found.mode, found.sweep, found.objective, found.goals, found.workload) == (
        before.mode, before.sweep, before.objective, before.goals, before.workload
    )  # fmt: skip


def test_settings_with_most_effect_are_first() -> None:
    names = settings_names()
    assert tuple(names[: len(FIRST)]) == FIRST
    assert sorted(names) == sorted(set(SETTINGS) - {"model"})
