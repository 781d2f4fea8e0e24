"""The Server page over the scripted engine: start, stop, what it says and what it keeps."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.serve.controller import ServingState
from app.features.serve.page import BUTTONS, ServerPage
from app.main.application import Application
from app.wire.codec import History
from engine.messages import AddRequest
from tests.app.fakes import Script
from tests.app.window_fixtures import application, open_model, script, send, wait_idle
from tests.figures import numbers

__all__ = ["application", "script"]
WAIT_MS = 60_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def page(application: Application) -> ServerPage:
    page = application.pages.server
    page.panel.form.port.setValue(free_port())
    application.window.show_widget(page)
    return page


def start(qtbot: QtBot, page: ServerPage) -> str:
    """Serve; the address."""
    for _ in range(5):  # another test may have taken the port meanwhile
        page.panel.toggle()
        qtbot.waitUntil(lambda: page.serving.state is not ServingState.STARTING, timeout=WAIT_MS)
        if page.serving.is_on or "in use" not in page.view.error.text():
            break
        page.panel.form.port.setValue(free_port())
    assert page.serving.is_on, page.view.error.text()
    return page.serving.url


def stop(qtbot: QtBot, page: ServerPage) -> None:
    page.panel.toggle()
    qtbot.waitUntil(lambda: page.serving.state is ServingState.OFF, timeout=WAIT_MS)


class Answer:
    """What a call gave, made in a thread so that the window lives meanwhile."""

    def __init__(self, url: str, body: Any = None, key: str = "") -> None:
        self.status, self.text = 0, ""
        self._request = urllib.request.Request(
            url, json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )  # fmt: skip
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=60) as response:
                self.status, self.text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            self.status, self.text = error.code, error.read().decode()

    @property
    def is_there(self) -> bool:
        return not self.thread.is_alive()


def ask(qtbot: QtBot, url: str, body: Any = None, key: str = "") -> Answer:
    answer = Answer(url, body, key)
    qtbot.waitUntil(lambda: answer.is_there, timeout=WAIT_MS)
    return answer


def test_it_serves_the_engine_of_the_window(
    qtbot: QtBot, application: Application, page: ServerPage
) -> None:
    url = start(qtbot, page)
    early = ask(qtbot, f"{url}/v1/models")
    assert early.status == 503 and "503" in page.view.health.text()
    open_model(qtbot, application)
    qtbot.waitUntil(lambda: "tiny" in page.view.health.text(), timeout=WAIT_MS)
    assert '"id":"tiny"' in ask(qtbot, f"{url}/v1/models").text
    assert ask(qtbot, f"{url}/health").status == 200
    with pytest.raises(urllib.error.URLError):
        stop(qtbot, page)
        urllib.request.urlopen(f"{url}/health", timeout=2)


@pytest.mark.slow
def test_calls_are_listed_newest_first_with_their_errors(
    qtbot: QtBot, application: Application, page: ServerPage
) -> None:
    open_model(qtbot, application)
    page.panel.form.make_key()
    key = page.panel.form.key.text()
    url = start(qtbot, page)
    assert ask(qtbot, f"{url}/v1/models", key=key).status == 200
    assert ask(qtbot, f"{url}/v1/models", key="wrong").status == 401
    model = page.view.model
    qtbot.waitUntil(lambda: model.rowCount() == 1, timeout=WAIT_MS)
    assert model.row_at(0).status == 401  # a poll that fails is no poll
    page.view.hide_polls.click()
    qtbot.waitUntil(lambda: model.rowCount() == 2, timeout=WAIT_MS)
    refused, served = model.row_at(0), model.row_at(1)
    assert refused.status == 401 and refused.error
    assert served.status == 200 and served.client.startswith("127.0.0.1:")
    assert served.duration_s > 0 and not served.has_failed
    texts = [model.index(0, column).data() for column in range(model.columnCount())]
    assert "GET /v1/models" in texts and f"401  {refused.error}" in texts
    assert key not in str([model.row_at(row) for row in range(2)])
    assert "INFERDECK_API_KEY" in page.view.example.toPlainText()
    assert key not in page.view.example.toPlainText()
    page.view.hide_polls.click()
    assert model.rowCount() == 1


@pytest.mark.slow
def test_a_port_in_use_offers_the_next_free_one(qtbot: QtBot, page: ServerPage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        page.panel.form.port.setValue(port)
        page.panel.toggle()
        qtbot.waitUntil(lambda: page.serving.problem is not None, timeout=WAIT_MS)
        assert port in numbers(page.view.error.text())
        assert "--port" not in page.view.error.text()
        free = page.serving.free_port
        assert free is not None and page.view.take_port.text().endswith(f" {free}")
        page.view.take_port.click()
        qtbot.waitUntil(lambda: page.serving.is_on, timeout=WAIT_MS)
    assert page.serving.url.endswith(f":{free}") and page.view.error.isHidden()


def test_the_network_is_refused_without_a_key(qtbot: QtBot, page: ServerPage) -> None:
    form = page.panel.form
    form.address.setCurrentIndex(1)
    assert not page.panel.button.isEnabled() and "API key" in form.key_field.note
    form.make_key()
    assert page.panel.button.isEnabled()
    # there is no keyring in a test; a thread of its own finds that out
    qtbot.waitUntil(lambda: "keyring" in form.key_field.note.lower())


def test_what_was_chosen_is_kept_without_the_key(
    application: Application, page: ServerPage
) -> None:
    form = page.panel.form
    form.numbers["max_queued"].setValue(7)
    form.model_name.setText("mine")
    form.model_name.editingFinished.emit()
    form.make_key()
    form.at_start.setChecked(True)
    application.settings.sync()
    again = application.settings.serving
    assert (again.max_queued, again.model_name) == (7, "mine")
    assert application.settings.preferences.get("serve_at_start") is True
    kept = Path(application.settings.path).read_text(encoding="utf-8")
    assert form.key.text() not in kept


def test_stopping_lets_replies_end_or_aborts_them(
    qtbot: QtBot, application: Application, page: ServerPage, script: Script
) -> None:
    script.step_s, script.replies = 0.02, 2000
    open_model(qtbot, application)
    url = start(qtbot, page)
    # the scripted engine has no tokenizer: a request as the server's would come
    served = application.bridge
    served.pass_on(AddRequest("cmpl-" + "a" * 24, (1, 2, 3)))
    table = application.views.requests.model
    qtbot.waitUntil(lambda: page.serving.figures.running == 1, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: table.rowCount() == 1)
    assert url
    assert application.name_of("cmpl-" + "a" * 24) == "Completions API aaaa"
    send(qtbot, application, "hello")
    page.panel.toggle()
    assert page.serving.state is ServingState.STOPPING
    assert page.panel.button.text() == BUTTONS[ServingState.STOPPING]
    page.panel.toggle()
    qtbot.waitUntil(lambda: page.serving.state is ServingState.OFF, timeout=WAIT_MS)
    application.pages.chat.stop()
    served.abort("cmpl-" + "a" * 24)
    wait_idle(qtbot, application)


@pytest.mark.slow
def test_it_starts_with_the_program_where_that_is_wanted(
    qtbot: QtBot, application: Application, page: ServerPage
) -> None:
    application.settings.preferences.set("serve_at_start", True)
    assert page.panel.form.at_start.isChecked()
    page.start()
    qtbot.waitUntil(lambda: page.serving.is_on, timeout=WAIT_MS)
    application.window.commands.run("server.toggle")
    qtbot.waitUntil(lambda: page.serving.state is ServingState.OFF, timeout=WAIT_MS)


def test_the_program_ends_while_it_serves(qapp: QApplication, qtbot: QtBot) -> None:
    made = Application(qapp)
    made.show()
    page = made.pages.server
    try:
        page.panel.form.port.setValue(free_port())
        start(qtbot, page)
    finally:
        made.shutdown()
    assert not page.serving.is_on


@pytest.mark.slow
def test_a_window_that_attaches_sees_the_steps_before_the_server_started(
    qtbot: QtBot, application: Application, page: ServerPage, script: Script
) -> None:
    def steps() -> list[int]:
        kept = page.serving._engine_client.attach_state.events()
        return [s.index for e in kept if isinstance(e, History) for s in e.steps]

    open_model(qtbot, application)
    send(qtbot, application, "before")
    wait_idle(qtbot, application)
    qtbot.waitUntil(lambda: len(steps()) >= script.replies, timeout=WAIT_MS)
    start(qtbot, page)
    before = len(steps())
    send(qtbot, application, "while it serves")
    wait_idle(qtbot, application)
    stop(qtbot, page)
    qtbot.waitUntil(lambda: len(steps()) >= before + script.replies, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: application.bridge.dispatcher.is_at_rest)
    assert steps() == sorted(set(steps()))  # each once, whichever thread told of it
