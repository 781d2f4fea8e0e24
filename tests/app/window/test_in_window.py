"""Errors and finished work of the real window go to the list, and the bell leads there."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.features.models.downloads import Download, State
from app.main.application import Application
from engine.errors import ErrorInfo
from tests.app.fakes import Script
from tests.app.window_fixtures import application, open_model, script

__all__ = ["application", "script"]


def causes(application: Application) -> list[str]:
    return [record.notice.cause for record in application.history.records]


def test_errors_and_finished_work_are_listed(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    window = application.window
    open_model(qtbot, application)
    assert [record.notice.key for record in application.history.records] == ["loaded"]
    script.broken_models = ("broken",)
    with qtbot.waitSignal(application.bridge.load_failed, timeout=3000):
        application.session.open("/models/broken")
    failed = application.history.records[0]
    assert failed.notice.kind == "error" and failed.actions
    bell = next(b for b in window.rail.findChildren(type(window.rail._group.button(0)))
                if "new" in b.text())  # fmt: skip
    assert bell.text() == "1 new" and "Ctrl+Shift+N" in bell.toolTip()
    bell.click()
    assert window.notifications.isVisible() and application.history.unread == []
    bell.click()
    assert window.notifications.isHidden()
    open_model(qtbot, application)  # good news
    assert "new" not in bell.text() and application.history.num_new == 1
    assert not next(r for r in application.history.records if r.notice.key == "load").actions


def test_downloads_and_runs_are_told_once(qtbot: QtBot, application: Application) -> None:
    queue, page = application.pages.models.queue, application.pages.runs
    failed = Download("org/model", State.FAILED, error=ErrorInfo("No space.", "Make some."))
    queue._all["org/model"] = failed
    queue.changed.emit("org/model")
    queue.changed.emit("org/model")
    [failure] = application.history.records
    assert failure.notice.key == "org/model" and failure.notice.kind == "error"
    assert failure.notice.cause.endswith("No space.") and failure.notice.remedy == "Make some."
    failed.state, failed.error = State.DONE, None
    queue.finished.emit("org/model", "/cache/model")
    assert application.history.records[0].notice.kind != "error"
    assert "org/model" in causes(application)[0]
    del queue._all["org/model"]
    page.jobs.ending = ("Quantize: done in 3 s.", False)
    page.run_over.emit()
    assert causes(application)[0] == "Quantize: done in 3 s." and len(causes(application)) == 3
    page.jobs.ending = None
