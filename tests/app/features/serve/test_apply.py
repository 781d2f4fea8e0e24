"""Settings of an engine that runs: applied beside it, or after it; and when they fail."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State as ReplyState
from app.features.serve import beside
from app.features.serve.launch_panel import APPLY, RUNNING
from app.features.serve.page import ServerPage
from app.main.application import Application
from app.managed.launch import Launch
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

__all__ = ["application", "launch", "page", "ring", "script"]


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one engine only."""
    monkeypatch.setattr(beside, "has_room_beside", lambda pid: False)


CHANGE = "max-num-seqs default → 8"
"""How the charts name it."""


def change(page: ServerPage) -> None:
    """A setting, in the form."""
    panel = page.connections.launches
    assert (panel.start.text(), panel.start.isEnabled()) == (RUNNING, False)
    panel.form.flags.values["--max-num-seqs"] = "8"
    panel.form.flags.changed.emit()
    assert panel.start.text() == APPLY
    panel.start.click()


def test_apply_starts_the_new_one_beside_the_old(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    first, address = engine_of(page, known), page.store.find(known)
    assert address is not None
    change(page)
    qtbot.waitUntil(lambda: page.engines.text(known)[0].startswith("New settings"), timeout=WAIT_MS)
    assert first.is_running() and page.engines.is_ready(known) and page.switch.used_id == known
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    assert page.engines.is_ready(known) and page.switch.used_id == known
    assert "--max-num-seqs=8" in engine_of(page, known).cmdline()
    connection = page.store.find(known)
    assert connection is not None and connection.base_url != address.base_url
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    assert application.charts.marks.marks[-1].text == CHANGE
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    engine_of(page, known).kill()  # watched as the first one was
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)


@pytest.mark.slow
def test_apply_restarts_at_the_same_address_where_memory_is_short(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch, no_room: None
) -> None:
    known = run(qtbot, page, launch)
    first, address = engine_of(page, known), page.store.find(known)
    change(page)
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    assert "--max-num-seqs=8" in engine_of(page, known).cmdline()
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.store.find(known) == address
    marks = application.charts.marks
    qtbot.waitUntil(lambda: [one.text for one in marks.marks] == [CHANGE], timeout=WAIT_MS)


@pytest.mark.slow
def test_settings_that_fail_beside_leave_the_old_one_as_it_was(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"}))
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    notice = application.notices.notice(key)
    assert notice is not None and "nobodys" in notice.cause
    assert [name for name, _ in notice.actions] == ["Show log", "Edit"]
    assert any("nobodys" in line for line in page.engines.lines(known))
    assert first.is_running() and page.engines.is_ready(known) and page.switch.used_id == known
    assert page.store.launch(known) == launch


@pytest.mark.slow
def test_a_start_beside_ends_with_its_engine(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_STEP": "30"}))
    qtbot.waitUntil(lambda: known in page.engines._beside._new, timeout=WAIT_MS)
    new = page.engines._beside._new[known]
    page.engines.stop(known)
    qtbot.waitUntil(lambda: not new.status.is_running, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)


@pytest.mark.slow
def test_one_that_is_ready_beside_is_used_once(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    """However many moves are delivered when it is ready already: while requests drain, too."""
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_STEP": "0.1"}))
    qtbot.waitUntil(lambda: known in page.engines._beside._new, timeout=WAIT_MS)
    beside_it, ready = page.engines._beside, list[str]()
    new = beside_it._new[known]
    beside_it.ready.connect(ready.append)
    beside_it.ready.connect(lambda: [beside_it._moved.emit(known, [new]) for _ in range(3)])
    qtbot.waitUntil(lambda: page.engines._processes[known] is new, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    assert ready == [known]


def test_settings_that_fail_offer_those_of_before(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch, no_room: None
) -> None:
    known = run(qtbot, page, launch)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"}))
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    notice = application.notices.notice(key)
    assert notice is not None
    dict(notice.actions)["Use previous settings"]()
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    assert page.store.launch(known) == launch
