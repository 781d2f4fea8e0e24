"""The real window on an engine that lets windows look and ask, not change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.clients.attached import attach
from app.clients.target import Target
from app.main.application import Application
from engine import messages as m
from tests.app.fakes import FakeEngineThread
from tests.app.wire.windows import Lab

LOCKED = ("model.unload", "tune.undo", "tune.redo", "tune.defaults")


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(allows_control=False)
    made.load()
    yield made
    made.close()


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event))
    made.show()
    yield made
    made.shutdown()


def test_what_would_be_refused_is_grey_and_says_why(
    lab: Lab, application: Application, qtbot: QtBot
) -> None:
    window, bridge = application.window, application.bridge
    attach(bridge, Target(lab.server.url))
    panel = application.engine_settings
    qtbot.waitUntil(lambda: bridge.is_ready and panel.model.applied is not None)
    why = bridge.look_only
    assert "--no-control" in why
    assert panel.message == why
    assert not any(row.isEnabled() for row in panel.rows.values())
    panel.choose("max_num_seqs", 3)
    panel.commands.change({"max_num_seqs": 4})
    panel.commands.apply()
    assert panel.commands.refusal_of("max_num_seqs", 3) == why
    panel.profiles.fill()
    assert not panel.profiles.actions()[0].isEnabled()
    window.commands.refresh()
    entries = {entry.id: entry for entry in window.commands.entries()}
    for name in LOCKED:
        assert not window.commands.action(name).isEnabled()
        assert window.commands.action(name).toolTip() == why
        assert entries[name].why_not == why
    assert entries["tune.server_command"].is_enabled  # looks only
    assert entries["bench.run"].is_enabled  # of loads
    bridge.detach()
    qtbot.waitUntil(lambda: not bridge.is_remote)
    assert bridge.look_only == ""
    window.commands.refresh()
    assert window.commands.action("model.unload").toolTip() == "Unload model"
    assert not lab.commands(m.Reconfigure)
