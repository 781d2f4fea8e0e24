"""A broadcast in the window: over a scripted engine, and once over the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.features.compare.broadcast_view import LEAST_WIDTH, MOST, BroadcastView
from app.features.compare.replies import Reply, Stage, name_of, totals_text
from app.features.compare.requests import lines, seeds
from app.main.application import Application
from app.storage.run_records import Kind
from app.storage.run_records import State as RunState
from engine import messages
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, RequestTimes, TokenEvent
from tests.app.fakes import FakeEngineThread, Script
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import application

__all__ = ["application", "parts"]

OPENS = "/models/tiny"

PARAMS = SamplingParams(seed=5)


def event(at: float, count: int, *, end: FinishReason | None = None) -> messages.OutputEvent:
    times = RequestTimes(0.0, 0.0, (TokenEvent(1.0, 1), TokenEvent(3.0, 4)), 3.0) if end else None
    return messages.OutputEvent(
        "r", "x " * count, tuple(range(count)), at, 0, 2, 0, finish_reason=end, times=times
    )


def test_every_reply_and_all_together_are_measured() -> None:
    first, second = (Reply(f"r{n}", "p", PARAMS, n, sent=0.0) for n in (1, 2))
    assert first.stage is Stage.QUEUED and totals_text([]) == "0 tokens in 0 s"
    first.add(event(1.0, 1), "m")
    assert first.stage is Stage.GENERATING and first.ttft_s == 1 and first.tokens_per_s is None
    first.add(event(2.0, 2), "m")
    assert first.tokens_per_s == 2.0 and "decode 2.00 tok/s" in first.summary
    both = totals_text([first, second])
    assert "1 generating, 1 queued" in both and "1.50 tok/s total (2.00 per reply)" in both
    assert "3 tokens in 2 s" in both
    second.add(event(3.0, 5, end=FinishReason.LENGTH), "m")
    assert second.is_done and second.figures is not None
    assert second.figures.finish_reason == "length" and second.summary.count(" · ") == 3
    both = totals_text([first, second])
    assert "8 tokens in 3 s" in both and "1 finished" in both


@pytest.mark.parametrize(
    ("request_id", "name"),
    [("broadcast-5f-3", "broadcast 3"), ("compare-5f", "comparison"), ("chatcmpl-broadcast", "")],
)
def test_requests_are_named(request_id: str, name: str) -> None:
    assert name_of(request_id) == name


def test_what_is_sent() -> None:
    assert [params.seed for _, params in seeds("p", PARAMS, 3)] == [5, 6, 7]
    assert [text for text, _ in lines(" a \n\n b\nc", PARAMS, 2)] == ["a", "b"]


@pytest.fixture
def script() -> Script:
    return Script(replies=6)


@pytest.fixture
def window(parts: Parts) -> BroadcastView:
    parts.show("runs")
    parts.runs.show_form(Kind.BROADCAST)
    return parts.runs.broadcast


def in_window(application: Application) -> BroadcastView:
    application.window.commands.run("chat.broadcast")
    return application.pages.runs.broadcast


def send(window: BroadcastView, text: str, count: int) -> None:
    window.prompt.setPlainText(text)
    window.count.setValue(count)
    window.start.click()


def wait_for_end(qtbot: QtBot, window: BroadcastView) -> None:
    qtbot.waitUntil(lambda: bool(window.cells) and not window.broadcast.is_running, timeout=30_000)


def test_one_prompt_goes_to_all_at_once_and_each_is_seen(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    window = in_window(application)
    assert window.empty.isVisible() and not window.start.isEnabled()
    script.replies, script.step_s = 60, 0.02
    send(window, "Tell me", 5)
    assert "5" in window.start.text() and not window.start.isEnabled()
    snapshots: list[int] = []
    application.bridge.snapshot.connect(lambda s: snapshots.append(len(s.requests)))
    wait_for_end(qtbot, window)
    assert max(snapshots) == 5  # all in the engine together
    thread = application.bridge.engine
    assert isinstance(thread, FakeEngineThread)
    sent = [c for c in thread.commands if isinstance(c, messages.AddRequest)]
    assert [c.params.seed for c in sent] == [0, 1, 2, 3, 4]
    assert {str(c.prompt[0]["content"]) for c in sent} == {"Tell me"}  # type: ignore[index]
    for cell in window.cells:
        assert cell.text.toPlainText() == cell.reply.text != ""
        assert cell.reply.num_tokens == 60 and cell.figures.text() == cell.reply.summary
    assert "5 finished" in window.together.text() and "300 tokens in" in window.together.text()
    views = application.views
    assert views.requests.model.name(sent[1].request_id) == "broadcast 2"
    assert views.timeline.view.name(sent[1].request_id) == "broadcast 2"
    assert any("broadcast" in views.timeline.view.history.request_id(n)
               for n in views.timeline.view.history._ids)  # fmt: skip


def test_lines_are_prompts_and_one_is_kept_as_a_chat(
    qtbot: QtBot, application: Application
) -> None:
    window = in_window(application)
    window.kind.setCurrentIndex(1)
    assert not window.count.isEnabled() and str(MOST) in window.prompt.placeholderText()
    send(window, "First\n\nSecond", 1)
    wait_for_end(qtbot, window)
    assert [cell.title.text() for cell in window.cells] == ["1 · First", "2 · Second"]
    qtbot.mouseClick(window.cells[1].keep, Qt.MouseButton.LeftButton)
    chat = application.pages.chat.current
    assert [m.text for m in chat.path()] == ["Second", window.cells[1].reply.text]
    assert chat.title == "Second" and chat.path()[-1].state is State.COMPLETE
    assert chat.path()[-1].figures is not None
    application.pages.store.flush()
    stored = application.pages.store.messages(chat.id)
    assert [m.text for m in stored] == [m.text for m in chat.path()]
    application.pages.chat_page.send("And then?")  # it goes on like any other
    qtbot.waitUntil(lambda: len(chat.path()) == 4 and not chat.open_replies, timeout=5000)


@pytest.mark.slow
def test_ctrl_enter_sends_here_and_not_in_the_chat(
    qtbot: QtBot, application: Application, window: BroadcastView
) -> None:
    """The keys of a command too: Qt starts neither of two."""
    keys = application.window.commands.action("chat.regenerate").shortcut()
    assert keys.toString() == "Ctrl+Return"
    window.prompt.setPlainText("Tell me")
    window.prompt.setFocus()
    qtbot.keyClick(window.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    wait_for_end(qtbot, window)
    assert len(window.cells) == 8 and not application.pages.chat.current.path()


def test_all_are_stopped_and_what_was_written_stays(
    qtbot: QtBot, window: BroadcastView, script: Script
) -> None:
    script.replies, script.step_s = 500, 0.01
    send(window, "Tell me", 3)
    qtbot.waitUntil(lambda: all(cell.reply.text for cell in window.cells), timeout=5000)
    window.stop.click()
    wait_for_end(qtbot, window)
    assert all(cell.reply.stage is Stage.STOPPED for cell in window.cells)
    assert all(cell.keep.isEnabled() for cell in window.cells)
    assert window.start.isEnabled() and not window.stop.isEnabled()


@pytest.mark.slow
def test_escape_stops_what_is_written_and_leaves_when_nothing_is(
    qtbot: QtBot, window: BroadcastView, script: Script
) -> None:
    script.replies, script.step_s = 500, 0.01
    send(window, "Tell me", 2)
    qtbot.waitUntil(lambda: all(cell.reply.text for cell in window.cells), timeout=5000)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    wait_for_end(qtbot, window)
    assert window.isVisible() and all(cell.keep.isEnabled() for cell in window.cells)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert not window.isVisible()


def test_what_is_refused_or_cut_off_says_why(
    qtbot: QtBot, parts: Parts, window: BroadcastView, script: Script
) -> None:
    window.kind.setCurrentIndex(1)
    send(window, f"{script.rejected_prompt}\nfine", 1)
    wait_for_end(qtbot, window)
    refused, fine = window.cells
    assert "9,000 tokens" in refused.figures.text() and not refused.keep.isEnabled()
    assert fine.reply.stage is Stage.DONE
    script.replies, script.step_s = 500, 0.01
    send(window, "Tell me", 2)
    qtbot.waitUntil(lambda: all(cell.reply.text for cell in window.cells), timeout=5000)
    parts.session.unload()
    wait_for_end(qtbot, window)
    assert not window.start.isEnabled() and window.start.toolTip()


@pytest.mark.slow
def test_cells_stand_beside_each_other_as_far_as_there_is_room(
    qtbot: QtBot, application: Application
) -> None:
    window = in_window(application)
    send(window, "Tell me", 6)
    wait_for_end(qtbot, window)
    for width in (1500, 1000):
        application.window.resize(width, 700)
        qtbot.wait(20)
        rows = {cell.y() for cell in window.cells}
        room = window.replies.viewport().width()
        assert len(rows) == -(-6 // max(1, room // (LEAST_WIDTH + 8)))
        for cell in window.cells:
            assert not cell.text.horizontalScrollBar().maximum()
    send(window, "Again", 2)
    assert len(window.cells) == 2


@pytest.mark.slow
def test_a_broadcast_is_kept_as_a_run(
    qtbot: QtBot, application: Application
) -> None:
    window = in_window(application)
    send(window, "Tell me", 3)
    wait_for_end(qtbot, window)
    page = application.pages.runs
    page.show_table()
    (run,) = page.table.runs
    assert run.kind is Kind.BROADCAST and run.state is RunState.DONE
    page.table.choose(run.id)
    qtbot.waitUntil(lambda: not page.book.is_busy)
    cells = page.detail.stored.grid.cells
    assert [cell.text.toPlainText() for cell in cells] == [c.reply.text for c in window.cells]
    cells[1].keep.click()
    assert application.pages.chat.current.path()[-1].text == cells[1].reply.text


@pytest.fixture
def real_application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=60_000):
        made.startup.open_first_model({"num_threads": 1})
    yield made
    made.shutdown()


@pytest.mark.slow
def test_the_real_engine_writes_them_in_one_batch(
    qtbot: QtBot, real_application: Application
) -> None:
    application = real_application
    application.window.commands.run("chat.broadcast")
    window = application.pages.runs.broadcast
    window.max_tokens.setValue(24)
    send(window, "What is TTFT?", 4)
    wait_for_end(qtbot, window)
    assert all(cell.reply.stage is Stage.DONE and cell.reply.text for cell in window.cells)
    history = application.views.timeline.view.history

    def largest_batch() -> int:
        steps = (history.record(ordinal) for ordinal in range(history.first, history.end))
        return max((len(step.entries) for step in steps), default=0)

    # Replies come as they are written, steps with the next snapshot.
    qtbot.waitUntil(lambda: largest_batch() == 4, timeout=5000)
    window.cells[2].keep.click()
    reply = application.pages.chat.current.path()[-1]
    assert reply.text == window.cells[2].reply.text
    assert application.pages.chat.tokens.has(reply.id)
