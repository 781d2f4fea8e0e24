"""The real engine, served from the window while the window's own chat writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import openai
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.features.serve.controller import ServingState
from app.main.application import Application
from app.server.call import origin_of
from tests.app.features.serve.test_page import free_port, start

WAIT_MS = 60_000
QUESTION = [{"role": "user", "content": "What is TTFT?"}]


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    try:
        with qtbot.waitSignal(made.bridge.loaded, timeout=120_000):
            made.startup.open_first_model({"num_threads": 1})
        yield made
    finally:
        made.shutdown()


class InThread:
    """Work of a client, beside the window."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.result: object = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error

    def wait(self, qtbot: QtBot) -> None:
        qtbot.waitUntil(lambda: not self.thread.is_alive(), timeout=WAIT_MS)


@pytest.mark.slow
def test_clients_and_the_chat_share_the_engine(qtbot: QtBot, application: Application) -> None:
    page, chat = application.pages.server, application.pages.chat
    page.panel.form.port.setValue(free_port())
    page.panel.form.make_key()
    url = start(qtbot, page)
    client = openai.OpenAI(
        base_url=f"{url}/v1", api_key=page.panel.form.key.text(), max_retries=0, timeout=60
    )
    seen: list[str] = []
    goes_on = threading.Event()

    def read() -> str:
        with client.chat.completions.create(
            model="starter", messages=QUESTION, stream=True, temperature=0, max_tokens=1500,
            extra_body={"ignore_eos": True},
        ) as stream:  # fmt: skip
            for chunk in stream:
                seen.append(chunk.choices[0].delta.content or "")
                if len(seen) == 6:
                    goes_on.wait(30)
        return "".join(seen)

    chat.set_sampling("temperature", 0.0)
    chat.set_sampling("max_tokens", 24)
    reader = InThread(read)
    try:
        qtbot.waitUntil(lambda: len(seen) >= 3, timeout=WAIT_MS)
        application.pages.chat_page.send("What is TTFT?")
        qtbot.waitUntil(lambda: not chat.is_busy and bool(chat.current.path()), timeout=WAIT_MS)
        qtbot.waitUntil(lambda: page.serving.figures.running == 1, timeout=WAIT_MS)
        model = application.views.requests.model
        names = lambda: [str(model.index(row, 0).data()) for row in range(model.rowCount())]
        qtbot.waitUntil(lambda: any(name.startswith("Chat API ") for name in names()))
        # and stopped while the client reads
        page.serving.stop()
        page.serving.stop()
    finally:
        goes_on.set()
    reader.wait(qtbot)
    qtbot.waitUntil(lambda: page.serving.state is ServingState.OFF, timeout=WAIT_MS)
    assert reader.error is None
    said = chat.current.path()[-1]
    assert said.state is State.COMPLETE and said.text
    assert "".join(seen).startswith(said.text[:20])  # the same model, greedily
    record = next(r for r in page.serving.calls.since(0) if r.path == "/v1/chat/completions")
    assert record.status == 200 and record.num_tokens and record.ttft_s
    assert record.duration_s >= record.ttft_s
    qtbot.waitUntil(lambda: page.serving.figures.aborted == 1, timeout=WAIT_MS)
    assert origin_of("chatcmpl-" + "0" * 24) == "Chat API 0000"
    client.close()


@pytest.mark.slow
def test_a_model_that_is_closed_while_a_client_reads(
    qtbot: QtBot, application: Application
) -> None:
    page = application.pages.server
    page.panel.form.port.setValue(free_port())
    url = start(qtbot, page)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    ends: list[str | None] = []

    def read() -> None:
        with client.completions.create(
            model="starter", prompt="a", stream=True, max_tokens=1800,
            extra_body={"ignore_eos": True},
        ) as stream:  # fmt: skip
            ends.extend(chunk.choices[0].finish_reason for chunk in stream)

    reader = InThread(read)
    qtbot.waitUntil(lambda: len(ends) > 2, timeout=WAIT_MS)
    with qtbot.waitSignal(application.bridge.unloaded, timeout=WAIT_MS):
        application.session.unload()
    reader.wait(qtbot)
    assert reader.error is None and ends[-1] == "abort"
    qtbot.waitUntil(lambda: "503" in page.view.health.text(), timeout=WAIT_MS)
    later = InThread(lambda: client.models.list())
    later.wait(qtbot)
    assert isinstance(later.error, openai.InternalServerError)
    assert later.error.status_code == 503
    client.close()
