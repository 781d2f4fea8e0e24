"""The real window on a scripted engine thread: quantizing and measuring are real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import shiboken6
from PySide6.QtWidgets import QApplication, QRadioButton
from pytestqt.qtbot import QtBot

from app.features.quantize.texts import TextChoice, builtin_text
from app.features.runs.page import RunsPage
from app.main.application import Application
from app.paths import starter_model
from tests.app.fakes import FakeEngineThread, Script

RUN_MS = 240_000


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is real, in small: one thread, and speeds of few tokens."""
    monkeypatch.setattr("engine.hardware.machine.default_threads", lambda: 1)
    for name, value in (("PROMPT_TOKENS", 16), ("REPLY_TOKENS", 4),
                        ("ROUNDS", 1), ("MOST_ROUNDS", 1)):  # fmt: skip
        monkeypatch.setattr(f"engine.evaluate.answers.{name}", value)


@pytest.fixture
def short_text(tmp_path: Path) -> Path:
    """Some 500 tokens of the starter model's language."""
    file = tmp_path / "short.txt"
    file.write_text(builtin_text("starter").read()[:1800], encoding="utf-8")
    return file


@pytest.fixture
def application(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Application]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    make_quick(monkeypatch)
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    made.gpu.watch.start = lambda: None  # type: ignore[method-assign]
    made.show()
    yield made
    if shiboken6.isValid(made.window):  # a test may have closed it itself
        made.shutdown()


@pytest.fixture
def page(application: Application) -> RunsPage:
    found = application.pages.runs
    application.window.show_widget(found)
    return found


def choose_starter(qtbot: QtBot, page: RunsPage, method: str, text: Path) -> None:
    """The starter model, ready to be quantized from `text` and to be measured on it."""
    recipe = page.quantizing.form
    recipe.findChild(QRadioButton, method).click()
    recipe.fields.source.choose(str(starter_model()))
    recipe.fields.text.choose(TextChoice("", str(text)))
    recipe.measure_text.choose(TextChoice("", str(text)))
    recipe.fields.num_sequences.setValue(4)
    recipe.fields.length.setValue(64)
    qtbot.waitUntil(lambda: page.quantizing.form.can_start, timeout=60_000)


def wait_for_end(qtbot: QtBot, page: RunsPage) -> None:
    qtbot.waitUntil(lambda: page.run is None and not page.book.is_busy, timeout=RUN_MS)
