"""The real window over a scripted engine thread: every message of the engine is shown."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QMimeData, QObject, QPoint, QPointF, QRect, QSize, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication, QImage
from PySide6.QtWidgets import QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.clients.target import LinkChanged, LinkState
from app.features.chat.conversation import State
from app.features.models.model_card import DUMMY_NOTE, STARTER_NOTE
from app.link.bridge import EngineState
from app.link.dispatcher import TextThrottle
from app.main.application import Application
from app.main.engine_status import NO_RESPONSE
from app.main.main_window import first_size
from app.paths import starter_model
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from engine.messages import EngineCrashed, LoadProgress, MadeRoom, OutputEvent, Recovered, Stalled
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import (
    application,
    next_run,
    open_model,
    script,
    send,
    set_text,
    usual_text,
    wait_idle,
)
from tests.figures import numbers
from widgets.live.strip import StatStrip
from widgets.theme.theme import load_theme

__all__ = ["application", "script", "usual_text"]


# Start and models --------------------------------------------------------------------------------


def test_the_window_opens_before_the_model_and_loads_the_starter(
    qtbot: QtBot, application: Application
) -> None:
    assert application.window.isVisible() and application.bridge.state is EngineState.EMPTY
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.startup.open_first_model({})
        assert not application.load_strip.isHidden()
    assert application.load_strip.isHidden()
    assert application.bridge.config is not None
    assert application.bridge.config.model == str(starter_model())
    assert application.strip.title.startswith("Demo model")
    assert application.pages.chat_page.model_notice.text().startswith(STARTER_NOTE)


def test_the_models_page_begins_with_the_open_model(
    qtbot: QtBot, application: Application
) -> None:
    page, window = application.pages.models_place.page, application.window
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.startup.open_first_model({})
    window.show_widget(application.pages.models_place)
    assert page.source is not None and page.source.path == str(starter_model())
    other = next(s for s in page.library.list.sources if s.path != str(starter_model()))
    page.library.list.choose(other)
    window.show_widget(application.pages.chat_page)
    window.show_widget(application.pages.models_place)
    assert page.source == other  # the user's choice stays


@pytest.mark.slow
def test_random_weights_are_called_so(qtbot: QtBot, application: Application) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open("/shapes/x", "dummy")
    assert application.pages.chat_page.model_notice.text().startswith(DUMMY_NOTE)
    open_model(qtbot, application)
    assert application.pages.chat_page.model_notice.text() == ""


@pytest.mark.slow
def test_a_cache_that_became_smaller_is_told_of(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    bridge = application.bridge
    assert bridge.model is not None and bridge.plan is not None
    plan = dataclasses.replace(bridge.plan, num_blocks=102)
    thread = bridge.engine
    assert isinstance(thread, FakeEngineThread)
    thread.on_event(MadeRoom("The memory ran out in a step. 128 → 102 blocks.", bridge.model, plan))
    qtbot.waitUntil(lambda: application.notices.notice("room") is not None)
    notice = application.notices.notice("room")
    assert notice is not None and "128 → 102" in notice.cause and "other programs" in notice.remedy
    assert bridge.plan.num_blocks == 102 and bridge.state is EngineState.READY
    thread.on_event(MadeRoom("It ran out in 2 steps. 128 → 81 blocks.", bridge.model, plan, 2))
    kept = application.history
    told = lambda: [r.notice.cause for r in kept.records if r.notice.key == "room"]
    qtbot.waitUntil(lambda: told() == ["It ran out in 2 steps. 128 → 81 blocks."])


@pytest.mark.slow
def test_a_step_that_was_not_launched_ahead_is_told_of_apart(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    bridge = application.bridge
    assert bridge.model is not None and bridge.plan is not None
    thread = bridge.engine
    assert isinstance(thread, FakeEngineThread)
    for times in (1, 2):
        text = f"It did not suffice {times} times."
        thread.on_event(MadeRoom(text, bridge.model, bridge.plan, times, is_smaller=False))
    kept = application.history
    told = lambda: [r.notice.cause for r in kept.records if r.notice.key == "ahead"]
    qtbot.waitUntil(lambda: told() == ["It did not suffice 2 times."])
    notice = application.notices.notice("ahead")
    assert notice is not None and "smaller" not in notice.remedy
    assert application.notices.notice("room") is None


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "shown"), [(3, [3]), (0, [])])
def test_a_lost_connection_counts_the_attempts(
    application: Application, attempt: int, shown: list[float]
) -> None:
    bridge = application.bridge
    bridge.attach(FakeEngineThread)
    cause = "Cannot reach h: port 8000 is closed."
    bridge.take_answer(LinkChanged(LinkState.RECONNECTING, time.perf_counter(), cause, attempt))
    assert numbers(application.strip.state[0]) == shown


@pytest.mark.parametrize("percent", (100, 160))
def test_loading_does_not_move_the_page(
    qtbot: QtBot, application: Application, script: Script, percent: int
) -> None:
    set_text(qtbot, application, percent)
    stack, strip = application.window.stack, application.load_strip
    place = lambda: QRect(stack.mapTo(application.window, QPoint()), stack.size())
    before = place()
    script.load_steps, script.load_step_s = 100_000, 0.005
    application.session.open("/models/slow")
    qtbot.waitUntil(lambda: "of" in strip._figures.text(), timeout=3000)
    assert strip.isVisible() and strip.height() >= strip.minimumSizeHint().height()
    assert place() == before
    with qtbot.waitSignal(application.bridge.load_failed, timeout=3000):
        strip.buttons[0].click()


def test_loading_can_be_cancelled(qtbot: QtBot, application: Application, script: Script) -> None:
    script.load_steps, script.load_step_s = 100_000, 0.005
    application.session.open("/models/slow")
    qtbot.waitUntil(lambda: "of" in application.load_strip._figures.text(), timeout=3000)
    with qtbot.waitSignal(application.bridge.load_failed, timeout=3000):
        application.load_strip.buttons[0].click()
    assert application.load_strip.isHidden()
    notice = application.notices.notice("load")
    assert notice is not None and notice.kind == "info" and not notice.remedy


def test_a_broken_model_is_explained_where_it_happened(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.broken_models = ("broken",)
    with qtbot.waitSignal(application.bridge.load_failed, timeout=3000):
        application.session.open("/models/broken", settings={"block_size": 8})
    notice = application.notices.notice("load")
    assert notice is not None and notice.kind == "error"
    assert "12 of 4,096 bytes" in notice.cause and notice.remedy == "Download the file again."
    frame = application.notices.frame("load")
    copy = next(b for b in frame.findChildren(QPushButton) if b.text() == "Copy details")
    copy.click()
    assert "12 of 4,096 bytes" in QGuiApplication.clipboard().text()
    assert [button.text() for button in frame.buttons] == ["Load with defaults", "Open a model…"]
    script.broken_models = ()
    with qtbot.waitSignal(application.bridge.loaded, timeout=3000):
        frame.buttons[0].click()
    assert application.notices.keys == []
    assert application.bridge.config is not None and application.bridge.config.block_size == 16


def test_unload_empties_and_open_fills_again(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    with qtbot.waitSignal(application.bridge.unloaded, timeout=3000):
        application.window.commands.run("model.unload")
    assert not application.engine_settings.rows["block_size"].isEnabled()
    assert not application.window.commands.action("model.unload").isEnabled()
    open_model(qtbot, application)
    assert application.engine_settings.rows["block_size"].isEnabled()


def test_recent_models_are_in_the_menu_and_their_settings_come_back(
    qtbot: QtBot, application: Application, tmp_path: Path
) -> None:
    open_model(qtbot, application, str(tmp_path))
    panel = application.engine_settings
    panel.rows["max_num_seqs"].control.field.setValue(48)
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        pass
    open_model(qtbot, application, "/models/other")
    assert panel.rows["max_num_seqs"].value() == 16
    recent = application.switcher.choices()[:2]
    assert [entry.text for entry in recent] == ["other", tmp_path.name]
    with qtbot.waitSignal(application.bridge.loaded, timeout=3000):
        application.switcher.chosen.emit(recent[1].id)
    assert panel.rows["max_num_seqs"].value() == 48


@pytest.mark.slow
def test_a_dropped_folder_is_looked_at_before_it_is_loaded(
    qtbot: QtBot, application: Application, tmp_path: Path
) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(tmp_path))])
    event = QDropEvent(
        QPointF(QPoint(5, 5)), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    application.window.dropEvent(event)
    models = application.pages.models
    assert models.isVisible() and models.source is not None
    assert models.source.path == str(tmp_path)
    qtbot.waitUntil(lambda: "model folder" in models.detail.card.verdict, timeout=60_000)
    assert not models.detail.primary.isEnabled()


# Chat --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parallel_replies_are_shown_and_counted(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.replies, script.step_s = 100_000, 0.005
    open_model(qtbot, application)
    send(qtbot, application, "first question")
    send(qtbot, application, "second question")
    qtbot.waitUntil(lambda: application.strip.state[0].startswith("2 running"))
    script.replies = 20  # both end with their next word
    wait_idle(qtbot, application)
    chat = application.pages.chat
    assert len(chat.conversations) == 2
    for conversation in chat.conversations:
        reply = conversation.path()[-1]
        assert reply.state is State.COMPLETE and reply.figures is not None
        assert len(reply.text.split()) == reply.figures.num_tokens >= 20


class FirstPaint(QObject):
    """Times from the commit of a first token to the end of the paint that shows it."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self.delays: list[float] = []
        self._committed: float | None = None
        self._transcript = application.pages.chat_page.transcript
        application.bridge.outputs.connect(self._on_outputs)
        QApplication.instance().installEventFilter(self)  # type: ignore[union-attr]

    def _on_outputs(self, events: list[OutputEvent]) -> None:
        self._committed = next((e.time for e in events if e.is_first), self._committed)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if (
            event.type() == QEvent.Type.Paint
            and self._committed is not None
            and isinstance(watched, QWidget)
            and self._transcript.isAncestorOf(watched)
        ):
            self.delays.append(time.perf_counter() - self._committed)
            self._committed = None
        return False

    def stop(self) -> None:
        QApplication.instance().removeEventFilter(self)  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_first_token_is_painted_without_waiting_for_a_timer(
    qtbot: QtBot, application: Application, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextThrottle, "interval_ms", 120_000)
    script.replies, script.step_s = 12, 0.004
    open_model(qtbot, application)
    paints = FirstPaint(application)
    for number in range(3):
        application.pages.chat_page.send(f"question {number}")
        qtbot.waitUntil(lambda n=number: len(paints.delays) > n, timeout=3000)  # type: ignore[misc]
        wait_idle(qtbot, application)
    paints.stop()
    assert max(paints.delays) < 30.0  # 10 to 20 ms where nothing else runs; the timer: 120 s


