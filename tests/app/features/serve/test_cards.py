"""The card of the engine in use shows the header's figures, as new and as old as these."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

from app.clients.connection import new_connection
from app.clients.target import ServerType
from app.features.serve.connections import POLL_MS, Watcher
from app.features.serve.engine_cards import ConnectionCard, EngineCard, LocalCard
from tests.app.fake_engine import FakeEngine
from tests.figures import numbers
from tests.widgets.synthetic import snapshot
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip

OURS = ServerType.INFERDECK


@pytest.fixture
def strip(qtbot: QtBot) -> StatStrip:
    made = StatStrip(MetricStore())
    qtbot.addWidget(made)
    made.resize(1280, made.sizeHint().height())
    made.show()
    return made


def local(strip: StatStrip) -> LocalCard:
    return LocalCard(FakeEngine(), strip.store, strip.clock)  # type: ignore[arg-type]


def remote(strip: StatStrip) -> ConnectionCard:
    connection = replace(new_connection("far", "http://127.0.0.1:9/v1"), server_type=OURS)
    made = ConnectionCard(Watcher(connection, ""), strip.store, strip.clock)
    made.set_in_use(True, "")
    return made


@pytest.fixture(params=[local, remote])
def card(qtbot: QtBot, strip: StatStrip, request: pytest.FixtureRequest) -> Iterator[EngineCard]:
    made = request.param(strip)
    qtbot.addWidget(made)
    made.show()
    yield made
    made.hide()


def test_header_and_card_show_the_same_snapshot(
    qtbot: QtBot, strip: StatStrip, card: EngineCard
) -> None:
    clock, began, seen = strip.clock, time.perf_counter() - 10, set()
    for turn, used in enumerate((115, 230, 346, 461, 576)):
        one = snapshot(began + turn / 3, num_running=1, num_used=used)
        strip.store.update(one)
        strip.update_snapshot(one)
        if turn % 2:
            continue  # the next comes before the beat
        qtbot.waitUntil(lambda: not clock._beat.isActive() and not clock._rest.isActive())
        shown = card.figures.value("kv")
        assert numbers(shown) == numbers(strip._values["kv"].text)
        seen.add(shown)
    assert [numbers(text) for text in sorted(seen)] == [[10], [30], [50]]


def test_a_card_asks_for_no_redraw_once_nothing_changes(strip: StatStrip, card: EngineCard) -> None:
    strip.store.update(snapshot(time.perf_counter(), num_used=115))
    assert card.wants_redraw()
    card.redraw()
    assert not card.wants_redraw() and numbers(card.figures.value("kv")) == [10]
    strip.store.end()
    assert not card.wants_redraw()


def test_the_interval_of_polls_is_the_one_that_is_said(strip: StatStrip) -> None:
    card = remote(strip)
    assert numbers(card.watch.toolTip())[:1] == [POLL_MS / 1000]
