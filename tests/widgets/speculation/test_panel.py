"""The figures of speculation, and their panel."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from engine.snapshot import EngineSnapshot, SpeculationSnapshot, SpeedUp, StepEntry, StepRecord
from tests.widgets import synthetic
from widgets.plot.clock import RedrawClock
from widgets.speculation.panel import (
    OFF_TEXT,
    SpeculationPanel,
    acceptance,
    source,
    times,
    verdict,
)

FIGURES = SpeculationSnapshot(
    method="draft_model", draft_model="small", rounds=100,
    drafted_per_position=(100, 80, 40), accepted_per_position=(90, 60, 10), draft_steps=50,
    draft_s=0.1, verify_s=0.6, speed_up=SpeedUp(1.84, 640, 10),
)  # fmt: skip


def with_gain(factor: float, num_plain: int = 10) -> SpeculationSnapshot:
    return dataclasses.replace(FIGURES, speed_up=SpeedUp(factor, 640, num_plain))


@pytest.mark.parametrize(
    ("factor", "tone"), [(1.84, "success"), (0.71, "warning"), (1.01, "text")]
)
def test_the_verdict_is_the_measured_speed_up(factor: float, tone: str) -> None:
    found = verdict(with_gain(factor))
    assert f"{factor}×" in found.text and found.tone == tone
    assert {"640", "10"} <= set(found.detail.split())


def test_paused_speculation_is_a_warning() -> None:
    resting = dataclasses.replace(with_gain(0.71), rest_steps=12)
    found = verdict(resting)
    assert found.tone == "warning" and "12" in found.detail and "0.71×" in found.detail
    assert verdict(dataclasses.replace(resting, rest_steps=2)) == verdict(with_gain(0.71))


def test_no_speed_up_is_shown_before_it_is_measured() -> None:
    none_yet = SpeculationSnapshot("ngram")
    assert acceptance(none_yet) == times(none_yet) == ""
    few = verdict(with_gain(3.0, num_plain=2))
    assert "×" not in few.text and "2 of 5" in few.detail
    assert "0 of 5" in verdict(dataclasses.replace(FIGURES, speed_up=None)).detail


def test_figures_have_numbers_and_units() -> None:
    assert numbers(acceptance(FIGURES)) == ["2.60", "160", "220", "73"]
    assert times(FIGURES).count(" ms") == 2 and numbers(times(FIGURES)) == ["2", "12"]
    assert "small" in source(FIGURES)
    assert source(SpeculationSnapshot("ngram")) == "n-gram"


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


@pytest.fixture
def panel(qtbot: QtBot) -> SpeculationPanel:
    clock = RedrawClock()
    made = SpeculationPanel(clock)
    clock.setParent(made)
    qtbot.addWidget(made)
    made.resize(1000, 220)
    made.show()
    return made


def snapshot(at: float, figures: SpeculationSnapshot | None, *rounds: StepEntry) -> EngineSnapshot:
    step = StepRecord(0, at - 0.1, 0.05, rounds, len(rounds), 0)
    return dataclasses.replace(
        synthetic.snapshot(at), steps=(step,) if rounds else (), speculation=figures
    )


def round_of(drafted: int, accepted: int) -> StepEntry:
    return StepEntry("a", "decode", 1, num_draft=drafted, num_accepted=accepted)


@pytest.mark.parametrize("size", [(1000, 280), (420, 280), (1000, 130)])
def test_off_is_read_in_whole(
    qtbot: QtBot, panel: SpeculationPanel, size: tuple[int, int]
) -> None:
    panel.resize(*size)
    text = panel._off_text
    qtbot.waitUntil(lambda: panel.width() == size[0])
    qtbot.waitUntil(lambda: text.height() >= text.heightForWidth(text.width()))


def test_off_says_what_it_is_and_how_to_have_it(qtbot: QtBot, panel: SpeculationPanel) -> None:
    synthetic.feed(panel, snapshot(1.0, None))
    assert panel.choose.isVisible() and not panel.verdict.isVisible()
    assert panel._off_text.text() == OFF_TEXT
    with qtbot.waitSignal(panel.settings_wanted):
        qtbot.mouseClick(panel.choose, Qt.MouseButton.LeftButton)


def test_it_shows_the_verdict_the_places_and_the_rounds(panel: SpeculationPanel) -> None:
    synthetic.feed(panel, snapshot(1.0, FIGURES, round_of(4, 3), round_of(4, 0), round_of(0, 0)))
    assert panel.verdict.text() == verdict(FIGURES).text
    assert panel.verdict.property("tone") == "success"
    places = panel.positions.accessibleDescription().split("\n")
    assert [numbers(place) for place in places] == [
        ["1", "90", "100", "90"], ["2", "60", "80", "75"], ["3", "10", "40", "25"],
    ]  # fmt: skip
    data = panel.chart.data
    assert data.newest("length", 1.3, 60.0) == pytest.approx(2.5)
    assert data.newest("drafted", 1.3, 60.0) == pytest.approx(4.0)
    synthetic.feed(panel, snapshot(1.2, FIGURES, round_of(0, 0)))  # nothing was drafted: no point
    assert data.newest("length", 1.3, 60.0) == pytest.approx(2.5)
    panel.clear()
    assert panel.choose.isVisible()


def test_columns_keep_apart_and_inside(panel: SpeculationPanel) -> None:
    many = dataclasses.replace(
        FIGURES, drafted_per_position=(9,) * 16, accepted_per_position=(3,) * 16
    )
    synthetic.feed(panel, snapshot(1.0, many))
    bars = [panel.positions.bar_rect(i) for i in range(16)]
    assert all(a.right() < b.left() for a, b in itertools.pairwise(bars))
    assert bars[-1].right() <= panel.positions.width()
    assert not panel.positions.grab().isNull()


def test_what_a_server_counts_is_shown_and_nothing_more(panel: SpeculationPanel) -> None:
    reported = SpeculationSnapshot("", rounds=100, told_drafted=300, told_accepted=150)
    synthetic.feed(panel, snapshot(1.0, reported))
    assert panel.verdict.text() == verdict(reported).text
    assert numbers(panel.acceptance.text()) == ["2.50", "150", "300", "50"]
    assert not panel.positions.isVisible() and panel.source.text() == panel.times.text() == ""
    more = dataclasses.replace(reported, rounds=110, told_drafted=340, told_accepted=180)
    synthetic.feed(panel, snapshot(2.0, more))
    data = panel.chart.data
    assert data.newest("length", 2.1, 60.0) == pytest.approx(4.0)
    assert data.newest("drafted", 2.1, 60.0) == pytest.approx(4.0)
    gauge = SpeculationSnapshot("", told_drafted=0, told_accepted=0, told_length=2.5)
    panel.clear()
    synthetic.feed(panel, snapshot(3.0, gauge))
    assert numbers(acceptance(gauge)) == ["2.50"]
    synthetic.feed(panel, snapshot(4.0, FIGURES))
    assert panel.positions.isVisible()
