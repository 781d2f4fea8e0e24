"""The window turns to engines elsewhere and back, with its chats."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

from app.clients.connection import Connection, new_connection
from app.clients.look import NOT_TOLD
from app.clients.target import LinkState, ServerType
from app.features.chat.conversation import State
from app.features.serve.controller import PAUSED
from app.features.serve.page import OTHERS, ServerPage
from app.features.serve.switch import OWN
from app.main.application import Application
from app.main.engine_status import LOADED
from engine.messages import AddRequest
from tests.app.clients.conftest import ScriptedServer, chat_chunk, server
from tests.app.fakes import Script
from tests.app.features.serve.conftest import KEY, Elsewhere, MemoryKeyring
from tests.app.window_fixtures import application, open_model, script, send, wait_idle

__all__ = ["application", "script", "server"]
WAIT_MS = 20_000
CHAT = "/v1/chat/completions"


@pytest.fixture
def page(application: Application, ring: MemoryKeyring) -> ServerPage:
    page = application.pages.server
    page.show_tab(OTHERS)
    return page


def keep(page: ServerPage, elsewhere: Elsewhere, name: str = "lab") -> Connection:
    made = replace(new_connection(name, elsewhere.url), server_type=ServerType.INFERDECK)
    page.store.keep(made, KEY)
    return made


def wait_for_model(qtbot: QtBot, application: Application, name: str) -> None:
    bridge = application.bridge
    qtbot.waitUntil(
        lambda: bridge.is_ready and bridge.model is not None and bridge.model.name == name,
        timeout=WAIT_MS,
    )


def _check_title(application: Application, model: str, place: str) -> None:
    shown, _, program = application.window.windowTitle().rpartition(" – ")
    assert shown.startswith(model) and shown.endswith(place) and program == "Inferdeck"


def test_there_and_back_with_a_chat_open(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    open_model(qtbot, application)
    send(qtbot, application, "hello")
    wait_idle(qtbot, application)
    chat = application.pages.chat
    first = chat.current.path()[-1]
    assert first.figures is not None and first.figures.model == "tiny"

    keep(page, elsewhere)
    page.cards.cards[page.store.connections[0].id].use.click()
    wait_for_model(qtbot, application, "far")
    assert page.switch.current is not None and page.switch.current.name == "lab"
    _check_title(application, "far", "lab")
    qtbot.waitUntil(
        lambda: application.strip.title.startswith("lab  ·  far"), timeout=WAIT_MS
    )
    assert application.notices.keys == [LOADED]
    loaded = application.notices.notice(LOADED)
    assert loaded is not None and "lab" in loaded.cause and "far" in loaded.cause
    assert "auto" not in loaded.remedy and "  " not in f"{loaded.cause} {loaded.remedy}"
    assert not page.cards.local.use.isHidden() and page.cards.local.use.isEnabled()
    assert not page.cards.cards[page.store.connections[0].id].mark.isHidden()

    application.pages.chat_page.send("and there?")
    qtbot.waitUntil(lambda: chat.current.path()[-1].state is State.COMPLETE, timeout=WAIT_MS)
    second = chat.current.path()[-1]
    assert second.text and second.figures is not None and second.figures.model == "far"
    assert chat.current.path()[1] is first and first.text

    page.cards.local.use.click()
    wait_for_model(qtbot, application, "tiny")
    assert page.switch.current is None
    assert application.window.windowTitle() == "tiny – Inferdeck"
    assert application.strip.title.startswith("tiny")
    application.pages.chat_page.send("and here again?")
    qtbot.waitUntil(lambda: chat.current.path()[-1].state is State.COMPLETE, timeout=WAIT_MS)
    third = chat.current.path()[-1]
    assert third.figures is not None and third.figures.model == "tiny"
    assert len(chat.current.path()) == 6


def test_the_windows_server_stops_for_a_remote_engine_and_starts_again_after_it(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    from tests.app.features.serve.test_page import free_port, start

    open_model(qtbot, application)
    page.panel.form.port.setValue(free_port())
    start(qtbot, page)
    page.switch.use(keep(page, elsewhere))
    wait_for_model(qtbot, application, "far")
    qtbot.waitUntil(lambda: page.serving.can_start, timeout=WAIT_MS)
    assert page.serving.problem == PAUSED
    port = page.serving.choice.port
    page.panel.toggle()
    assert page.serving.can_start and page.serving.problem == PAUSED
    page.switch.back()
    wait_for_model(qtbot, application, "tiny")
    qtbot.waitUntil(lambda: page.serving.is_on, timeout=WAIT_MS)
    assert page.serving.choice.port == port and page.serving.problem is None


def test_a_client_in_flight_is_told_when_the_window_turns_away(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere, script: Script
) -> None:
    from app.server.errors import ApiError
    from tests.app.features.serve.test_page import free_port, start

    script.step_s, script.replies = 0.05, 2000
    open_model(qtbot, application)
    page.panel.form.port.setValue(free_port())
    start(qtbot, page)
    engine_client = page.serving._engine_client
    loop = engine_client._loop
    assert loop is not None
    ended: list[object] = []

    async def ask() -> None:
        flight = engine_client.send([AddRequest("cmpl-" + "b" * 24, (1, 2, 3))], 8)
        try:
            await flight.take_whole()
        except ApiError as error:
            ended.append((error.status, error.message))

    asyncio.run_coroutine_threadsafe(ask(), loop)
    qtbot.waitUntil(lambda: page.serving.figures.running == 1, timeout=WAIT_MS)
    page.switch.use(keep(page, elsewhere))
    qtbot.waitUntil(lambda: bool(ended), timeout=WAIT_MS)
    assert [status for status, _ in ended] == [503]
    wait_for_model(qtbot, application, "far")
    qtbot.waitUntil(lambda: page.serving.can_start, timeout=WAIT_MS)


def test_a_wrong_key_says_so_and_the_engine_of_before_goes_on(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    open_model(qtbot, application)
    made = keep(page, elsewhere)
    page.store.keep(made, "wrong")
    page.switch.use(made)
    notices = application.notices
    qtbot.waitUntil(lambda: notices.notice("elsewhere") is not None, timeout=WAIT_MS)
    notice = notices.notice("elsewhere")
    assert notice is not None and notice.kind == "error" and "key" in notice.cause
    assert application.bridge.is_ready and not application.bridge.is_remote
    notice.actions[0][1]()
    assert page.connections.chosen == made
    page.connections.form.key.setText(KEY)
    page.connections.form.edited.emit()
    page.connections.form.save.click()
    page.switch.use(made)
    wait_for_model(qtbot, application, "far")


@pytest.mark.slow
def test_whoever_leaves_it_finds_the_model_of_before(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    open_model(qtbot, application)
    page.switch.use(keep(page, elsewhere))
    wait_for_model(qtbot, application, "far")
    application.bridge.detach()  # as the notice of a line that was cut offers
    wait_for_model(qtbot, application, "tiny")
    assert page.switch.current is None and "elsewhere" not in application.notices.keys
    page.switch.use(page.store.connections[0])
    wait_for_model(qtbot, application, "far")
    open_model(qtbot, application, "/models/other")  # and another one where that is opened
    wait_for_model(qtbot, application, "other")


@pytest.mark.slow
def test_each_connection_is_a_command(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    registry = application.window.commands
    made = keep(page, elsewhere)
    command = f"engine.use.{made.id}"
    assert registry.command(command).text.endswith(" lab")
    page.store.keep(replace(made, name="lab & co"))
    assert registry.command(command).text.endswith(" lab && co")
    registry.run(command)
    wait_for_model(qtbot, application, "far")
    assert registry.action(command).isChecked()
    registry.run("engine.here")
    qtbot.waitUntil(lambda: not application.bridge.is_remote, timeout=WAIT_MS)
    page.store.delete(made.id)
    assert command not in registry
    registry.run("engine.attach")
    assert application.window.page.name == "Server" and page.connections.chosen is None


@pytest.mark.slow
def test_the_windows_own_server_is_refused(
    qtbot: QtBot, application: Application, page: ServerPage
) -> None:
    from tests.app.features.serve.test_page import free_port, start

    open_model(qtbot, application)
    port = free_port()
    page.panel.form.port.setValue(port)
    start(qtbot, page)
    page.switch.use(new_connection("me", f"localhost:{port}/v1"))
    notice = application.notices.notice("elsewhere")
    assert notice is not None and OWN.cause in notice.cause
    assert not application.bridge.is_remote and page.serving.is_on


@pytest.mark.slow
def test_a_server_of_another_make_that_stops_in_mid_reply(
    qtbot: QtBot, application: Application, page: ServerPage, server: ScriptedServer
) -> None:
    server.models("someone", "their model")
    server.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk("so far"))
    made = new_connection("their box", f"http://{server.host}/v1")
    page.store.keep(made, "")
    card = page.cards.cards[made.id]
    qtbot.waitUntil(
        lambda: page.store.connections[0].server_type is ServerType.OPENAI, timeout=WAIT_MS
    )
    card = page.cards.cards[made.id]
    qtbot.waitUntil(lambda: card.watcher.state is LinkState.LIVE, timeout=WAIT_MS)
    assert card.figures.value("running") == NOT_TOLD and "metrics" in card.state.text()
    card.use.click()
    wait_for_model(qtbot, application, "their model")
    _check_title(application, "their model", "their box")
    chat = application.pages.chat
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(
        lambda: bool(chat.current.path()) and chat.current.path()[-1].state is State.ERROR,
        timeout=WAIT_MS,
    )
    reply = chat.current.path()[-1]
    assert reply.text == "so far"
    server.answers[CHAT] = lambda exchange: exchange.stream(
        chat_chunk("all "), chat_chunk("of it", "stop"), "[DONE]"
    )
    chat.regenerate()
    qtbot.waitUntil(lambda: chat.current.path()[-1].state is State.COMPLETE, timeout=WAIT_MS)
    said = chat.current.path()[-1]
    assert said.text == "all of it" and said.figures is not None
    assert said.figures.model == "their model"
    page.switch.back()
    qtbot.waitUntil(lambda: not application.bridge.is_remote, timeout=WAIT_MS)
    assert chat.current.path()[-1].text == "all of it"


@pytest.mark.slow
def test_a_connection_named_after_its_address_is_named_once(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    for name in ("lab", elsewhere.url.removeprefix("http://")):
        application.notices.dismiss(LOADED)  # of the one before
        page.switch.use(keep(page, elsewhere, name))
        qtbot.waitUntil(lambda: LOADED in application.notices.keys, timeout=WAIT_MS)
        notice = application.notices.notice(LOADED)
        assert notice is not None and notice.cause.count(name) == 1
