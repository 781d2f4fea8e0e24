"""The page beside the chat: replies go on while a model is made, and a report leads to the chat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.quantize.reports import Made
from app.features.runs.page import RunsPage
from app.main.application import Application
from app.paths import starter_model
from app.storage.report_store import StoredReport
from tests.app.features.runs.conftest import RUN_MS, choose_starter, make_quick, wait_for_end
from tests.engine.evaluate.reports import make_report


@pytest.fixture
def real(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Application]:
    """With the real engine."""
    make_quick(monkeypatch)
    made = Application(qapp)
    made.gpu.watch.start = lambda: None  # type: ignore[method-assign]
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=RUN_MS):
        made.startup.open_first_model({"num_threads": 1, "model": str(starter_model())})
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_reply_is_written_while_a_model_is_made(
    qtbot: QtBot, real: Application, short_text: Path
) -> None:
    page, chat = real.pages.runs, real.pages.chat
    real.window.show_widget(page)
    assert page.quantizing.form.fields.source.path == str(starter_model())  # the model that is open
    choose_starter(qtbot, page, "awq", short_text)
    page.quantizing.form.measure.setChecked(False)
    page.quantizing.start()
    qtbot.waitUntil(lambda: page.run is None or len(page.run.layers) > 0, timeout=RUN_MS)
    assert page.run is not None
    chat.new_conversation()
    chat.set_sampling("temperature", 0.0)
    chat.set_sampling("max_tokens", 16)
    chat.send("What is TTFT?")
    qtbot.waitUntil(lambda: not chat.is_busy, timeout=RUN_MS)
    assert len(chat.current.path()[-1].text.split()) > 3
    wait_for_end(qtbot, page)
    assert page.detail.made.isVisible() and page.quantizing.panel.error.text() == ""


def of_one_model() -> StoredReport:
    """A report of the starter model at another precision."""
    found = make_report()
    assert found.reference is not None
    path = str(starter_model())
    settings = {"quantization": "int8"}
    found = replace(
        found,
        candidate=replace(found.candidate, path=path, config=settings),
        reference=replace(found.reference, path=path, config={"quantization": "auto"}),
    )
    return StoredReport("1", "x", found)


def test_a_report_leads_to_the_comparison_in_chat(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    stored = of_one_model()
    compare = page.compare
    page.detail.report.show_report(stored, Made())
    assert not page.detail.report.compare.isHidden()
    with qtbot.waitSignal(application.bridge.loaded, timeout=RUN_MS):
        page.detail.report.compare.click()
    qtbot.waitUntil(compare.isVisible, timeout=RUN_MS)
    left, right = compare.setups
    assert (left.model, right.model) == (None, None)  # the one that is loaded now
    assert (left.settings["quantization"], right.settings["quantization"]) == ("auto", "int8")
    page.show_table()
    page.detail.report.compare.click()  # the model is there now
    assert compare.isVisible()


@pytest.mark.slow
def test_a_new_model_is_compared_with_the_one_it_was_made_from(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    """Two folders: the source is loaded, the model that was made was never opened."""
    stored = of_one_model()
    made = replace(stored.report.candidate, path="/models/starter-awq", config={}, name="awq")
    stored = StoredReport("2", "y", replace(stored.report, candidate=made))
    with qtbot.waitSignal(application.bridge.loaded, timeout=RUN_MS):
        application.session.open(str(starter_model()))
    page.detail.report.show_report(stored, Made())
    page.detail.report.compare.click()
    window = page.compare
    assert window.isVisible()
    left, right = window.setups
    assert left.model is None
    assert right.model is not None and right.model.path == "/models/starter-awq"
    assert "awq" in window.sides[1].what.text()
    window.prompt.setPlainText("What is TTFT?")
    assert window.start.isEnabled()
