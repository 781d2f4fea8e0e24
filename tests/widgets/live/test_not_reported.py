"""Views of an engine that does not report everything."""

from __future__ import annotations

import dataclasses
import math

import pytest
from pytestqt.qtbot import QtBot

from app.clients.target import ServerType
from engine.snapshot import EngineSnapshot, Part, ReportedLoad
from tests.widgets.synthetic import snapshot
from widgets.controls.text import not_reported, not_reported_text, server_name
from widgets.live.charts import LiveCharts
from widgets.live.figures import header_values, state_text
from widgets.live.metric_store import MetricStore
from widgets.requests.model import NOTHING, RequestModel

NO_LOAD = ReportedLoad()


def elsewhere(*missing: Part, reported: ReportedLoad = NO_LOAD, by: str = "TGI") -> EngineSnapshot:
    given = snapshot(10.0)
    model = dataclasses.replace(given.model, device=by)
    return dataclasses.replace(given, model=model, missing=frozenset(missing), told=reported)


def test_a_text_names_who_does_not_report() -> None:
    given = elsewhere(Part.MEMORY, Part.STEPS)
    assert "TGI" in not_reported(given, Part.MEMORY) == not_reported(given, Part.MEMORY, Part.STEPS)
    assert not_reported(given, Part.MEMORY, Part.KV_USAGE) == ""  # one of them is reported
    assert not_reported(snapshot(1.0), Part.MEMORY) == ""
    shown = not_reported_text(given, "Steps", Part.STEPS, instead="Look.")
    assert shown == f"Steps: {not_reported(given, Part.STEPS)}. Look."
    assert not_reported_text(given, "Blocks", Part.BLOCKS) == ""
    for unknown in ("", ServerType.OPENAI):
        assert server_name(unknown) in not_reported(elsewhere(Part.MEMORY, by=unknown), Part.MEMORY)


def test_lines_of_the_previous_engine_end(qtbot: QtBot) -> None:
    charts = LiveCharts(MetricStore())
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


def test_the_strip_shows_no_zeros_for_what_is_not_reported() -> None:
    store = MetricStore()
    given = elsewhere(Part.KV_USAGE, Part.PREFIX_CACHE, Part.MEMORY)
    store.update(given)
    values = header_values(store, 10.0)
    for key in ("kv", "hits", "memory"):
        assert values[key].text == NOTHING and "TGI" in values[key].why_not
    assert values["output"].why_not == ""


def test_the_state_is_what_the_server_reports() -> None:
    assert state_text(elsewhere(reported=ReportedLoad(3, 2)))[0] == "3 running · 2 waiting"
    assert state_text(elsewhere(reported=ReportedLoad(0, 0))) == ("Ready", "idle")


@pytest.mark.parametrize(
    ("missing", "chart"),
    [
        ((Part.MEMORY,), "memory"),
        ((Part.KV_USAGE, Part.PREFIX_CACHE), "cache"),
        ((Part.KV_USAGE,), "cache"),
        ((Part.PREFIX_CACHE,), "cache"),
        ((Part.QUEUE,), "requests"),
        ((Part.TOKENS,), "tokens"),
    ],
)
def test_charts_note_what_is_not_reported(
    qtbot: QtBot, missing: tuple[Part, ...], chart: str
) -> None:
    charts = LiveCharts(MetricStore())
    qtbot.addWidget(charts)
    given = elsewhere(*missing)
    charts.update_snapshot(given)
    shown, note = getattr(charts, chart), not_reported(given, *missing)
    assert note in shown.note and shown.note in shown.empty_text
    charts.update_snapshot(dataclasses.replace(snapshot(20.0)))  # an engine of ours again
    assert note not in shown.note + shown.empty_text


def test_a_request_elsewhere_has_no_blocks_to_count() -> None:
    model = RequestModel()
    (running,) = snapshot(1.0, num_running=1).requests
    request = dataclasses.replace(running, num_blocks=-1, num_preemptions=-1)
    model.update((request,))
    record = model.records[0]
    assert (record.num_blocks, record.num_preemptions) == (None, None)
    assert model.index(0, 5).data() == NOTHING
