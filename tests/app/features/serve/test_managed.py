"""The life of engines that the window runs, with the scripted vLLM as a real process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.clients.target import ServerType
from app.features.chat.conversation import State as ReplyState
from app.features.serve.launch_panel import START
from app.features.serve.managed import ManagedEngines
from app.features.serve.managed_card import ManagedCard
from app.features.serve.page import OTHERS, ServerPage
from app.features.serve.switch import use_id
from app.main.application import Application
from app.main.engine_status import LOADED
from app.managed.command import is_taken
from app.managed.launch import Launch, Place
from app.managed.process import State
from tests.app.clients.test_traces import double, send, spans, text
from tests.app.features.serve.managed_fixtures import (
    WAIT_MS,
    application,
    engine_of,
    launch,
    page,
    ring,
    run,
    script,
)
from tests.app.window_fixtures import reply
from tests.tiers import first_fast

__all__ = ["application", "launch", "page", "ring", "script"]


def test_a_started_engine_is_used_and_ends_with_stop(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    assert reply(application).text == "word0 word1 word2 word3 word4 "
    connection, card = page.store.find(known), page.cards.cards[known]
    assert connection is not None and isinstance(card, ManagedCard)
    assert page.switch.is_elsewhere and connection.server_type is ServerType.VLLM
    assert not card.use.isEnabled() and card.stop.isEnabled()
    settings = application.engine_settings
    assert not settings.edit.isHidden()
    settings.edit.click()
    assert page.tabs.currentIndex() == OTHERS and page.connections.launches._chosen == known
    page.cards.show_log(known)
    view = page.cards.log.view
    qtbot.waitUntil(lambda: "Application startup complete." in view.toPlainText())
    port = int(connection.base_url.rpartition(":")[2])
    card.stop.click()
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)
    assert page.engines.status(known).error is None and not is_taken(port)
    qtbot.waitUntil(lambda: not page.switch.is_elsewhere)
    qtbot.waitUntil(lambda: not card.stop.isEnabled())  # from another thread
    assert not card.use.isEnabled()


@pytest.mark.slow
def test_a_traced_engine_reports_the_queue_and_the_prefill_of_a_reply(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, replace(launch, traces=True))
    connection = page.store.find(known)
    assert connection is not None
    port = page.store.target(connection).traces_port
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    before = reply(application).figures
    assert before is not None and before.ttft_ms is not None and before.queue_ms is None
    prefill_ms = before.ttft_ms / 4
    send(port, spans(text("c"), double(prefill_ms / 1e3)))
    qtbot.waitUntil(lambda: reply(application).figures != before, timeout=WAIT_MS)
    after = reply(application).figures
    assert after is not None and after.prefill_ms == pytest.approx(prefill_ms)
    generation = application.pages.chat.generation
    qtbot.waitUntil(lambda: not generation._causes._replies, timeout=WAIT_MS)
    record = generation.record_of(reply(application).id)
    assert record is not None and record.times.queue_s == pytest.approx(3 * prefill_ms / 1e3)


@pytest.mark.slow
def test_the_command_of_a_stopped_engine_starts_it_and_uses_it(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = page.engines.add("vLLM", launch).id
    application.window.commands.run(use_id(known))
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.engines.is_ready(known)
    qtbot.waitUntil(lambda: application.notices.keys == [LOADED], timeout=WAIT_MS)


@pytest.mark.slow
def test_an_engine_that_starts_is_used_once_it_is_ready(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    connection = page.engines.add("vLLM", launch)
    page.engines.run(connection.id)
    page.engines.use(connection)
    qtbot.waitUntil(lambda: page.switch.used_id == connection.id, timeout=WAIT_MS)


@pytest.mark.parametrize("start_again", first_fast(1, ["start", "apply", "restart"]))
def test_an_engine_that_stops_is_started_again_once_it_has_ended(
    qtbot: QtBot, page: ServerPage, launch: Launch, start_again: str
) -> None:
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.stop(known)
    assert page.engines.status(known).state is State.STOPPING
    what = (known, launch) if start_again == "apply" else (known,)
    getattr(page.engines, start_again)(*what)
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert not first.is_running() and engine_of(page, known).is_running()


def test_a_killed_engine_is_said_within_5_s_and_restarts_at_its_address(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    before = page.store.find(known)
    engine_of(page, known).kill()
    began, key = time.monotonic(), f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    assert time.monotonic() - began < 5.0
    notice = application.notices.notice(key)
    assert notice is not None and "SIGKILL" in notice.cause
    actions = dict(notice.actions)
    assert list(actions) == ["Restart", "Show log", "Edit"]
    actions["Restart"]()
    assert application.notices.notice(key) is None
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.store.find(known) == before


@pytest.mark.slow
def test_the_engine_of_before_stays_where_a_start_fails(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    wrong = replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"})
    known = page.engines.add("wrong", wrong).id
    page.engines.start(known)
    qtbot.waitUntil(lambda: page.engines.status(known).error is not None, timeout=WAIT_MS)
    assert not page.switch.is_elsewhere
    text, kind = page.engines.text(known)
    assert kind == "error"
    qtbot.waitUntil(lambda: page.cards.cards[known].state.text() == text)  # from another thread


def test_what_cannot_be_started_is_said(
    qtbot: QtBot, page: ServerPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    known = page.engines.add("box", Launch(place=Place.CONTAINER, image="x", model="m")).id
    page.engines.start(known)
    status = page.engines.status(known)
    assert status.state is State.ENDED and status.error is not None
    assert "docker" in status.error.cause


@pytest.mark.slow
def test_a_deleted_engine_stops_and_undo_brings_its_settings_back(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    page.connections.choose(known)
    page.connections.delete()
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)
    page.toast.act()
    assert page.store.launch(known) == launch and known in page.cards.cards
    assert page.connections.launches.start.text() == START


def test_one_that_stays_is_there_in_the_next_window(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, replace(launch, stays=True))
    engine = engine_of(page, known)
    page.engines.close_down()
    assert engine.is_running()
    again = ManagedEngines(page.store, page.switch, page)
    qtbot.waitUntil(lambda: again.is_ready(known), timeout=WAIT_MS)
    again.stop(known)
    qtbot.waitUntil(lambda: not again.is_running(known), timeout=WAIT_MS)
    assert not engine.is_running()
