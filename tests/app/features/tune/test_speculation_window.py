"""Speculative decoding in the real window, with the real engine and the starter pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Message, State
from app.features.models.session import DRAFT
from app.features.tune.draft_models import METHOD, MODEL, WITH_MODEL
from app.main.application import Application
from app.paths import starter_draft, starter_head, starter_model
from tests.app.real_window import LOAD_MS, LONG, REPLY_MS, slow_down, wait_for_end, wait_for_tokens
from tests.app.window_fixtures import ask, reply
from tests.figures import numbers
from widgets.controls.paths import PathControl
from widgets.tokens.paint import PAINTS
from widgets.tokens.record import token_text

SETTINGS = {"num_threads": 1, "speculative_adaptive": False}


@pytest.fixture
def application(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Application]:
    slow_down(monkeypatch)
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model(SETTINGS)
    yield made
    made.shutdown()


def choose(qtbot: QtBot, application: Application, method: str) -> None:
    """Choose a method as a user does, and apply it."""
    panel = application.engine_settings
    control = panel.rows[METHOD].control
    control.setCurrentIndex(control.findData(method))
    control.activated.emit(control.currentIndex())
    if method in WITH_MODEL:
        qtbot.waitUntil(lambda: panel.drafts.knows(panel.model.shown(MODEL)), timeout=LOAD_MS)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=LOAD_MS):
        panel.commands.apply()


def asked(qtbot: QtBot, application: Application, text: str = LONG) -> tuple[str, Message]:
    ask(application, text)
    return wait_for_end(qtbot, application), reply(application)


@pytest.mark.slow
def test_a_draft_is_chosen_shown_changed_and_removed(
    qtbot: QtBot, application: Application
) -> None:
    plain, _ = asked(qtbot, application)
    panel = application.engine_settings
    application.views.speculation_dock.bring_to_front()
    views = application.views.speculation
    qtbot.waitUntil(views.choose.isVisible, timeout=5000)
    assert not panel.rows["num_speculative_tokens"].isEnabled()

    choose(qtbot, application, "draft_model")
    config = application.bridge.config
    assert config is not None and config.speculative_model == str(starter_draft())
    assert numbers(panel.rows[MODEL].hint)[:2] == [558, 8]
    text, drafted = asked(qtbot, application)
    assert text == plain
    qtbot.waitUntil(views.verdict.isVisible, timeout=5000)
    qtbot.waitUntil(lambda: numbers(views.acceptance.text()) != [], timeout=5000)
    assert "draft" in views.source.text().lower()
    tokens = application.pages.chat.tokens.of(drafted.id)
    assert tokens is not None and any(record.is_draft for record in tokens.records)

    ask(application, LONG)  # another number of drafts in mid-reply
    wait_for_tokens(qtbot, application, 4)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=REPLY_MS):
        panel.rows["num_speculative_tokens"].control.field.setValue(2)
    assert wait_for_end(qtbot, application) == plain

    choose(qtbot, application, "eagle3")  # a head in place of the model
    config = application.bridge.config
    assert config is not None and config.speculative_model == str(starter_head())
    assert "1.05 M" in panel.rows[MODEL].hint
    assert asked(qtbot, application)[0] == plain

    ask(application, LONG)  # another method, then none
    wait_for_tokens(qtbot, application, 4)
    choose(qtbot, application, "ngram")
    assert not panel.rows[MODEL].isEnabled() and panel.rows["prompt_lookup_max"].isEnabled()
    choose(qtbot, application, "off")
    assert wait_for_end(qtbot, application) == plain
    qtbot.waitUntil(views.choose.isVisible, timeout=5000)


@pytest.mark.slow
def test_the_tokens_of_a_reply_show_its_drafts(qtbot: QtBot, application: Application) -> None:
    choose(qtbot, application, "draft_model")
    asked(qtbot, application)
    popover = application.pages.chat_page.tokens
    popover.show_last()
    names = [popover.popover.paint_by.itemText(i) for i in range(len(PAINTS))]
    assert names[-1] == "Drafts"
    popover.popover.paint_by.setCurrentText("Drafts")
    records = popover.popover.strip.records
    drafted = next(i for i, record in enumerate(records) if record.is_draft)
    popover.popover.strip.point_at(drafted)
    sampled = [records[drafted]._replace(is_draft=False)]
    parts = token_text(sampled, 0).count(" · ")
    assert popover.popover.line.text().count(" · ") == parts + 1
    popover.popover.hide()


@pytest.mark.slow
def test_a_folder_that_cannot_draft_is_refused_before_it_is_loaded(
    qtbot: QtBot, application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = application.engine_settings
    choose(qtbot, application, "draft_model")
    control = panel.rows[MODEL].control
    assert isinstance(control, PathControl)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(tmp_path))
    control.setCurrentIndex(control.count() - 1)
    control.activated.emit(control.count() - 1)
    row = panel.rows[MODEL]
    qtbot.waitUntil(lambda: row.hint_tone == "error", timeout=LOAD_MS)
    assert "draft model" in row.hint
    ask(application, LONG)
    wait_for_tokens(qtbot, application, 4)
    with qtbot.waitSignal(application.bridge.reconfigure_failed, timeout=LOAD_MS):
        panel.commands.apply()
    wait_for_end(qtbot, application)
    assert reply(application).state is State.COMPLETE  # with the draft model from before
    assert application.bridge.config is not None
    assert application.bridge.config.speculative_model == str(starter_draft())


@pytest.mark.slow
def test_a_remembered_draft_of_another_model_is_said_and_left_out(
    qtbot: QtBot, application: Application
) -> None:
    wanted = SETTINGS | {
        "model": str(starter_draft()),
        "speculative_method": "draft_model",
        "speculative_model": str(starter_model()),  # the larger of the two
    }
    with qtbot.waitSignal(application.bridge.loaded, timeout=LOAD_MS):
        application.startup.open_first_model(wanted)
    notices = application.notices
    qtbot.waitUntil(lambda: DRAFT in notices.keys, timeout=5000)
    notice = notices.notice(DRAFT)
    assert notice is not None and notice.cause
    assert application.bridge.config is not None
    assert application.bridge.config.speculative_method == "off"
    text, message = asked(qtbot, application, "What is TTFT?")
    assert text and message.state is State.COMPLETE
