"""Forecasts of chosen settings, from the snapshots of a scripted engine of known step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from PySide6.QtCore import QObject, Signal
from pytestqt.qtbot import QtBot

from app.features.tune import forecaster as made_by
from app.features.tune.forecast import NOTHING, Headline, forecast
from app.features.tune.forecast_process import forecast_apart
from app.features.tune.forecaster import Forecaster
from app.features.tune.result_bar import ResultBar
from app.features.tune.verdict import judge
from app.link.bridge import EngineBridge
from app.main.application import Application
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.simulate.engine import SimulatedEngine
from engine.simulate.traffic import Traffic
from engine.snapshot import EngineSnapshot
from tests.app.window_fixtures import application, open_model, script
from tests.engine.simulate.scripted import KNOWN, like, serve
from tests.figures import numbers
from widgets.live.metric_store import MetricStore
from widgets.plot.marks import MarkLog
from widgets.plot.series import Mark

__all__ = ["application", "script"]
SECONDS, RATE = 16.0, 6.0


@pytest.fixture(scope="module")
def snapshots() -> list[EngineSnapshot]:
    return list(serve(SimulatedEngine(like(), KNOWN), SECONDS, None, RATE))


def store_of(snapshots: list[EngineSnapshot]) -> MetricStore:
    store = MetricStore()
    for snapshot in snapshots:
        store.update(snapshot)
    return store


class Bridge(QObject):
    snapshot = Signal(object)
    past = Signal(object)
    loaded = Signal(object)
    unloaded = Signal()

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self.config = config


class Desk:
    """A forecaster that has seen `snapshots`, and the settings that are chosen."""

    def __init__(self, snapshots: list[EngineSnapshot]) -> None:
        self.bridge = Bridge(snapshots[-1].config)
        self.store = MetricStore()
        self.chosen: dict[str, Any] = {}
        self.changes = 0
        bridge: Any = self.bridge
        self.forecaster = Forecaster(bridge, self.store, lambda: self.chosen)
        self.forecaster.changed.connect(self._count)
        for snapshot in snapshots:
            self.store.update(snapshot)
            self.bridge.snapshot.emit(snapshot)

    def _count(self) -> None:
        self.changes += 1

    def choose(self, **changes: Any) -> None:
        self.chosen = changes
        self.forecaster.refresh()

    def apply(self) -> None:
        self.bridge.config = self.bridge.config.replace(**self.chosen)
        self.chosen = {}
        self.forecaster.refresh()


@pytest.fixture
def make(qtbot: QtBot) -> Iterator[Callable[[list[EngineSnapshot]], Desk]]:
    made: list[Desk] = []

    def one(snapshots: list[EngineSnapshot]) -> Desk:
        made.append(Desk(snapshots))
        return made[-1]

    yield one
    for desk in made:
        desk.choose()


def test_a_forecast_is_what_the_engine_does_at_the_settings(
    snapshots: list[EngineSnapshot],
) -> None:
    """Figures within 1 %, and curves that follow those of the engine."""
    traffic = Traffic()
    for snapshot in snapshots:
        traffic.update(snapshot)
    load, change = traffic.load(), {"max_num_seqs": 3}
    found = forecast(like(), traffic.samples(), load, change)
    assert not found.beyond
    truth = store_of(list(serve(SimulatedEngine(like(), KNOWN, **change), SECONDS, None, RATE)))
    for predicted, real in zip(
        found.headline, Headline.of(truth, load.start, load.end), strict=True
    ):
        assert predicted == pytest.approx(real, rel=0.01)
    assert set(found.curves) == {"ttft", "itl", "tokens", "requests", "cache"}
    for times, values in found.curves.values():
        assert len(times) == len(values) > 10 and list(times) == sorted(times)
    assert found.curves["itl"][1][-1] == pytest.approx(truth.line("itl").p50.values[-1], rel=0.01)
    assert found.curves["requests"][1].max() <= 3
    assert 0 < found.curves["cache"][1].max() <= 100


@pytest.mark.slow
def test_a_process_of_its_own_finds_the_same(snapshots: list[EngineSnapshot]) -> None:
    traffic = Traffic()
    for snapshot in snapshots:
        traffic.update(snapshot)
    given = like(), traffic.samples(), traffic.load(), {"max_num_seqs": 3}
    found, expected = forecast_apart(*given), forecast(*given)
    assert found.headline == expected.headline and found.beyond == expected.beyond
    assert (found.start, found.end, found.changes) == (expected.start, expected.end, given[3])
    for name, (times, values) in expected.curves.items():
        assert [list(line) for line in found.curves[name]] == [list(times), list(values)]
    with pytest.raises(ConfigError):
        forecast_apart(*given[:3], {"quantization": "int8"})


def test_a_replay_ends_once_another_choice_is_made(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    checks: list[Callable[[], None]] = []

    def apart(*given: Any) -> Any:
        checks.append(given[-1])
        return forecast(*given[:-1])

    monkeypatch.setattr(made_by, "forecast_apart", apart)
    desk = make(snapshots)
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(max_num_seqs=3)
    checks[0]()
    desk.choose(max_num_seqs=4)
    with pytest.raises(made_by.SupersededError):
        checks[0]()
    qtbot.waitUntil(lambda: len(checks) == 2, timeout=10_000)
    checks[1]()


def test_words_have_now_and_then_and_the_error(snapshots: list[EngineSnapshot]) -> None:
    traffic = Traffic()
    for snapshot in snapshots:
        traffic.update(snapshot)
    found = forecast(like(), traffic.samples(), traffic.load(), {"max_num_seqs": 3})
    found = dataclasses.replace(found, headline=Headline(12.0, 340.0, 64.0))
    words = found.words(Headline(9.1, 120.0, 51.0))
    assert {9.1, 12.0, 120, 340, 51, 64} <= set(numbers(words))
    outcome = found.outcome(Headline(11.0, 340.0, None))
    assert {12.0, 11.0, 9.1, 340, 64} <= set(numbers(outcome))
    assert "measured" not in found.outcome(NOTHING)
    assert found.words(NOTHING) == ""


def test_a_prediction_has_the_statistics_of_a_result(snapshots: list[EngineSnapshot]) -> None:
    """What is predicted, what is measured and what the result says are one figure."""
    store, stretch = store_of(snapshots), (4.0, SECONDS)
    levels = {one.key: one.after.level for one in judge(store, (0.0, 4.0), stretch)}
    measured = Headline.of(store, *stretch)
    assert None not in measured
    assert measured == Headline(levels["itl"], levels["ttft"], levels["output"])


def test_batches_beyond_the_measured_ones_are_extrapolated_and_said_to_be() -> None:
    traffic = Traffic()
    for snapshot in serve(SimulatedEngine(like(), KNOWN, max_num_seqs=3), 8.0, 6):
        traffic.update(snapshot)
    changes = {"max_num_seqs": 8}
    found = forecast(like(), traffic.samples(), traffic.load(), changes)
    assert found.beyond == 3
    assert 3 in numbers(found.words(Headline(9.1, 120.0, 51.0)))
    truth = store_of(list(serve(SimulatedEngine(like(), KNOWN, **changes), 8.0, 6)))
    expected = Headline.of(truth, 2.0, 8.0)
    # batches of 1 to 3 leave open how much is of a request, of a token, and of its KV
    assert found.headline.itl == pytest.approx(expected.itl, rel=0.3)
    assert found.headline.output == pytest.approx(expected.output, rel=0.3)


def test_a_choice_is_predicted_and_a_discarded_one_is_gone(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(max_num_seqs=3)
    found = desk.forecaster.forecast
    assert found is not None and found.changes == {"max_num_seqs": 3}
    measured = Headline.of(desk.store, found.start, found.end)
    assert measured.ttft is not None and found.headline.ttft is not None
    assert found.headline.ttft > measured.ttft
    assert desk.forecaster.words and desk.forecaster.applied is None
    desk.choose()
    assert desk.forecaster.forecast is None and desk.forecaster.words == ""


def test_the_end_of_the_window_ends_a_forecast(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    desk.choose(max_num_seqs=3)
    desk.forecaster.close()
    qtbot.wait(3 * made_by.DELAY_MS)
    assert desk.forecaster.forecast is None and not desk.forecaster.problem


def test_only_the_last_of_several_choices_is_predicted(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    for value in (2, 4, 6):
        desk.choose(max_num_seqs=value)
    qtbot.waitUntil(lambda: desk.forecaster.forecast is not None, timeout=10_000)
    found = desk.forecaster.forecast
    assert found is not None and found.changes == {"max_num_seqs": 6}
    assert desk.changes == 1


def test_an_applied_choice_keeps_its_forecast_until_the_next(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(max_num_seqs=3)
    found = desk.forecaster.forecast
    desk.apply()
    assert desk.forecaster.applied is found and desk.forecaster.words == ""
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(block_size=32)
    assert desk.forecaster.applied is None


@pytest.mark.slow
def test_settings_that_are_put_back_have_no_forecast(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    config = desk.bridge.config
    assert config is not None
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(max_num_seqs=3)
    desk.apply()
    assert desk.forecaster.applied is not None
    desk.choose(max_num_seqs=config.max_num_seqs)
    desk.apply()
    qtbot.wait(3 * made_by.DELAY_MS)
    assert desk.forecaster.forecast is None and desk.forecaster.applied is None


@pytest.mark.slow
def test_a_choice_that_is_applied_before_its_forecast_gets_it_afterwards(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    """A live setting is sent after a quarter of a second."""
    desk = make(snapshots)
    desk.choose(max_num_seqs=3)
    desk.apply()
    qtbot.waitUntil(lambda: desk.forecaster.applied is not None, timeout=10_000)


def test_no_forecast_of_what_the_scheduler_does_not_decide(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots)
    desk.choose(quantization="int8", max_num_seqs=3)
    qtbot.wait(150)
    assert desk.forecaster.forecast is None and not desk.changes


def test_too_little_load_says_so(
    qtbot: QtBot, make: Callable[..., Desk], snapshots: list[EngineSnapshot]
) -> None:
    desk = make(snapshots[:10])
    with qtbot.waitSignal(desk.forecaster.changed, timeout=10_000):
        desk.choose(max_num_seqs=3)
    assert desk.forecaster.forecast is None and numbers(desk.forecaster.words)
    full = make(snapshots)
    full.forecaster.load_changed()  # another load from now on: none of it is known
    with qtbot.waitSignal(full.forecaster.changed, timeout=10_000):
        full.choose(max_num_seqs=3)
    assert full.forecaster.forecast is None and full.forecaster.words


def test_the_result_of_a_change_has_the_error_of_its_prediction(
    qtbot: QtBot, snapshots: list[EngineSnapshot]
) -> None:
    store, marks = store_of(snapshots), MarkLog()
    bar = ResultBar(store, marks, lambda: SECONDS)
    qtbot.addWidget(bar)
    bar.opened("model", {})
    marks.add(Mark(4.0, "Max running requests 16 → 8"))
    bar.changed("Max running requests 16 → 8", {"max_num_seqs": 8})
    measured = Headline.of(store, 4.0, SECONDS).output
    assert measured is not None
    without = bar.detail.text()
    expected: Any = SimpleNamespace(
        changes={"max_num_seqs": 8},
        outcome=lambda found: f"predicted {found.output:.3f}" if found.output else "nothing"
    )
    bar.forecast = lambda: expected
    bar.refresh()
    assert bar.detail.text() != without
    assert any(value == pytest.approx(measured, rel=0.1) for value in numbers(bar.detail.text()))


def test_a_result_keeps_its_prediction(qtbot: QtBot, snapshots: list[EngineSnapshot]) -> None:
    """Settings that are put back without a result, as after a lesson, have another one."""
    store, marks = store_of(snapshots), MarkLog()
    bar = ResultBar(store, marks, lambda: SECONDS)
    qtbot.addWidget(bar)
    bar.opened("model", {})
    other, own = (
        SimpleNamespace(changes={"max_num_seqs": value}, outcome=lambda _, n=value: f"= {n}")
        for value in (SETTINGS["max_num_seqs"].default, 8)
    )
    marks.add(Mark(4.0, "Max running requests 16 → 8"))
    bar.changed("Max running requests 16 → 8", {"max_num_seqs": 8})
    applied: Any = own
    bar.forecast = lambda: applied
    bar.refresh()
    assert "= 8" in bar.detail.text()
    bar.end_lesson({})
    applied = other
    marks.add(Mark(12.0, "Max running requests 8 → 16"))
    bar.changed("Max running requests 8 → 16", {})
    assert "= 8" in bar.detail.text() and bar.detail.text().count("=") == 1


def test_a_bridge_has_the_signals() -> None:
    assert all(hasattr(EngineBridge, name) for name in ("snapshot", "past", "loaded", "unloaded"))


def test_a_chosen_setting_is_predicted_beside_apply(
    qtbot: QtBot, application: Application
) -> None:
    """Or it says why not: this engine reports no steps."""
    open_model(qtbot, application)
    panel = application.engine_settings
    panel.choose("block_size", 64)
    qtbot.waitUntil(lambda: not panel.pending.forecast.isHidden(), timeout=5000)
    assert panel.pending.forecast.text()
    panel.commands.discard()
    assert panel.pending.forecast.isHidden()
