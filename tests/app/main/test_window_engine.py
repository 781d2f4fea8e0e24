"""Replies of the real engine in the real window, and settings that change meanwhile."""

from __future__ import annotations

import dataclasses

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.main.application import Application
from engine.config import SETTINGS
from tests.app.real_window import (
    LONG,
    REPLY_MS,
    Pace,
    application,
    pace,
    wait_for_end,
    wait_for_tokens,
)
from tests.app.window_fixtures import ask, reply
from widgets.controls.setting_row import ChoiceControl
from widgets.tokens.record import Origin

__all__ = ["application", "pace"]


def test_a_reply_streams_with_its_figures(qtbot: QtBot, application: Application) -> None:
    sizes: list[int] = []
    application.pages.chat.generation.text_appended.connect(lambda *_: sizes.append(1))
    ask(application, "What is TTFT?")
    text = wait_for_end(qtbot, application)
    assert len(text.split()) > 3 and len(sizes) > 1
    figures = reply(application).figures
    assert figures is not None and figures.ttft_ms is not None and figures.num_tokens > 5
    assert figures.model == "Demo model"
    shown = application.strip
    qtbot.waitUntil(lambda: shown.state[0] == "Ready", timeout=5000)


@pytest.mark.slow
def test_escape_stops_and_regenerate_and_edit_make_versions(
    qtbot: QtBot, application: Application
) -> None:
    ask(application, LONG, max_tokens=400)
    wait_for_tokens(qtbot, application, 5)
    qtbot.keyClick(application.window, Qt.Key.Key_Escape)
    stopped = wait_for_end(qtbot, application)
    assert reply(application).state is State.STOPPED and len(stopped.split()) < 300
    chat = application.pages.chat
    chat.set_sampling("max_tokens", 12)
    application.window.commands.run("chat.regenerate")
    again = wait_for_end(qtbot, application)
    length = min(len(stopped), len(again))
    assert length > 6 and stopped[:length] == again[:length]
    assert chat.current.version_of(reply(application)) == (2, 2)
    question = chat.current.path()[0]
    chat.edit(question.id, "What is the KV cache?")
    wait_for_end(qtbot, application)
    assert chat.current.version_of(chat.current.path()[0]) == (2, 2)
    assert reply(application).state is State.COMPLETE and reply(application).text


@pytest.mark.slow
def test_a_branch_from_a_token_keeps_the_text_before_it(
    qtbot: QtBot, application: Application
) -> None:
    chat, page = application.pages.chat, application.pages.chat_page
    ask(application, "What is TTFT?")
    whole = wait_for_end(qtbot, application)
    first = reply(application)
    tokens = chat.tokens.of(first.id)
    assert tokens is not None and first.figures is not None
    assert len(tokens.records) == first.figures.num_tokens
    assert whole == "".join(record.text for record in tokens.records[:-1]).strip()
    index = 4
    other = tokens.records[index].alternatives[1]
    application.window.commands.run("chat.tokens")
    page.tokens.popover.strip.point_at(index)
    page.tokens.popover.branch.click()  # with the most probable alternative
    branch = wait_for_end(qtbot, application)
    kept = "".join(record.text for record in tokens.records[:index]) + other.text
    assert branch.startswith(kept) and branch != whole
    assert chat.current.version_of(reply(application)) == (2, 2)
    again = chat.tokens.of(reply(application).id)
    assert again is not None and again.records[:index] == tuple(
        record._replace(origin=Origin.KEPT) for record in tokens.records[:index]
    )
    # what was written there goes on as it did
    chat.branch_from_token(first.id, index, tokens.records[index].token_id)
    assert wait_for_end(qtbot, application) == whole


@pytest.mark.slow
def test_the_model_counts_what_is_being_written(qtbot: QtBot, application: Application) -> None:
    page = application.pages.chat_page
    page.composer.set_text("What is the KV cache?")
    text = page.composer.text
    qtbot.waitUntil(lambda: page.draft.counts.known(text) is not None, timeout=5000)
    assert 3 <= page.draft.num_tokens <= len(text)
    assert f"~{page.draft.num_tokens} of" in page.composer.context.lines[0]


