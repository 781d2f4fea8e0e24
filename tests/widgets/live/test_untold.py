"""Views of an engine that does not tell everything."""

from __future__ import annotations

import dataclasses
import math

import pytest
from pytestqt.qtbot import QtBot

from app.clients.target import Dialect
from engine.snapshot import EngineSnapshot, Part, Told
from tests.widgets.synthetic import snapshot
from widgets.controls.text import untold, untold_text
from widgets.live.charts import LiveCharts
from widgets.live.figures import StatFigures, state_words
from widgets.requests.model import NOTHING, RequestModel


def elsewhere(*missing: Part, told: Told | None = None, by: str = "TGI") -> EngineSnapshot:
    given = snapshot(10.0)
    model = dataclasses.replace(given.model, device=by)
    return dataclasses.replace(given, model=model, missing=frozenset(missing), told=told or Told())


def test_the_words() -> None:
    given = elsewhere(Part.MEMORY, Part.STEPS)
    assert untold(given, Part.MEMORY) == "not told by TGI"
    assert untold(given, Part.MEMORY, Part.STEPS) == "not told by TGI"
    assert untold(given, Part.MEMORY, Part.KV_USAGE) == ""  # one of them is told
    assert untold(snapshot(1.0), Part.MEMORY) == ""
    assert untold_text(given, "Steps", Part.STEPS, instead="Look.") == (
        "Steps: not told by TGI. Look."
    )
    assert untold_text(given, "Blocks", Part.BLOCKS) == ""
    for unknown in ("", Dialect.OPENAI):
        assert untold(elsewhere(Part.MEMORY, by=unknown), Part.MEMORY) == "not told by this server"


def test_what_an_engine_before_told_does_not_go_on(qtbot: QtBot) -> None:
    charts = LiveCharts()
    qtbot.addWidget(charts)
    charts.update_snapshot(snapshot(9.0))
    weights = charts.memory.data.history["weights"]
    usage = charts.cache.data.history["kv_usage"]
    assert weights.last() is not None and not math.isnan(weights.values[-1])
    for _ in range(2):
        charts.update_snapshot(elsewhere(Part.MEMORY, Part.KV_USAGE))
    assert math.isnan(weights.values[-1]) and math.isnan(usage.values[-1])
    assert len(weights.values) == len(usage.values) == 2  # said once
    charts.show()
    qtbot.waitUntil(lambda: not charts.grab().isNull())  # a gap can be drawn


def test_the_strip_shows_no_zeros_for_what_is_not_told() -> None:
    figures = StatFigures()
    figures.update(elsewhere(Part.KV_USAGE, Part.PREFIX_CACHE, Part.MEMORY))
    values = figures.values(10.0)
    for key in ("kv", "hits", "memory"):
        assert (values[key].text, values[key].why_not) == ("–", "not told by TGI")
        assert key not in figures._numbers(elsewhere(Part.KV_USAGE, Part.PREFIX_CACHE, Part.MEMORY))
    assert values["output"].why_not == ""


def test_the_state_is_what_the_server_tells() -> None:
    assert state_words(elsewhere(told=Told(3, 2)))[0] == "3 running · 2 waiting"
    assert state_words(elsewhere(told=Told(0, 0))) == ("Ready", "idle")


@pytest.mark.parametrize(
    ("missing", "chart", "note"),
    [
        ((Part.MEMORY,), "memory", "not told by TGI"),
        ((Part.KV_USAGE, Part.PREFIX_CACHE), "cache", "not told by TGI"),
        ((Part.KV_USAGE,), "cache", "used: not told by TGI"),
        ((Part.PREFIX_CACHE,), "cache", "prefix hits: not told by TGI"),
        ((Part.QUEUE,), "requests", "our own; others not told by TGI"),
        ((Part.TOKENS,), "tokens", "our own; others not told by TGI"),
    ],
)
def test_charts_say_it_in_their_headings(
    qtbot: QtBot, missing: tuple[Part, ...], chart: str, note: str
) -> None:
    charts = LiveCharts()
    qtbot.addWidget(charts)
    charts.update_snapshot(elsewhere(*missing))
    shown = getattr(charts, chart)
    assert shown.note == note
    assert note in shown.empty_text
    charts.update_snapshot(dataclasses.replace(snapshot(20.0)))  # an engine of ours again
    assert "not told" not in shown.note
    assert "not told" not in shown.empty_text


def test_a_request_elsewhere_has_no_blocks_to_count() -> None:
    model = RequestModel()
    (running,) = snapshot(1.0, num_running=1).requests
    request = dataclasses.replace(running, num_blocks=-1, num_preemptions=-1)
    model.update((request,))
    record = model.records[0]
    assert (record.num_blocks, record.num_preemptions) == (None, None)
    assert model.index(0, 5).data() == NOTHING