def test_a_crash_leaves_the_chats_and_the_engine_can_be_restarted(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    send(qtbot, application, "an ordinary question")
    wait_idle(qtbot, application)
    application.pages.chat_page.new_chat()
    with qtbot.waitSignal(application.bridge.crashed, timeout=3000):
        application.pages.chat_page.send("crash please")
    notice = application.notices.notice("engine")
    assert notice is not None and "the script says so" in notice.cause
    assert "Traceback" in notice.details
    assert len(application.pages.chat.conversations) == 2
    with qtbot.waitSignal(application.bridge.loaded, timeout=3000):
        application.notices.frame("engine").buttons[0].click()
    assert application.notices.keys == []
    send(qtbot, application, "after the restart")
    wait_idle(qtbot, application)
    assert application.pages.chat.current.path()[-1].state is State.COMPLETE


def test_a_stuck_engine_is_shown_and_can_be_restarted(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    bridge, notices = application.bridge, application.notices
    before = ("Ready", "idle")
    qtbot.waitUntil(lambda: application.strip.state == before)
    for seconds in (6.0, 12.0):
        bridge.on_event(Stalled("step of 9 tokens", seconds))
        qtbot.waitUntil(lambda s=seconds: bridge.stalled == Stalled("step of 9 tokens", s))  # type: ignore[misc]
        notice = notices.notice("engine")
        assert notice is not None and numbers(notice.cause) == [seconds, 9]
        assert application.strip.state == NO_RESPONSE
    bridge.on_event(Recovered(13.0))
    qtbot.waitUntil(lambda: bridge.stalled is None)
    assert notices.notice("engine") is None and application.strip.state == before
    bridge.on_event(Stalled("step of 9 tokens", 6.0))
    qtbot.waitUntil(lambda: notices.notice("engine") is not None)
    with qtbot.waitSignal(bridge.loaded, timeout=3000):
        notices.frame("engine").buttons[0].click()
    assert bridge.stalled is None and notices.keys == []
    assert application.strip.state != NO_RESPONSE


@pytest.mark.slow
def test_a_restart_of_a_stuck_engine_ends_its_replies(
    qtbot: QtBot, application: Application
) -> None:
    open_model(qtbot, application)
    bridge = application.bridge
    bridge.on_event(Stalled("step of 9 tokens", 6.0))
    with qtbot.waitSignal(bridge.crashed, timeout=3000):
        bridge.on_event(EngineCrashed(ErrorInfo("It hung.", ""), "", is_restarting=True))
    assert bridge.stalled is None and bridge.state is EngineState.LOADING
    assert application.notices.keys == []  # the load that follows says how it goes


# The window itself -------------------------------------------------------------------------------


def test_the_theme_paints_pixels_and_is_remembered(qtbot: QtBot, application: Application) -> None:
    window = application.window
    for mode in ("light", "dark"):
        window.commands.run(f"theme.{mode}")
        image: QImage = window.grab().toImage()
        assert image.pixelColor(2, image.height() - 2).name() == load_theme(mode).window  # type: ignore[arg-type]
        assert SettingsStore().theme == mode


@pytest.mark.slow
def test_the_first_window_leaves_room_for_its_title_bar(
    qtbot: QtBot, application: Application
) -> None:
    assert first_size(QSize(1440, 900)) == QSize(1440, 860)
    assert first_size(QSize(3840, 2160)) == QSize(1600, 1000)
    window = application.window
    window.resize(1440, 860)
    for index in range(len(window.pages)):
        window.show_page(index)
        qtbot.wait(1)
        assert window.size() == QSize(1440, 860)  # no page needs more


def test_docks_close_open_and_come_back_in_the_next_run(
    qapp: QApplication, qtbot: QtBot, application: Application
) -> None:
    window = application.window
    window.commands.run("dock.live-charts")
    assert not application.charts_dock.isHidden()
    window.resize(1000, 700)
    application.shutdown()
    with next_run(qapp) as again:
        again.show()
        assert not again.charts_dock.isHidden() and again.settings_dock.isHidden()
        assert again.window.size().height() == 700  # the offscreen screen is 800 wide and high
        again.window.commands.run("docks.reset")
        assert again.charts_dock.isHidden()


@pytest.mark.slow
def test_a_floating_dock_whose_screen_is_gone_comes_home(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    application.settings_dock.setFloating(True)
    application.settings_dock.move(20_000, 20_000)
    window.dock_area.bring_home()
    assert not application.settings_dock.isFloating()


@pytest.mark.slow
def test_a_panel_behind_a_tab_comes_to_the_front_before_it_closes(
    qtbot: QtBot, application: Application
) -> None:
    window, dock = application.window, application.views.blocks_dock
    window.commands.run("layout.tuning")
    window.show_page(0)
    assert not dock.isHidden() and dock.visibleRegion().isEmpty()  # behind the live charts
    for is_seen in (True, False, True):
        window.commands.run("dock.kv-blocks")
        qtbot.waitUntil(lambda seen=is_seen: dock.visibleRegion().isEmpty() is not seen)
        assert dock.isHidden() is not is_seen


def test_closing_in_mid_reply_saves_it_and_ends_the_thread(
    qapp: QApplication, qtbot: QtBot, application: Application, script: Script
) -> None:
    script.replies = 100_000
    open_model(qtbot, application)
    send(qtbot, application, "a long story")
    reply = application.pages.chat.current.path()[-1]
    qtbot.waitUntil(lambda: len(reply.text) > 200, timeout=5000)
    thread = application.bridge.engine
    application.window.close()
    application.shutdown()
    assert isinstance(thread, FakeEngineThread) and not thread.is_alive()
    with next_run(qapp) as again:
        [conversation] = again.pages.chat.conversations
        again.pages.chat.open(conversation.id)
        user, kept = conversation.path()
        assert user.text == "a long story"
        assert len(kept.text) > 200 and kept.state in (State.STOPPED, State.INTERRUPTED)


@pytest.mark.slow
def test_a_stage_of_a_load_without_an_end_shows_no_percentage(
    qtbot: QtBot, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge, strip = application.bridge, application.window.findChild(StatStrip)
    monkeypatch.setattr(bridge, "state", EngineState.LOADING)
    for done, total, shown in ((3, 4, [75]), (0, 0, [])):
        bridge.load_progress.emit(LoadProgress("a stage", done, total))
        assert numbers(strip.state[0]) == shown
