"""The real window with the real engine and the starter model."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.link.bridge import EngineBridge
from app.main.application import Application
from engine import messages
from engine.config import SETTINGS
from tests import ROOT
from tests.app.window_fixtures import ask, reply
from widgets.controls.setting_row import ChoiceControl
from widgets.tokens.record import Origin

LONG = "Write the alphabet three times."
LOAD_MS, REPLY_MS = 120_000, 120_000


@dataclass
class Pace:
    """What every token takes."""

    seconds: float


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.015) -> Pace:
    """Make every token take `seconds`, and the more so while the window is busy with those before,
    so that "in mid-reply" is that on any machine. For windows that are made after this."""
    deliver = EngineBridge.on_event
    pace = Pace(seconds)

    def late(bridge: EngineBridge, event: messages.Event) -> None:
        if isinstance(event, messages.OutputEvent):
            time.sleep(pace.seconds)
            until = time.monotonic() + 2.0
            inbox = bridge.dispatcher.inbox
            while len(inbox) > 8 and not bridge._closed and time.monotonic() < until:
                time.sleep(0.005)
        deliver(bridge, event)

    monkeypatch.setattr(EngineBridge, "on_event", late)
    return pace


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    return slow_down(monkeypatch)


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, pace: Pace) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model({"num_threads": 1})
    yield made
    made.shutdown()


@pytest.fixture
def make_next(qapp: QApplication, qtbot: QtBot) -> Iterator[Callable[[], Application]]:
    """Starts the program once more, over what a run before has left."""
    made: list[Application] = []

    def make() -> Application:
        made.append(Application(qapp))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def wait_for_tokens(qtbot: QtBot, application: Application, count: int) -> None:
    qtbot.waitUntil(lambda: len(reply(application).text.split()) >= count, timeout=REPLY_MS)


def wait_for_end(qtbot: QtBot, application: Application) -> str:
    qtbot.waitUntil(lambda: not application.pages.chat.is_busy, timeout=REPLY_MS)
    return reply(application).text


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
    qtbot.waitUntil(lambda: text in page.draft._counts, timeout=5000)
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


def test_a_cache_that_does_not_fit_is_refused_and_the_reply_goes_on(
    qtbot: QtBot, application: Application
) -> None:
    ask(application, LONG)
    wait_for_tokens(qtbot, application, 4)
    panel = application.engine_settings
    row = panel.rows["kv_cache_memory_bytes"]
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
    ask(application, "word " * 4000)
    wait_for_end(qtbot, application)
    error = reply(application).error
    assert reply(application).state is State.ERROR and error is not None
    assert "2,048" in str(error)


@pytest.mark.slow
def test_closing_in_mid_reply_is_quick_and_keeps_the_text(
    qtbot: QtBot, application: Application, make_next: Callable[[], Application]
) -> None:
    ask(application, LONG, max_tokens=1000)
    wait_for_tokens(qtbot, application, 5)
    began = time.monotonic()
    application.window.close()
    application.shutdown()
    assert time.monotonic() - began < 60  # a second or two, on a machine that is not busy
    chat = make_next().pages.chat
    chat.open(chat.conversations[0].id)
    question, kept = chat.current.path()
    assert question.text == LONG and len(kept.text.split()) >= 5
    assert kept.state in (State.STOPPED, State.INTERRUPTED)


# In a process of its own -------------------------------------------------------------------------

TALKER = """
import sys, time
from PySide6.QtCore import QTimer
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.main.start import make_application
from engine.messages import OutputEvent
deliver, outputs = EngineBridge.on_event, []
def late(bridge, event):  # some words soon, then so slowly that the reply does not end
    if isinstance(event, OutputEvent):
        outputs.append(event)
        time.sleep(0.03 if len(outputs) < 12 else 1.0)
    deliver(bridge, event)
EngineBridge.on_event = late
app = make_application()
application = Application(app)
application.show()
chat = application.pages.chat
def look():
    stored = chat._store.messages(chat.current.id)
    if stored and stored[-1].role == "assistant" and len(stored[-1].text.split()) > 5:
        timer.stop()
        print("saved", flush=True)
def loaded(event):
    chat.set_sampling("temperature", 0.0)
    application.pages.chat_page.send(LONG)
    timer.start(50)
timer = QTimer()
timer.timeout.connect(look)
application.bridge.loaded.connect(loaded)
application.startup.open_first_model({"num_threads": 1})
app.exec()
""".replace("LONG", repr(LONG))


@pytest.mark.slow
def test_a_killed_process_loses_only_the_tail_of_the_reply(
    make_next: Callable[[], Application],
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TALKER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "saved"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    application = make_next()
    chat = application.pages.chat
    [conversation] = chat.conversations
    chat.open(conversation.id)
    question, kept = conversation.path()
    assert question.text == LONG
    assert kept.state is State.INTERRUPTED and kept.text.startswith("a b c")
    assert application.pages.store.problem is None  # the killed process left no lock


STARTER = """
import sys
from PySide6.QtCore import QTimer
import app.main.start
from app.cli.main import main
class Application(app.main.start.Application):
    def show(self):
        super().show()
        QTimer.singleShot(0, lambda: print("shown", flush=True))
app.main.start.Application = Application
app.main.application.SHUTDOWN_S = float(sys.argv[1])
sys.exit(main(["--num-threads", "1"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shutdown_s", [20.0, 0.0])  # 0: the engine's thread still imports
def test_control_c_closes_the_window_and_ends_well(shutdown_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(shutdown_s)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == "shown"
        process.send_signal(signal.SIGINT)  # while the engine is being imported and loaded
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()  # where it has not ended by itself
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


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
    assert panel.selected.ttft_ms is not None and panel.selected.num_blocks == 0
    times = panel.model.times[running]
    last = times.tokens[-1].time
    qtbot.waitUntil(lambda: bool(views.steps_between(last - 1e-3, last)), timeout=5000)
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
    qtbot.waitUntil(lambda: bool(views.steps_between(last - 1e-3, last)), timeout=5000)
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
