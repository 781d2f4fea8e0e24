"""A comparison in the window over a scripted engine: order, queueing, stopping, failing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.compare.replies import Stage
from app.features.compare.runner import CHANGED, Phase
from app.features.compare.view import CompareView
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.storage.run_records import Kind, State
from engine import messages
from tests.app.fakes import FakeEngineThread, Script
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import application, usual_text
from widgets.theme.theme import apply_text_size

__all__ = ["application", "parts", "usual_text"]

OPENS = "/models/tiny"


@pytest.fixture
def script() -> Script:
    return Script(replies=4)


@pytest.fixture
def window(parts: Parts) -> CompareView:
    parts.show("runs")
    parts.runs.show_form(Kind.COMPARE)
    return parts.runs.compare


def in_window(application: Application) -> CompareView:
    application.window.commands.run("chat.compare")
    return application.pages.runs.compare


def write(window: CompareView, *prompts: str) -> None:
    for prompt in prompts:
        window.prompt.setPlainText(prompt)
        window.add.click()


def commands(bridge: EngineBridge) -> list[str]:
    """What the engine was told, in words."""
    thread = bridge.engine
    assert isinstance(thread, FakeEngineThread)
    found = []
    for command in thread.commands:
        if isinstance(command, messages.AddRequest):
            found.append(str(command.prompt[0]["content"]))  # type: ignore[index]
        elif isinstance(command, messages.Reconfigure):
            found.append(f"-> {command.changes['quantization']}")
    return found


def wait_for_end(qtbot: QtBot, window: CompareView) -> None:
    qtbot.waitUntil(lambda: not window._runner.is_running, timeout=8000)


def test_a_switch_is_paid_once_for_all_prompts_and_then_back(
    qtbot: QtBot, parts: Parts, window: CompareView
) -> None:
    write(window, "one", "two")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    write(window, "three")  # while it runs
    wait_for_end(qtbot, window)
    expected = ["one", "two", "three", "-> int8", "one", "two", "three", "-> auto"]
    assert commands(parts.bridge) == expected
    assert parts.bridge.config is not None
    assert parts.bridge.config.quantization == "auto"
    assert window.table.rowCount() == 3 and window.export.isEnabled()
    assert "3 of 3" in window.status.text()


@pytest.mark.slow
def test_it_stays_on_the_right_where_it_is_to(
    qtbot: QtBot, parts: Parts, window: CompareView
) -> None:
    window.back.click()
    window.prompt.setPlainText("one")  # written, not added: it is taken along
    window.sides[1].precision.choose({"quantization": "int4"})
    window.start.click()
    wait_for_end(qtbot, window)
    assert commands(parts.bridge) == ["one", "-> int4", "one"]


@pytest.mark.slow
def test_the_same_precision_is_not_compared_with_itself(window: CompareView) -> None:
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "none"})
    assert not window.start.isEnabled()
    window.sides[1].precision.choose({"quantization": "int8"})
    assert window.start.isEnabled()


def test_stopping_keeps_what_was_answered_and_goes_back(
    qtbot: QtBot, parts: Parts, window: CompareView, script: Script
) -> None:
    script.replies, script.step_s = 60, 0.01
    write(window, "one", "two")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    runner = window._runner
    qtbot.waitUntil(lambda: runner.side == 1 and runner.phase is Phase.ANSWERING, timeout=8000)
    window.start.click()
    wait_for_end(qtbot, window)
    assert runner.comparison is not None
    assert [p.replies[0] is not None for p in runner.comparison.pairs] == [True, True]
    reply = runner.comparison.pairs[0].replies[1]
    assert reply is not None and reply.stage is Stage.STOPPED
    assert commands(parts.bridge)[-1] == "-> auto"


def test_a_switch_that_fails_ends_it_with_the_reason(
    qtbot: QtBot, parts: Parts, window: CompareView, script: Script
) -> None:
    script.failing_settings = ("quantization",)
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    assert "9 GiB of 3 GiB" in window.status.text()
    assert parts.bridge.config is not None
    assert parts.bridge.config.quantization == "auto"


def test_a_refused_prompt_is_told_beside_the_others(
    qtbot: QtBot, window: CompareView, script: Script
) -> None:
    write(window, script.rejected_prompt, "two")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    item = window.table.item(0, 2)
    assert item is not None and "9,000 tokens" in item.text()
    second = window.table.item(1, 1)
    assert second is not None and second.text() == "all"


@pytest.mark.slow
def test_a_change_of_precision_from_elsewhere_ends_it(
    qtbot: QtBot, parts: Parts, window: CompareView, script: Script
) -> None:
    script.replies, script.step_s = 200, 0.01
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    parts.bridge.reconfigure(quantization="nf4")
    wait_for_end(qtbot, window)
    assert window._runner.problem == CHANGED


@pytest.mark.slow
def test_closing_the_model_ends_it(
    qtbot: QtBot, parts: Parts, window: CompareView, script: Script
) -> None:
    script.replies, script.step_s = 200, 0.01
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    parts.session.unload()
    wait_for_end(qtbot, window)
    assert window._runner.problem and not window.start.isEnabled()


@pytest.mark.slow
@pytest.mark.parametrize("is_raw", [False, True])
def test_texts_of_a_file_are_user_messages_unless_raw(
    qtbot: QtBot, parts: Parts, window: CompareView, tmp_path: Path, is_raw: bool
) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    window.read(tmp_path / "prompts.txt")
    qtbot.waitUntil(lambda: window.table.rowCount() == 2, timeout=3000)
    window.raw.setChecked(is_raw)
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    asked = [c.prompt for c in parts.bridge.engine.commands  # type: ignore[attr-defined]
             if isinstance(c, messages.AddRequest)]  # fmt: skip
    sent = ["one", "two"] if is_raw else [({"role": "user", "content": x},) for x in ("one", "two")]
    assert asked == 2 * sent


def test_prompts_come_from_a_file_and_results_go_to_one(
    qtbot: QtBot, window: CompareView, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}]}\n')
    window.read(file)
    qtbot.waitUntil(lambda: window.table.rowCount() == 2, timeout=3000)
    file.write_text('{"prompt": 3}\n')
    window.read(file)
    qtbot.waitUntil(lambda: "line 1" in window.status.text(), timeout=3000)
    window.refresh()  # as the engine's news do, at any time
    assert "line 1" in window.status.text() and window.status.property("role") == "error"
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    for name in ("a.json", "a.md"):
        window.write(tmp_path / name)
        qtbot.waitUntil(lambda name=name: (tmp_path / name).exists(), timeout=3000)
        qtbot.waitUntil(lambda name=name: name in window.status.text(), timeout=3000)
        window.refresh()
        assert name in window.status.text() and window.status.property("role") == "muted"
    window.prompt.setPlainText("three")
    window.add_prompt()
    assert "a.md" not in window.status.text(), "something else was done"
    assert len(json.loads((tmp_path / "a.json").read_text())["prompts"]) == 2


@pytest.mark.slow
def test_an_export_that_fails_leaves_the_file_of_before(
    qtbot: QtBot, window: CompareView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    file = tmp_path / "a.md"
    file.write_text("of yesterday")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("app.storage.json_file.os.fsync", full)
    window.write(file)
    qtbot.waitUntil(lambda: window.status.property("role") == "error")
    assert file.read_text() == "of yesterday" and list(tmp_path.glob("a.md*")) == [file]


def test_a_comparison_is_kept_as_a_run_and_goes_on_as_a_chat(
    qtbot: QtBot, application: Application
) -> None:
    window = in_window(application)
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    wait_for_end(qtbot, window)
    page = application.pages.runs
    page.show_table()
    (run,) = page.table.runs
    assert run.kind is Kind.COMPARE and run.state is State.DONE and len(run.sides) == 2
    page.table.choose(run.id)
    qtbot.waitUntil(lambda: not page.book.is_busy)
    columns = page.detail.stored.columns
    shown = [side.text.toPlainText() for side in columns.sides]
    assert window.columns.prompt.text().endswith("one")
    assert columns.prompt.text() == window.columns.prompt.text()
    assert window.status.text().startswith(f"{run.sides[1].title}: ")  # no reply's line again
    assert window.columns.line.text() not in window.status.text()
    assert shown == [side.text.toPlainText() for side in window.columns.sides] and all(shown)
    columns.sides[1].keep.click()
    assert application.pages.chat.current.path()[-1].text == shown[1]
    assert commands(application.bridge)[-1] == "-> int8"  # the side that wrote it


@pytest.mark.slow
def test_a_prompt_of_the_chat_is_compared(application: Application) -> None:
    window = in_window(application)
    application.pages.chat_page.composer.set_text("another")
    application.pages.chat_page.composer.compare.click()
    assert window.isVisible() and window.prompt.toPlainText() == "another"


@pytest.mark.slow
def test_the_program_ends_in_the_middle_of_it(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    window = in_window(application)
    script.replies, script.step_s = 200, 0.01
    write(window, "one")
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    qtbot.waitUntil(lambda: application.bridge.is_ready and window._timer.isActive(), timeout=3000)
    application.window.close()
    assert not window._timer.isActive()


@pytest.mark.slow
def test_a_low_window_with_large_text_scrolls_to_the_replies(
    qtbot: QtBot, qapp: QApplication, application: Application
) -> None:
    window = in_window(application)
    apply_text_size(qapp, 160)
    application.window.resize(1000, 640)
    window.sides[1].precision.choose({"quantization": "int8"})
    write(window, "one", "two", "three", "four")
    window.start.click()
    wait_for_end(qtbot, window)
    bar = window.area.verticalScrollBar()
    assert bar.maximum() > 0 and bar.value() > 0
    for box in window.sides[0].precision.boxes.values():  # not squeezed
        assert box.isHidden() or box.height() >= box.minimumSizeHint().height()
    for side in window.columns.sides:
        line = side.text.fontMetrics().height()
        assert side.text.viewport().height() >= side.least_lines * line
    assert window.table.verticalScrollBar().maximum() == 0  # all 4 rows
