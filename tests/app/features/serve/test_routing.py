"""A router that the window runs: its form, its replicas, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.clients.connection import new_connection
from app.clients.router import Replica
from app.clients.target import ServerType
from app.features.chat.conversation import State as ReplyState
from app.features.serve import connections
from app.features.serve.page import OTHERS, ServerPage
from app.features.serve.routing import RoutingRows
from app.main.application import Application
from app.managed.launch import Launch
from app.managed.process import State
from tests.app.clients.conftest import ScriptedServer, chat_chunk, served, usage
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.managed.conftest import make_environment
from tests.app.window_fixtures import application, reply, script
from tests.tiers import first_fast

__all__ = ["application", "ring", "script"]
WAIT_MS = 30_000
CHAT = "/v1/chat/completions"


@pytest.fixture
def replicas() -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        made = [stack.enter_context(served()).replica() for _ in range(2)]
        for one in made:
            one.answers[CHAT] = lambda exchange: exchange.stream(
                chat_chunk("word "), chat_chunk(finish="stop", usage=usage(12, 1)), "[DONE]"
            )
        yield made


@pytest.fixture
def page(
    application: Application, ring: MemoryKeyring, replicas: list[ScriptedServer],
    monkeypatch: pytest.MonkeyPatch,
) -> ServerPage:  # fmt: skip
    monkeypatch.setattr(connections, "POLL_MS", 100)
    page = application.pages.server
    application.window.show_widget(page)
    page.show_tab(OTHERS)
    for number, one in enumerate(replicas, 1):
        page.store.keep(new_connection(f"Replica {number}", one.target.base_url))
    return page


@pytest.fixture
def python(tmp_path: Path) -> str:
    return str(make_environment(tmp_path / "venv"))


def fill(page: ServerPage, python: str, num_chosen: int = 2) -> None:
    """The form of a router with this many replicas."""
    page.run_with()
    panel = page.connections.launches
    panel.show_engine("", Launch(kind=ServerType.ROUTER, interpreter=python))
    for row in range(num_chosen):
        panel.form.servers.item(row).setCheckState(Qt.CheckState.Checked)


def run(qtbot: QtBot, page: ServerPage, python: str) -> str:
    """Start a router from its form; its connection id."""
    fill(page, python)
    panel = page.connections.launches
    with qtbot.waitSignal(panel.started) as started:
        panel.start.click()
    known: str = started.args[0]
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    return known


def rows_of(page: ServerPage, known: str) -> list[tuple[str, ...]]:
    rows = page.cards.cards[known].findChild(RoutingRows)
    return rows.texts if rows is not None else []


def test_a_router_is_run_and_used_as_any_server(
    qtbot: QtBot, page: ServerPage, application: Application, python: str
) -> None:
    known = run(qtbot, page, python)
    connection, launch = page.store.find(known), page.store.launch(known)
    assert connection is not None and connection.server_type is ServerType.ROUTER
    assert launch is not None and len(launch.replicas) == 2
    assert connection.name not in {one.name for one in page.store.beside(known)}
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    assert reply(application).text == "word "
    qtbot.waitUntil(lambda: len(rows_of(page, known)) == 2, timeout=WAIT_MS)
    assert sorted(row[0] for row in rows_of(page, known)) == ["Replica 1", "Replica 2"]
    assert {row[1] for row in rows_of(page, known)} == {"healthy"}
    # the router itself is no replica to choose
    form = page.connections.launches.form
    assert form.servers.count() == 2 and len(form.chosen_servers) == 2


def test_a_replica_that_is_away_is_said_until_it_is_back(
    qtbot: QtBot, page: ServerPage, application: Application, python: str,
    replicas: list[ScriptedServer],
) -> None:  # fmt: skip
    known = run(qtbot, page, python)
    key = f"replicas-{known}"
    assert application.notices.notice(key) is None
    application.window.show_widget(application.pages.chat_page)  # wherever the user is
    del replicas[0].answers["/health"]
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    notice = application.notices.notice(key)
    assert notice is not None and notice.kind == "warning" and "Replica 1" in notice.cause
    states = {row[0]: row[1] for row in rows_of(page, known)}
    assert states == {"Replica 1": "no response", "Replica 2": "healthy"}
    del replicas[1].answers["/health"]
    is_error = lambda: getattr(application.notices.notice(key), "kind", "") == "error"
    qtbot.waitUntil(is_error, timeout=WAIT_MS)
    for one in replicas:
        one.answers["/health"] = ""
    qtbot.waitUntil(lambda: application.notices.notice(key) is None, timeout=WAIT_MS)


@pytest.mark.slow
def test_a_stopped_router_says_nothing_of_its_replicas(
    qtbot: QtBot, page: ServerPage, application: Application, python: str,
    replicas: list[ScriptedServer],
) -> None:  # fmt: skip
    known = run(qtbot, page, python)
    del replicas[0].answers["/health"]
    key = f"replicas-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    page.engines.stop(known)
    qtbot.waitUntil(lambda: application.notices.notice(key) is None, timeout=WAIT_MS)


@pytest.mark.parametrize("models", first_fast(1, [(("m", "other"),), ((),)]))
def test_replicas_that_cannot_be_are_said_and_nothing_is_started(
    qtbot: QtBot, page: ServerPage, application: Application, python: str,
    replicas: list[ScriptedServer], models: tuple[str, ...],
) -> None:  # fmt: skip
    for one in replicas:
        one.answers.clear()
    for one, model in zip(replicas, models, strict=False):
        one.replica(model)
    fill(page, python)
    page.connections.launches.start.click()
    known = page.store.connections[-1].id
    qtbot.waitUntil(lambda: page.engines.status(known).error is not None, timeout=WAIT_MS)
    assert not page.engines.is_running(known) and not page.switch.is_elsewhere
    notice = application.notices.notice(f"managed-{known}")
    assert notice is not None and "Replica 2" in notice.cause


@pytest.mark.slow
def test_one_replica_is_not_enough(page: ServerPage, python: str) -> None:
    fill(page, python, 1)
    panel = page.connections.launches
    panel.start.click()
    assert panel.form._servers.has_problem and len(page.store.connections) == 2


@pytest.mark.slow
def test_a_start_can_be_stopped_while_replicas_are_checked(
    qtbot: QtBot, page: ServerPage, python: str
) -> None:
    fill(page, python)
    page.connections.launches.start.click()
    known = page.store.connections[-1].id
    assert page.engines.status(known).state is State.STARTING
    page.engines.stop(known)
    assert not page.engines.is_running(known)


@pytest.mark.slow
def test_a_router_has_the_key_of_its_replicas(
    qtbot: QtBot, page: ServerPage, python: str, replicas: list[ScriptedServer]
) -> None:
    for one in page.store.connections:
        page.store.keep(one, "sk-shared")
    known = run(qtbot, page, python)
    connection = page.store.find(known)
    assert connection is not None and page.store.key(connection) == "sk-shared"


@pytest.mark.slow
def test_settings_applied_while_replicas_are_checked_count(
    qtbot: QtBot, page: ServerPage, python: str
) -> None:
    fill(page, python)
    panel = page.connections.launches
    panel.start.click()
    known = page.store.connections[-1].id
    launch = page.store.launch(known)
    assert launch is not None
    page.engines.apply(known, replace(launch, settings={"--policy": "round_robin"}))
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    words = page.engines._processes[known].launch.settings
    assert words == {"--policy": "round_robin"}


@pytest.mark.slow
def test_a_router_follows_a_replica_to_its_new_address(page: ServerPage) -> None:
    urls = tuple(one.base_url for one in page.store.connections)
    known = page.engines.add("router", Launch(kind=ServerType.ROUTER, replicas=urls)).id
    page.store.update(page.store.connections[0].id, base_url="http://127.0.0.1:9")
    launch = page.store.launch(known)
    assert launch is not None and launch.replicas == ("http://127.0.0.1:9", urls[1])
    page.connections.choose(known)
    assert page.connections.launches.form.launch.replicas == launch.replicas


def test_what_is_not_reported_is_not_zero(qtbot: QtBot) -> None:
    rows = RoutingRows(lambda url: url)
    qtbot.addWidget(rows)
    rows.show_replicas([
        Replica("a", True, 3, 12, True, 0.5), Replica("b", True, 1, 12, False, float("nan")),
        Replica("c", False),
    ])  # fmt: skip
    assert rows.texts == [
        ("a", "healthy", "3", "12", "50 %"), ("b", "retrying soon", "1", "12", "–"),
        ("c", "no response", "0", "not reported", "not reported"),
    ]  # fmt: skip
    rows.show_replicas([Replica("a", True)])
    assert len(rows.texts) == 1
    rows.show_replicas([])
    assert rows.isHidden()
