"""The blocks, steps, requests and latencies of the real engine are those on the screen."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.main.application import Application
from tests.app.real_window import LONG, REPLY_MS, application, pace, wait_for_end, wait_for_tokens
from tests.app.window_fixtures import ask, reply

__all__ = ["application", "pace"]


@pytest.mark.slow
def test_the_block_map_shows_what_the_engine_holds(qtbot: QtBot, application: Application) -> None:
    application.window.show_page_named("Inspect")  # with room for a square per block
    assert application.pages.inspect.show_view("kv-blocks")
    panel = application.views.kv_blocks
    ask(application, LONG, max_tokens=400)
    wait_for_tokens(qtbot, application, 5)
    qtbot.waitUntil(lambda: bool(panel.map.blocks and panel.map.blocks.owners))
    blocks = panel.map.blocks
    assert blocks is not None and blocks.owners == (reply(application).id,)
    panel.map.point_at(blocks.tables[0][0])
    assert f"“{LONG}”" in panel.line.text()
    qtbot.waitUntil(lambda: "Write the alphabet" in panel.text.text(), timeout=5000)
    wait_for_end(qtbot, application)
    qtbot.waitUntil(lambda: bool(panel.map.blocks and panel.map.blocks.num_cached), timeout=5000)
    qtbot.waitUntil(lambda: "cached" in panel.line.text(), timeout=5000)
    application.bridge.unload()
    qtbot.waitUntil(lambda: panel.map.blocks is None, timeout=5000)


@pytest.mark.slow
def test_the_timeline_shows_the_steps_of_the_engine(
    qtbot: QtBot, application: Application
) -> None:
    application.views.timeline_dock.bring_to_front()
    history = application.views.timeline.view.history
    ask(application, LONG, max_tokens=40)
    first = reply(application).id
    ask(application, "Count to ten.", max_tokens=20)
    wait_for_end(qtbot, application)
    qtbot.waitUntil(lambda: not application.pages.chat.conversations[-1].open_replies,
                    timeout=REPLY_MS)  # fmt: skip
    qtbot.waitUntil(
        lambda: history.end > 0 and first in history.record(history.end - 1).finished, timeout=5000
    )  # steps come with the next snapshot, which the words did not wait for
    names = {
        history.request_id(int(number)) for number in history.cells(history.first, history.end)[1]
    }
    assert names == {first, reply(application).id}
    shared = [o for o in range(history.first, history.end) if len(history.record(o).entries) == 2]
    assert shared  # continuous batching: both were served by the same steps
    application.views.timeline.view.point_at(shared[-1])
    assert f"“{LONG}”: decode" in application.views.timeline.batch.text()
    assert "2 decode tokens" in application.views.timeline.line.text()


@pytest.mark.slow
def test_a_request_can_be_aborted_from_the_table(qtbot: QtBot, application: Application) -> None:
    views = application.views
    views.requests_dock.bring_to_front()
    panel = views.requests
    ask(application, LONG, max_tokens=400)
    wait_for_tokens(qtbot, application, 5)
    running = reply(application).id
    qtbot.waitUntil(lambda: panel.model.row_of(running) is not None, timeout=5000)
    panel.select(running)
    assert panel.model.data(panel.model.index(0, 0)) == LONG
    qtbot.waitUntil(lambda: bool(panel.selected and panel.selected.state == "decode"), timeout=5000)
    qtbot.mouseClick(panel.blocks_button, Qt.MouseButton.LeftButton)
    assert views.kv_blocks.map.chosen_owner == running
    qtbot.mouseClick(panel.abort_button, Qt.MouseButton.LeftButton)
    wait_for_end(qtbot, application)
    assert reply(application).state is State.STOPPED
    qtbot.waitUntil(lambda: bool(panel.selected and panel.selected.state == "aborted"))
    assert panel.selected is not None
    assert panel.selected.ttft_s is not None and panel.selected.num_blocks == 0
    times = panel.model.times[running]
    last = times.tokens[-1].time
    between = views.timeline.view.history.between
    qtbot.waitUntil(lambda: bool(between(last - 1e-3, last)), timeout=5000)
    qtbot.mouseClick(panel.latency_button, Qt.MouseButton.LeftButton)
    shown = views.latency.view._latency
    assert views.latency.isVisible() and shown is not None
    assert len(shown.gaps) == len(times.tokens) - 1 and all(gap.steps for gap in shown.gaps)
    assert LONG[:20] in views.latency.title.text()
    views.latency.view.chart.point_at(0)
    views.latency.view.show_step.click()
    assert views.latency.isHidden() and views.timeline.isVisible()
    timeline = views.timeline.view
    assert timeline.history.record(timeline.pointed_index) is shown.gaps[0].steps[-1]


@pytest.mark.slow
def test_a_reply_says_where_its_time_went(qtbot: QtBot, application: Application) -> None:
    page, views = application.pages.chat_page, application.views
    ask(application, "What is TTFT?", max_tokens=32)
    text = wait_for_end(qtbot, application)
    message = reply(application)
    figures, times = message.figures, application.pages.chat.times.of(message.id)
    assert text and figures is not None and times is not None
    last = times.tokens[-1].time
    between = views.timeline.view.history.between
    qtbot.waitUntil(lambda: bool(between(last - 1e-3, last)), timeout=5000)
    view = page.transcript.view(message.id)
    assert view is not None and view.latency.isVisible()
    qtbot.mouseClick(view.latency, Qt.MouseButton.LeftButton)
    inspector = page.inspector.view
    assert page.inspector.chosen == message.id and inspector.latency.isVisible()
    shown = inspector.latency._latency
    assert shown is not None and all(gap.steps for gap in shown.gaps)
    assert shown.ttft_s * 1e3 == pytest.approx(figures.ttft_ms)
    prefilled = [stretch for stretch in shown.stretches if stretch.num_tokens]
    assert sum(s.num_tokens + s.num_cached for s in prefilled) == figures.num_prompt_tokens
    assert sum(gap.num_tokens for gap in shown.gaps) == figures.num_tokens - 1
    assert all(gap.steps for gap in shown.gaps)
    inspector.latency.chart.point_at(0)
    inspector.latency.show_step.click()
    timeline = views.timeline.view
    assert timeline.history.record(timeline.pointed_index) is shown.gaps[0].steps[-1]
    assert views.timeline.isVisible() and application.pages.inspect.current == "step-timeline"
    page.new_chat()  # has no such reply
    assert page.inspector.chosen == "" and not inspector.latency.isVisible()
