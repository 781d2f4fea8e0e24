"""Engines that the window runs: started, chatted with, changed, killed, stopped."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.clients.target import ServerType
from app.features.chat.conversation import State as ReplyState
from app.features.serve.flag_table import VALUE, FlagTable
from app.features.serve.managed_card import ManagedCard
from app.features.serve.managed_form import APPLY, START
from app.features.serve.page import RUN, ServerPage
from app.main.application import Application
from app.managed.arguments import Flag, Flags
from app.managed.launch import Launch, Place
from app.managed.process import State
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.managed.conftest import make_environment
from tests.app.window_fixtures import application, open_model, script

__all__ = ["application", "ring", "script"]
WAIT_MS = 30_000


@pytest.fixture
def page(application: Application, ring: MemoryKeyring) -> ServerPage:
    application.pages.server.show_tab(RUN)
    return application.pages.server


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(interpreter=str(make_environment(tmp_path / "venv")), model="starter")


def start(qtbot: QtBot, page: ServerPage, launch: Launch) -> str:
    page.run_form.show_launch(launch)
    page.run_form.start.click()
    known = page.store.connections[-1].id
    wait_ready(qtbot, page, known)
    return known


def wait_ready(qtbot: QtBot, page: ServerPage, known: str) -> None:
    qtbot.waitUntil(lambda: page.managed.status(known).state is State.READY, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)


def chat(qtbot: QtBot, application: Application) -> str:
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send("hello")
    last = lambda: application.pages.chat.current.path()[-1]
    qtbot.waitUntil(lambda: last().state is ReplyState.COMPLETE, timeout=WAIT_MS)
    return last().text


def kill(page: ServerPage, known: str) -> None:
    process = page.managed._processes[known]._process
    for child in psutil.Process(process.pid).children(recursive=True):
        if "vllm.entrypoints.cli.main" in child.cmdline():
            child.kill()


def test_the_life_of_an_engine_in_the_window(
    qtbot: QtBot, application: Application, page: ServerPage, launch: Launch
) -> None:
    open_model(qtbot, application)
    known = start(qtbot, page, launch)
    qtbot.waitUntil(lambda: application.bridge.is_ready, timeout=WAIT_MS)
    assert chat(qtbot, application) == "word0 word1 word2 word3 word4 "
    card = page.cards.cards[known]
    assert isinstance(card, ManagedCard) and card.stop.isEnabled()
    card.log_toggle.click()
    assert "Application startup complete" in card.log.toPlainText()
    first = page.store.find(known)
    assert first is not None and first.name == "vLLM starter"

    page.run_form.flags.show_settings({"--max-num-seqs": "8"})
    assert page.run_form.start.text() == APPLY
    page.run_form.start.click()  # restarts with it
    qtbot.waitUntil(
        lambda: page.managed.status(known).state is State.READY
        and page.store.find(known) != first, timeout=WAIT_MS
    )  # fmt: skip
    wait_ready(qtbot, page, known)
    command = psutil.Process(page.managed._processes[known]._process.pid).cmdline()
    assert "--max-num-seqs=8" in command and len(page.store.connections) == 1

    with qtbot.waitSignal(page.managed.failed, timeout=5000) as failed:
        kill(page, known)
    assert "SIGKILL" in failed.args[1].cause
    assert f"managed-{known}" in application.notices.keys
    card = page.cards.cards[known]
    assert isinstance(card, ManagedCard) and card.restart.text() == "Start"
    assert "SIGKILL" in card.state.text()

    card.restart.click()
    qtbot.waitUntil(lambda: page.managed.status(known).state is State.READY, timeout=WAIT_MS)
    page.cards.cards[known].stop.click()  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: not page.managed.status(known).is_running, timeout=WAIT_MS)
    assert page.managed.status(known).error is None


def test_a_start_that_fails_leaves_the_engine_of_before(
    qtbot: QtBot, application: Application, page: ServerPage, launch: Launch
) -> None:
    open_model(qtbot, application)
    bad = msgspec.structs.replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"})
    page.run_form.show_launch(bad)
    with qtbot.waitSignal(page.managed.failed, timeout=WAIT_MS) as failed:
        page.run_form.start.click()
    assert "does not support this model" in failed.args[1].cause
    assert application.bridge.is_ready and not page.switch.is_elsewhere


def test_the_form_reads_the_engines_own_settings(
    qtbot: QtBot, page: ServerPage, launch: Launch
) -> None:
    form = page.run_form
    form.show_launch(launch)
    form.show_launch(msgspec.structs.replace(launch, environment={"A": "b c"}))
    assert form.launch.environment == {"A": "b c"}
    assert form.start.text() == START and form.start.isEnabled()
    form.read.click()
    qtbot.waitUntil(lambda: form.flags.tree.topLevelItemCount() > 0, timeout=WAIT_MS)
    form.flags.search.setText("tensor parallel")
    rows = [form.flags.tree.topLevelItem(n) for n in range(form.flags.tree.topLevelItemCount())]
    shown = [row for row in rows if row is not None and not row.isHidden()]
    assert [row.text(0) for row in shown] == ["--tensor-parallel-size"]
    shown[0].setText(VALUE, "two")
    assert not form.start.isEnabled()
    shown[0].setText(VALUE, "2")
    assert form.start.isEnabled() and form.launch.settings == {"--tensor-parallel-size": "2"}


def test_fields_follow_the_engine_and_the_place(page: ServerPage) -> None:
    form = page.run_form
    fields = lambda: {name for name, (field, _) in form.fields.items() if not field.isHidden()}
    form.show_launch(Launch(place=Place.SSH))
    assert fields() == {"host", "interpreter", "model", "environment"}
    form.show_launch(Launch(place=Place.CONTAINER))
    assert fields() == {"image", "model", "environment"}
    form.show_launch(Launch(kind=ServerType.OPENAI, command="x {port}"))
    assert fields() == {"command", "model", "environment"} and form.start.isEnabled()


def test_run_with_takes_the_model_along(application: Application, page: ServerPage) -> None:
    application.pages.models.run_with_wanted.emit("/models/one")
    assert page.tabs.currentIndex() == RUN and page.run_form.launch.model == "/models/one"


def test_switches_are_on_off_or_the_default(qtbot: QtBot) -> None:
    table = FlagTable()
    qtbot.addWidget(table)
    eager = Flag("--eager", aliases=("--no-eager",), default="True", is_switch=True)
    table.show_flags(Flags("1", (eager, Flag("--trace", default="False", is_switch=True))))
    first, second = (table.tree.topLevelItem(row) for row in range(2))
    assert first is not None and second is not None
    first.setText(VALUE, "off")
    second.setText(VALUE, "on")
    assert table.settings == {"--no-eager": "", "--trace": ""}
    table.show_settings({"--no-eager": ""})
    again = table.tree.topLevelItem(0)
    assert again is not None and again.text(VALUE) == "off"
    again.setText(VALUE, "on")
    assert table.settings == {}
