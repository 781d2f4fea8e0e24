"""Engines that the window runs, with the scripted vLLM as a real process."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.clients.target import ServerType
from app.features.chat.conversation import State as ReplyState
from app.features.serve import beside
from app.features.serve.launch_form import LaunchForm
from app.features.serve.launch_panel import APPLY, RUNNING, START
from app.features.serve.managed import ManagedEngines
from app.features.serve.managed_card import ManagedCard
from app.features.serve.page import OTHERS, ServerPage
from app.features.serve.switch import use_id
from app.main.application import Application
from app.main.engine_status import LOADED
from app.managed.command import is_taken
from app.managed.launch import Launch, Place
from app.managed.process import State
from tests.app.clients.test_traces import double, send, spans, text
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.managed.conftest import engine_of as managed_engine
from tests.app.managed.conftest import make_environment
from tests.app.window_fixtures import application, reply, script

__all__ = ["application", "ring", "script"]
WAIT_MS = 30_000


@pytest.fixture
def page(application: Application, ring: MemoryKeyring) -> ServerPage:
    page = application.pages.server
    application.window.show_widget(page)
    page.show_tab(OTHERS)
    return page


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(interpreter=str(make_environment(tmp_path / "venv")), model="/models/starter")


def run(qtbot: QtBot, page: ServerPage, launch: Launch) -> str:
    """Start an engine from its form, until the window uses it; its connection id."""
    panel = page.connections.launches
    page.run_with(launch.model)
    panel.form.show_launch("", launch)
    with qtbot.waitSignal(panel.started) as started:
        panel.start.click()
    known: str = started.args[0]
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    return known


def engine_of(page: ServerPage, known: str) -> psutil.Process:
    """The engine's own process, below its supervisor."""
    return managed_engine(page.engines._processes[known])


def test_a_started_engine_is_used_and_ends_with_stop(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    assert reply(application).text == "word0 word1 word2 word3 word4 "
    connection, card = page.store.find(known), page.cards.cards[known]
    assert connection is not None and isinstance(card, ManagedCard)
    assert page.switch.is_elsewhere and connection.server_type is ServerType.VLLM
    assert not card.use.isEnabled() and card.stop.isEnabled()
    page.cards.show_log(known)
    view = page.cards.log.view
    qtbot.waitUntil(lambda: "Application startup complete." in view.toPlainText())
    port = int(connection.base_url.rpartition(":")[2])
    card.stop.click()
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)
    assert page.engines.status(known).error is None and not is_taken(port)
    qtbot.waitUntil(lambda: not page.switch.is_elsewhere)
    qtbot.waitUntil(lambda: not card.stop.isEnabled())  # from another thread
    assert not card.use.isEnabled()


def test_a_traced_engine_reports_the_queue_and_the_prefill_of_a_reply(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, replace(launch, traces=True))
    connection = page.store.find(known)
    assert connection is not None
    port = page.store.target(connection).traces_port
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    before = reply(application).figures
    assert before is not None and before.ttft_ms is not None and before.queue_ms is None
    prefill_ms = before.ttft_ms / 4
    send(port, spans(text("c"), double(prefill_ms / 1e3)))
    qtbot.waitUntil(lambda: reply(application).figures != before, timeout=WAIT_MS)
    after = reply(application).figures
    assert after is not None and after.prefill_ms == pytest.approx(prefill_ms)
    generation = application.pages.chat.generation
    qtbot.waitUntil(lambda: not generation._causes._replies, timeout=WAIT_MS)
    record = generation.record_of(reply(application).id)
    assert record is not None and record.times.queue_s == pytest.approx(3 * prefill_ms / 1e3)


