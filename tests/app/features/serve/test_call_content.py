"""Parameters, prompts and replies of calls: kept on request only."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.serve.call_content import NOT_KEPT, content_text
from app.features.serve.page import ServerPage
from app.main.application import Application
from app.server.call_log import CONTENTS_KEPT, CallContent, CallLog, CallRecord
from tests.app.features.serve.test_page import free_port, start
from tests.app.features.serve.test_real_engine import InThread, application

__all__ = ["application"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_shown(body: bytes) -> None:
    assert isinstance(content_text(CallContent(body, ("x",))), str)


@given(st.text(min_size=1), st.text(min_size=1), st.floats(0, 2))
def test_every_part_of_a_chat_is_shown(question: str, reply: str, temperature: float) -> None:
    body = {"temperature": temperature, "messages": [{"role": "user", "content": question}]}
    shown = content_text(CallContent(json.dumps(body).encode(), (reply,)))
    assert question in shown and reply in shown and json.dumps(temperature) in shown


def test_the_contents_are_bounded_and_forgotten() -> None:
    log = CallLog()
    record = CallRecord(0, 0.0, "", "POST", "/", 200, 0.1)
    log.end(record, CallContent(b"{}", ()))
    assert log.content(1) is None
    log.keep_content(True)
    for _ in range(CONTENTS_KEPT + 5):
        log.end(record, CallContent(b"{}", ()))
    kept = [number for number in range(log.total + 1) if log.content(number) is not None]
    assert kept == list(range(log.total - CONTENTS_KEPT + 1, log.total + 1))
    log.keep_content(False)
    assert log.content(log.total) is None


@pytest.mark.slow
def test_the_page_shows_what_a_client_sent_and_got(
    qtbot: QtBot, application: Application
) -> None:
    page: ServerPage = application.pages.server
    application.window.show_widget(page)
    page.panel.form.port.setValue(free_port())
    start(qtbot, page)
    assert not page.view.keep_content.isChecked()
    before = ask(qtbot, page, "one")
    page.view.keep_content.setChecked(True)
    after = ask(qtbot, page, "two")
    streamed = ask(qtbot, page, "three", stream=True)
    qtbot.waitUntil(lambda: page.view.model.rowCount() == 3, timeout=10_000)
    shown = []
    for row in (2, 1, 0):
        page.view.table.selectRow(row)
        shown.append(page.view.content.text.toPlainText())
    assert shown[0] == NOT_KEPT and before
    assert "[user] two" in shown[1] and after in shown[1]
    assert "[user] three" in shown[2] and "max_tokens: 4" in shown[2] and streamed in shown[2]
    page.view.keep_content.setChecked(False)
    assert page.view.content.isHidden() and page.serving.calls.content(3) is None


def ask(qtbot: QtBot, page: ServerPage, text: str, *, stream: bool = False) -> str:
    """The reply of the server to `text`, asked in a thread."""
    body = {"model": "starter", "max_tokens": 4, "stream": stream,
            "messages": [{"role": "user", "content": text}]}  # fmt: skip

    def post() -> str:
        answer = httpx.post(f"{page.serving.url}/v1/chat/completions", json=body, timeout=20)
        answer.raise_for_status()
        if not stream:
            return str(answer.json()["choices"][0]["message"]["content"])
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    client = InThread(post)
    client.wait(qtbot)
    assert client.error is None
    return str(client.result)
