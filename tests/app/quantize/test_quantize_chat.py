"""The page beside the chat: replies go on while a model is made, and a report leads to the chat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.commands import Command
from app.paths import starter_model
from app.quality.store import StoredReport
from app.quantize.in_chat import COMMAND, CompareInChat
from app.quantize.keeping import Made
from app.quantize.page import QuantizePage
from app.window import Application
from tests.app.quantize.conftest import RUN_MS, choose_starter, make_quick, wait_for_end
from tests.engine.evaluation.reports import make_report


@pytest.fixture
def real(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Application]:
    """With the real engine."""
    make_quick(monkeypatch)
    made = Application(qapp)
    made.gpu.start = lambda: None  # type: ignore[method-assign]
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=RUN_MS):
        made.open_first_model({"num_threads": 1, "model": str(starter_model())})
    yield made
    made.shutdown()


def test_a_reply_is_written_while_a_model_is_made(
    qtbot: QtBot, real: Application, short_text: Path
) -> None:
    page, chat = real.pages.quantize, real.pages.chat
    real.window.show_widget(page)
    assert page.recipe.fields.source.path == str(starter_model())  # the model that is open
    choose_starter(qtbot, page, "awq", short_text)
    page.recipe.measure.setChecked(False)
    page.start_quantizing()
    qtbot.waitUntil(lambda: page.run is None or len(page.run.layers) > 0, timeout=RUN_MS)
    assert page.run is not None
    chat.new_conversation()
    chat.set_sampling("temperature", 0.0)
    chat.set_sampling("max_tokens", 16)
    chat.send("What is TTFT?")
    qtbot.waitUntil(lambda: not chat.is_busy, timeout=RUN_MS)
    assert len(chat.current.path()[-1].text.split()) > 3
    wait_for_end(qtbot, page)
    assert page.made.isVisible() and page.quantize_panel.error.text() == ""


def of_one_model() -> StoredReport:
    """A report of the starter model at another precision."""
    found = make_report()
    assert found.reference is not None
    path = str(starter_model())
    found = replace(
        found,
        candidate=replace(found.candidate, path=path),
        reference=replace(found.reference, path=path),
    )
    return StoredReport("1", "x", found)


def test_a_report_leads_to_the_comparison_in_chat(
    qtbot: QtBot, application: Application, page: QuantizePage
) -> None:
    asked: list[int] = []
    registry = application.window.commands
    if all(command.id != COMMAND for command in registry):
        registry.add(Command(COMMAND, "Compare side by side…", lambda: asked.append(1), "Chat"))
    else:
        registry.action(COMMAND).triggered.connect(lambda: asked.append(1))
    desk = CompareInChat(page, registry, application.session, application.bridge)
    stored = of_one_model()
    page.report.show_report(stored, Made())
    assert not page.report.compare.isHidden()
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        desk.compare(stored)
    assert asked == [1]
    desk.compare(stored)  # the model is there now
    assert asked == [1, 1]
    other = stored.report.reference
    assert other is not None
    elsewhere = replace(stored.report, reference=replace(other, path="/models/other"))
    page.report.show_report(StoredReport("2", "y", elsewhere), Made())
    assert page.report.compare.isHidden()  # two folders are not one model switched
