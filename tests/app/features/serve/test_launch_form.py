"""The form of an engine that the window runs: its fields, and the flags of its own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.clients.target import ServerType
from app.features.serve.flag_rows import FlagRows
from app.features.serve.launch_form import LaunchForm
from app.features.serve.page import OTHERS, ServerPage
from app.main.application import Application
from app.managed.arguments import Flag, Flags
from app.managed.launch import Launch, Place
from tests.app.features.serve.managed_fixtures import (
    WAIT_MS,
    application,
    launch,
    page,
    ring,
    script,
)

__all__ = ["application", "launch", "page", "ring", "script"]


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


@pytest.mark.slow
def test_it_is_remembered(
    qtbot: QtBot, page: ServerPage, application: Application, launch: Launch
) -> None:
    known = page.engines.add("mine", launch).id
    assert application.settings.launches == {known: launch}


@pytest.mark.parametrize(
    ("about", "hint"),
    [
        ("Maximum length. Derived from the model.", "Maximum length"),
        ("A policy (e.g. LRU, etc. as text). Restart it.", "A policy (e.g. LRU, etc. as text)"),
        ("The number\n  of layers:\n\n- one", "The number of layers"),
    ],
)
def test_a_hint_is_the_first_sentence_of_a_flags_help(qtbot: QtBot, about: str, hint: str) -> None:
    rows = FlagRows()
    qtbot.addWidget(rows)
    rows.show_values({"--it": "1"})
    rows.show_flags(Flags("1", (Flag("--it", help=about),)))
    assert rows.rows["--it"].hint == hint