@pytest.mark.slow
def test_settings_changed_in_mid_reply_do_not_change_its_text(
    qtbot: QtBot, application: Application
) -> None:
    ask(application, LONG)
    undisturbed = wait_for_end(qtbot, application)
    panel = application.engine_settings
    was_busy: list[bool] = []
    chat = application.pages.chat
    application.bridge.reconfigured.connect(lambda event: was_busy.append(chat.is_busy))

    ask(application, LONG)
    wait_for_tokens(qtbot, application, 4)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=REPLY_MS):
        panel.rows["max_num_seqs"].control.field.setValue(4)
    assert wait_for_end(qtbot, application) == undisturbed

    ask(application, LONG)
    wait_for_tokens(qtbot, application, 4)
    panel.rows["block_size"].control.field.setValue(64)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=REPLY_MS):
        panel.commands.apply()
    assert application.bridge.config is not None and application.bridge.config.block_size == 64
    assert wait_for_end(qtbot, application) == undisturbed
    assert was_busy == [True, True]
    assert "Block size 16 → 64" in [m.text for m in application.charts.itl.marks]


@pytest.mark.slow
def test_the_cache_goes_to_8_bits_and_back_in_mid_reply(
    qtbot: QtBot, application: Application, pace: Pace
) -> None:
    pace.seconds = 0.4  # its 80 tokens outlast three changes and what the window needs to show them
    panel, strip = application.engine_settings, application.strip
    row = panel.rows["kv_cache_dtype"]
    control, label = row.control, SETTINGS["kv_cache_dtype"].label
    assert isinstance(control, ChoiceControl) and control.accessibleName() == label
    titles = {control.itemData(i): control.itemText(i) for i in range(control.count())}
    assert list(titles)[:3] == ["auto", "fp8", "int8"] and len(titles) == 9
    assert titles["k=int8,v=fp8"] == "K INT8, V FP8"
    sizes: list[int] = []
    application.bridge.snapshot.connect(lambda s: sizes.append(s.memory.plan.num_blocks))
    ask(application, LONG, max_tokens=200)
    for name, words in (("int8", "KV INT8"), ("k=int8,v=auto", "K INT8, V FP32"), ("auto", "FP32")):
        wait_for_tokens(qtbot, application, len(reply(application).text.split()) + 3)
        control.setFocus()
        control.setCurrentIndex(control.findData(name))
        control.activated.emit(control.currentIndex())
        assert row.hint.startswith("Pending ")
        with qtbot.waitSignal(application.bridge.reconfigured, timeout=REPLY_MS):
            panel.commands.apply()
        assert application.bridge.config is not None
        assert application.bridge.config.kv_cache_dtype == name
        qtbot.waitUntil(lambda words=words: words in strip.title, timeout=5000)
        assert reply(application).state is State.STREAMING
    pace.seconds = 0.0
    wait_for_end(qtbot, application)
    assert reply(application).state is State.COMPLETE
    assert "KV" not in strip.title and len(set(sizes)) == 1  # all that its requests can use
    texts = [mark.text for mark in application.charts.itl.marks]
    assert [text.startswith(label) for text in texts] == [True] * 3


@pytest.mark.slow
def test_a_cache_that_does_not_fit_is_refused_and_the_reply_goes_on(
    qtbot: QtBot, application: Application
) -> None:
    ask(application, LONG)
    wait_for_tokens(qtbot, application, 4)
    panel = application.engine_settings
    row = panel.rows["kv_cache_memory_bytes"]
    room = panel.machine.memory_bytes  # other programs took some of it since it was offered
    row.control.set_spec(dataclasses.replace(row.control.spec, maximum=room))
    row.control.field.setValue(row.control.field.maximum())
    with qtbot.waitSignal(application.bridge.reconfigure_failed, timeout=REPLY_MS):
        panel.commands.apply()
    assert row.hint_tone == "error" and "GiB" in row.hint and row.value() is None
    wait_for_end(qtbot, application)
    assert reply(application).state is State.COMPLETE


@pytest.mark.slow
def test_several_chats_share_the_steps(qtbot: QtBot, application: Application) -> None:
    for _ in range(3):
        ask(application, LONG, max_tokens=64)
    states: set[str] = set()
    application.bridge.snapshot.connect(lambda s: states.add(f"{s.num_running} running"))
    chat = application.pages.chat
    qtbot.waitUntil(lambda: not any(c.open_replies for c in chat.conversations), timeout=REPLY_MS)
    assert "3 running" in states
    assert len({c.path()[-1].text for c in chat.conversations}) == 1


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_is_refused_in_its_place(
    qtbot: QtBot, application: Application
) -> None:
    """By the engine; the message box keeps one that was written there."""
    page, text = application.pages.chat_page, "word " * 4000
    ask(application, text)
    assert page.draft.use.is_too_long and page.composer.text == text
    assert not application.pages.chat.current.path()
    page.send(text)
    wait_for_end(qtbot, application)
    error = reply(application).error
    assert reply(application).state is State.ERROR and error is not None
    assert "2,048" in str(error)