def test_the_command_of_a_stopped_engine_starts_it_and_uses_it(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = page.engines.add("vLLM", launch).id
    application.window.commands.run(use_id(known))
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.engines.is_ready(known)
    qtbot.waitUntil(lambda: application.notices.keys == [LOADED], timeout=WAIT_MS)


def test_an_engine_that_starts_is_used_once_it_is_ready(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    connection = page.engines.add("vLLM", launch)
    page.engines.run(connection.id)
    page.engines.use(connection)
    qtbot.waitUntil(lambda: page.switch.used_id == connection.id, timeout=WAIT_MS)


@pytest.mark.parametrize("start_again", ["start", "apply", "restart"])
def test_an_engine_that_stops_is_started_again_once_it_has_ended(
    qtbot: QtBot, page: ServerPage, launch: Launch, start_again: str
) -> None:
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.stop(known)
    assert page.engines.status(known).state is State.STOPPING
    what = (known, launch) if start_again == "apply" else (known,)
    getattr(page.engines, start_again)(*what)
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert not first.is_running() and engine_of(page, known).is_running()


def test_a_killed_engine_is_said_within_5_s_and_restarts_at_its_address(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    before = page.store.find(known)
    engine_of(page, known).kill()
    began, key = time.monotonic(), f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    assert time.monotonic() - began < 5.0
    notice = application.notices.notice(key)
    assert notice is not None and "SIGKILL" in notice.cause
    actions = dict(notice.actions)
    assert list(actions) == ["Restart", "Show log", "Edit"]
    actions["Restart"]()
    assert application.notices.notice(key) is None
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.store.find(known) == before


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one engine only."""
    monkeypatch.setattr(beside, "has_room_beside", lambda pid: False)


def change(page: ServerPage) -> None:
    """A setting, in the form."""
    panel = page.connections.launches
    assert (panel.start.text(), panel.start.isEnabled()) == (RUNNING, False)
    panel.form.flags.values["--max-num-seqs"] = "8"
    panel.form.flags.changed.emit()
    assert panel.start.text() == APPLY
    panel.start.click()


def test_apply_starts_the_new_one_beside_the_old(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    first, address = engine_of(page, known), page.store.find(known)
    assert address is not None
    change(page)
    qtbot.waitUntil(lambda: page.engines.text(known)[0].startswith("New settings"), timeout=WAIT_MS)
    assert first.is_running() and page.engines.is_ready(known) and page.switch.used_id == known
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    assert page.engines.is_ready(known) and page.switch.used_id == known
    assert "--max-num-seqs=8" in engine_of(page, known).cmdline()
    connection = page.store.find(known)
    assert connection is not None and connection.base_url != address.base_url
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    qtbot.waitUntil(lambda: reply(application).state is ReplyState.COMPLETE, timeout=WAIT_MS)
    engine_of(page, known).kill()  # watched as the first one was
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)


def test_apply_restarts_at_the_same_address_where_memory_is_short(
    qtbot: QtBot, page: ServerPage, launch: Launch, no_room: None
) -> None:
    known = run(qtbot, page, launch)
    first, address = engine_of(page, known), page.store.find(known)
    change(page)
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    assert "--max-num-seqs=8" in engine_of(page, known).cmdline()
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    assert page.store.find(known) == address


def test_settings_that_fail_beside_leave_the_old_one_as_it_was(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"}))
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    notice = application.notices.notice(key)
    assert notice is not None and "nobodys" in notice.cause
    assert [name for name, _ in notice.actions] == ["Show log", "Edit"]
    assert any("nobodys" in line for line in page.engines.lines(known))
    assert first.is_running() and page.engines.is_ready(known) and page.switch.used_id == known
    assert page.store.launch(known) == launch


def test_a_start_beside_ends_with_its_engine(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_STEP": "30"}))
    qtbot.waitUntil(lambda: known in page.engines._beside._new, timeout=WAIT_MS)
    new = page.engines._beside._new[known]
    page.engines.stop(known)
    qtbot.waitUntil(lambda: not new.status.is_running, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)


def test_one_that_is_ready_beside_is_used_once(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    """However many moves are delivered when it is ready already: while requests drain, too."""
    known = run(qtbot, page, launch)
    first = engine_of(page, known)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_STEP": "0.1"}))
    qtbot.waitUntil(lambda: known in page.engines._beside._new, timeout=WAIT_MS)
    beside_it, ready = page.engines._beside, list[str]()
    new = beside_it._new[known]
    beside_it.ready.connect(ready.append)
    beside_it.ready.connect(lambda: [beside_it._moved.emit(known, [new]) for _ in range(3)])
    qtbot.waitUntil(lambda: page.engines._processes[known] is new, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not first.is_running(), timeout=WAIT_MS)
    assert ready == [known]


def test_settings_that_fail_offer_those_of_before(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch, no_room: None
) -> None:
    known = run(qtbot, page, launch)
    page.engines.apply(known, replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"}))
    key = f"managed-{known}"
    qtbot.waitUntil(lambda: application.notices.notice(key) is not None, timeout=WAIT_MS)
    notice = application.notices.notice(key)
    assert notice is not None
    dict(notice.actions)["Use previous settings"]()
    qtbot.waitUntil(lambda: page.engines.is_ready(known), timeout=WAIT_MS)
    assert page.store.launch(known) == launch


def test_the_engine_of_before_stays_where_a_start_fails(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    wrong = replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"})
    known = page.engines.add("wrong", wrong).id
    page.engines.start(known)
    qtbot.waitUntil(lambda: page.engines.status(known).error is not None, timeout=WAIT_MS)
    assert not page.switch.is_elsewhere
    text, kind = page.engines.text(known)
    assert kind == "error"
    qtbot.waitUntil(lambda: page.cards.cards[known].state.text() == text)  # from another thread


def test_what_cannot_be_started_is_said(
    qtbot: QtBot, page: ServerPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    known = page.engines.add("box", Launch(place=Place.CONTAINER, image="x", model="m")).id
    page.engines.start(known)
    status = page.engines.status(known)
    assert status.state is State.ENDED and status.error is not None
    assert "docker" in status.error.cause


def test_a_deleted_engine_stops_and_undo_brings_its_settings_back(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    known = run(qtbot, page, launch)
    page.connections.choose(known)
    page.connections.delete()
    qtbot.waitUntil(lambda: not page.engines.is_running(known), timeout=WAIT_MS)
    page.toast.act()
    assert page.store.launch(known) == launch and known in page.cards.cards
    assert page.connections.launches.start.text() == START


def test_it_is_remembered(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = page.engines.add("mine", launch).id
    assert application.settings.launches == {known: launch}


def test_settings_come_from_the_engines_own_parser(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    page.run_with("/models/starter")
    panel = page.connections.launches
    form, flags = panel.form, panel.form.flags
    form.python.setEditText(launch.interpreter)
    form.place_edited.emit()
    qtbot.waitUntil(lambda: flags.flags is not None, timeout=WAIT_MS)
    assert "--tensor-parallel-size" in flags.rows and "--port" not in flags.rows
    flags.search.setText("eager")
    qtbot.waitUntil(lambda: list(flags.rows) == ["--enforce-eager"])
    row = flags.rows["--enforce-eager"]
    row.value_changed.emit(row.spec.name, "--no-enforce-eager")
    flags.search.setText("dtype")
    qtbot.waitUntil(lambda: "--dtype" in flags.rows)
    flags.rows["--dtype"].value_changed.emit("--dtype", "float32")
    assert form.launch.settings == {"--no-enforce-eager": "", "--dtype": "float32"}
    flags.rows["--dtype"].reset_wanted.emit("--dtype")
    assert form.launch.settings == {"--no-enforce-eager": ""}
    flags.search.setText("--made-up=3")
    flags.search.returnPressed.emit()
    assert form.launch.settings["--made-up"] == "3" and "--made-up" in flags.problem
    assert flags.rows["--made-up"].hint_tone == "error"
    panel.start.click()  # refused
    assert page.store.connections == []


def test_wrong_fields_are_marked(qtbot: QtBot, page: ServerPage, tmp_path: Path) -> None:
    panel = page.connections.launches
    page.run_with("")
    panel.form.show_launch("", Launch(interpreter=str(tmp_path)))
    panel.form.environment.setText("not a variable")
    panel.apply()
    wrong = {name for name, (field, _) in panel.form.fields.items() if field.has_problem}
    assert wrong == {"model", "interpreter", "environment"}
    assert page.store.connections == []


@pytest.mark.parametrize(
    ("launch", "shown"),
    [
        (Launch(), {"interpreter"}),
        (Launch(place=Place.SSH), {"host", "interpreter"}),
        (Launch(place=Place.CONTAINER), {"image"}),
        (Launch(kind=ServerType.OPENAI, command="x {port}"), {"command"}),
    ],
)
def test_fields_follow_the_engine_and_the_place(
    qtbot: QtBot, launch: Launch, shown: set[str]
) -> None:
    form = LaunchForm()
    qtbot.addWidget(form)
    form.show_launch("", launch)
    always = {"name", "model", "environment"}
    fields = {name for name, (field, _) in form.fields.items() if not field.isHidden()}
    assert fields == shown | always and form.launch == launch


def test_an_engine_elsewhere_cannot_stay(qtbot: QtBot) -> None:
    """Its supervisor ends it when the SSH connection ends."""
    form = LaunchForm()
    qtbot.addWidget(form)
    form.show_launch("", Launch(stays=True))
    assert form.launch.stays and not form.stays.isHidden()
    form.show_launch("", Launch(stays=True, place=Place.SSH))
    assert not form.launch.stays and form.stays.isHidden()


def test_the_models_page_runs_its_model(page: ServerPage, application: Application) -> None:
    application.pages.models.run_wanted.emit("/models/mine")
    assert page.connections.launches.form.launch.model == "/models/mine"
    assert page.tabs.currentIndex() == OTHERS


def test_one_that_stays_is_there_in_the_next_window(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = run(qtbot, page, replace(launch, stays=True))
    engine = engine_of(page, known)
    page.engines.close_down()
    assert engine.is_running()
    again = ManagedEngines(page.store, page.switch, page)
    qtbot.waitUntil(lambda: again.is_ready(known), timeout=WAIT_MS)
    again.stop(known)
    qtbot.waitUntil(lambda: not again.is_running(known), timeout=WAIT_MS)
    assert not engine.is_running()
