"""The precision among the engine's settings, and a reply that two precisions write."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Message, State
from app.features.chat.figures import note_of, precisions_of
from app.features.chat.presenter import message_record
from app.features.tune.engine_settings import EngineSettingsPanel
from app.features.tune.precision_rows import WAYS
from app.main.application import Application
from engine import messages
from engine.snapshot import EngineSnapshot
from engine.units import rough_duration
from tests.app.real_window import application, pace
from tests.app.window_fixtures import application as scripted
from tests.app.window_fixtures import script
from tests.engine.quantized_checkpoints import make_quantized
from tests.figures import numbers
from widgets.controls.setting_row import ChoiceControl

__all__ = ["application", "pace", "script", "scripted"]

OPENS = "/models/tiny"
LOAD_MS = 180_000
ALPHABET = "Write the alphabet three times."


def panel_of(application: Application) -> EngineSettingsPanel:
    return application.engine_settings


def choose(application: Application, name: str, value: object) -> None:
    row = panel_of(application).rows[name]
    row.set_value(value)
    row.value_changed.emit(name, value)


def enabled(panel: EngineSettingsPanel) -> set[str]:
    """Weights that can be chosen."""
    box = panel.rows["quantization"].control
    assert isinstance(box, ChoiceControl)
    model = box.model()
    assert isinstance(model, QStandardItemModel)
    return {box.itemData(i) for i in range(box.count()) if model.item(i).isEnabled()}


# A scripted engine -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_time_of_the_last_switch_is_said_before_the_next(
    qtbot: QtBot, scripted: Application
) -> None:
    panel = panel_of(scripted)
    for weights in ("int8", "auto"):
        choose(scripted, "quantization", weights)
        assert not panel.pending.isHidden() and panel.pending.pause.text()
        with qtbot.waitSignal(scripted.bridge.reconfigured, timeout=3000):
            panel.commands.apply()
    assert 10 in numbers(panel._message.text())
    choose(scripted, "quantization", "int8")
    expected = panel.precision.expected(panel.model.applied.replace(quantization="int8"))
    assert expected is not None and expected.is_measured
    assert rough_duration(expected.seconds) in panel.pending.pause.text()
    assert any("|int8/" in name for name in scripted.settings.switch_times)


def test_the_group_size_is_asked_for_with_int4_alone(scripted: Application) -> None:
    rows = panel_of(scripted).rows
    assert not rows["quantization_group_size"].isEnabled()
    assert "INT4" in rows["quantization_group_size"].hint
    choose(scripted, "quantization", "int4")
    assert rows["quantization_group_size"].isEnabled()


# The real engine ---------------------------------------------------------------------------------


def ask(application: Application, max_tokens: int = 60) -> None:
    chat, page = application.pages.chat, application.pages.chat_page
    page.new_chat()
    chat.set_sampling("temperature", 0.0)
    chat.set_sampling("max_tokens", max_tokens)
    page.composer.set_text(ALPHABET)
    page.composer.send()


def reply(application: Application) -> Message:
    return application.pages.chat.current.path()[-1]


def wait_for_words(qtbot: QtBot, application: Application, count: int) -> None:
    qtbot.waitUntil(lambda: len(reply(application).text.split()) >= count, timeout=LOAD_MS)


def wait_for_end(qtbot: QtBot, application: Application) -> Message:
    qtbot.waitUntil(lambda: not application.pages.chat.is_busy, timeout=LOAD_MS)
    return reply(application)


@pytest.mark.slow
def test_a_reply_goes_on_in_int8_and_is_marked_where_it_changed(
    qtbot: QtBot, application: Application
) -> None:
    panel, chat = panel_of(application), application.pages.chat
    qtbot.waitUntil(lambda: panel.precision.checkpoint is not None, timeout=LOAD_MS)
    box = panel.rows["quantization"].control
    assert isinstance(box, ChoiceControl)
    texts = {box.itemData(i): box.itemText(i) for i in range(box.count())}
    assert texts["int8"].startswith("INT8 · ") and texts["int8"].endswith("MiB")
    assert enabled(panel) == {"auto", "none", "int8", "int4", "nf4", "fp8"}
    weights: list[int] = []
    application.bridge.snapshot.connect(lambda snapshot: weights.append(_weights(snapshot)))
    ask(application)
    wait_for_words(qtbot, application, 6)
    choose(application, "quantization", "int8")
    assert not panel.pending.isHidden() and panel.pending.pause.text()
    marks = len(application.charts.marks.marks)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=LOAD_MS):
        panel.commands.apply()
        before = reply(application).text
        assert panel._message.text() and panel.model.sent
    so_far = reply(application).text
    done = wait_for_end(qtbot, application)
    assert done.state is State.COMPLETE and done.text.startswith(so_far)
    assert so_far.startswith(before)
    first, second = done.passages
    assert first.precision == "FP32" and second.precision == "FP32 · INT8 weights"
    assert second.start == len(so_far) and 6 <= second.num_tokens < 60
    assert done.figures is not None and done.figures.num_tokens > second.num_tokens
    assert application.bridge.model is not None
    assert application.bridge.model.quantization == "int8"
    record = message_record(chat, chat.current, done)
    assert record.figures.endswith(precisions_of(done.passages))
    # the strip says what the next snapshot says, which may come behind the reply's last token
    strip = application.strip
    qtbot.waitUntil(lambda: "INT8 weights" in strip.title, timeout=LOAD_MS)
    assert len(application.charts.marks.marks) == marks + 1
    qtbot.waitUntil(lambda: weights[-1] < 0.5 * weights[0], timeout=10_000)
    _check_copies(application, done)


def _weights(snapshot: EngineSnapshot) -> int:
    return snapshot.memory.weights


def _check_copies(application: Application, done: Message) -> None:
    """In the view, in a copy, and when the chat is opened again."""
    chat, page = application.pages.chat, application.pages.chat_page
    view = page.transcript.view(done.id)
    assert view is not None
    view.text.render_now()
    assert "INT8 weights" in view.text.toPlainText()
    page.copy_last()
    assert f"[{note_of(done.passages)}]" in QApplication.clipboard().text()
    chat.saver.save()
    application.pages.store.flush()
    (stored,) = [m for m in application.pages.store.messages(chat.current.id) if m.id == done.id]
    assert Message.from_record(stored).passages == done.passages


@pytest.mark.slow
def test_a_cancelled_switch_leaves_reply_and_precision_as_they_were(
    qtbot: QtBot, application: Application
) -> None:
    panel = panel_of(application)
    ask(application)
    wait_for_words(qtbot, application, 4)
    application.bridge.load_progress.connect(lambda _: application.bridge.cancel_load())
    choose(application, "quantization", "nf4")
    failed: list[messages.ReconfigureFailed] = []
    said: list[str] = []  # for some seconds
    application.bridge.reconfigure_failed.connect(failed.append)
    application.bridge.reconfigure_failed.connect(lambda _: said.append(panel._message.text()))
    done: list[object] = []
    application.bridge.reconfigured.connect(done.append)
    panel.commands.apply()
    qtbot.waitUntil(lambda: bool(failed or done), timeout=LOAD_MS)
    end = wait_for_end(qtbot, application)
    assert end.state is State.COMPLETE
    if failed:  # else it was faster than the hand
        assert panel.rows["quantization"].value() == "auto" and len(end.passages) == 1
        assert "Cancelled" in said[0]


@pytest.mark.slow
def test_an_awq_checkpoint_refuses_16_bits_with_a_way_out(
    qtbot: QtBot, application: Application, tmp_path: Path
) -> None:
    make_quantized(tmp_path, "awq")
    panel = panel_of(application)
    with qtbot.waitSignal(application.bridge.loaded, timeout=LOAD_MS):
        application.session.open(str(tmp_path), "dummy")
    qtbot.waitUntil(lambda: panel.precision.checkpoint is not None, timeout=LOAD_MS)
    assert enabled(panel) == {"auto", "awq"}
    row = panel.rows["quantization"]
    qtbot.waitUntil(lambda: "AWQ" in row.hint, timeout=5000)
    assert row.action.text() == WAYS["source"]
    row.action.click()
    assert application.pages.models.library.filter.hasFocus()
