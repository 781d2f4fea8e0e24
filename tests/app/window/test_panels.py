"""Notices, tasks, commands, the page rail, the GPU monitor and the log."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.link.bridge import EngineBridge
from app.link.hardware_monitor import GpuFeed
from app.link.tasks import run_task, wait_for_tasks
from app.log import log_file, start_logging, stop_logging
from app.main.start import show_fault
from app.window.commands import Command, CommandRegistry
from app.window.nav_rail import NavRail
from app.window.notices import MOST_OF_WINDOW, Notice, NoticeArea, error_notice
from engine.errors import ErrorInfo
from tests.app.window_fixtures import next_run
from tests.engine.fake_nvml import fake_nvml, is_watched


def test_notices_of_one_key_replace_each_other_and_take_no_room_when_gone(qtbot: QtBot) -> None:
    area = NoticeArea()
    qtbot.addWidget(area)
    done: list[str] = []
    area.show_notice(Notice("load", "first"))
    area.show_notice(Notice("load", "second", actions=(("Do it", lambda: done.append("did")),)))
    area.show_notice(Notice("engine", "third"))
    assert area.keys == ["load", "engine"]
    frame = area.frame("load")
    assert frame.notice.cause == "second"
    area.show_notice(frame.notice)
    assert area.frame("load") is frame  # the same again changes nothing
    frame.buttons[0].click()
    assert done == ["did"] and area.keys == ["engine"]
    area.dismiss("engine")
    area.dismiss("engine")
    assert area.isHidden()


def test_details_of_an_error_are_copied_whole(qtbot: QtBot) -> None:
    area = NoticeArea()
    qtbot.addWidget(area)
    error = ErrorInfo("9 GiB are needed, 3 GiB are free.", "Choose a smaller model.")
    area.show_notice(error_notice("load", "X was not loaded.", error, traceback="Traceback: y"))
    buttons = area.frame("load").findChildren(QPushButton)
    copy = next(button for button in buttons if button.text() == "Copy details")
    copy.click()
    copied = QGuiApplication.clipboard().text()
    for part in ("X was not loaded.", *error[:2], "Traceback: y"):
        assert part in copied


def test_a_task_runs_beside_and_is_answered_in_the_gui_thread(qtbot: QtBot) -> None:
    owner = QObject()
    seen: list[Any] = []
    gui = threading.current_thread()
    run_task(
        owner,
        threading.current_thread,
        lambda result: seen.append((result is gui, threading.current_thread() is gui)),
        seen.append,
    )
    qtbot.waitUntil(lambda: bool(seen), timeout=3000)
    assert seen == [(False, True)]


def test_a_task_that_fails_is_explained_and_one_without_owner_is_dropped(qtbot: QtBot) -> None:
    owner = QObject()
    errors: list[ErrorInfo] = []
    results: list[int] = []
    run_task(owner, lambda: 1 // 0, results.append, errors.append)
    qtbot.waitUntil(lambda: bool(errors), timeout=3000)
    assert "ZeroDivisionError" in errors[0].cause
    gone = QWidget()
    release = threading.Event()
    run_task(gone, lambda: int(release.wait(60)), results.append, errors.append)
    gone.deleteLater()
    qtbot.wait(20)
    release.set()
    qtbot.wait(100)
    assert results == [] and len(errors) == 1
    assert wait_for_tasks(60.0)


def test_two_commands_cannot_share_an_id_or_a_shortcut(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    registry = CommandRegistry(window)
    done: list[str] = []
    registry.add(Command("a.b", "B", lambda: done.append("b"), "File", "Ctrl+B"))
    with pytest.raises(ValueError, match=r"a\.b"):
        registry.add(Command("a.b", "again", lambda: None, "File"))
    with pytest.raises(ValueError, match=r"Ctrl\+B"):
        registry.add(Command("a.c", "C", lambda: None, "File", "Ctrl+B"))
    registry.add(Command("a.d", "D", lambda: done.append("d"), "File", is_enabled=lambda: False))
    registry.run("a.b")
    registry.run("a.d")
    assert done == ["b"]


def test_the_rail_takes_more_pages_and_marks_one(qtbot: QtBot) -> None:
    rail = NavRail()
    qtbot.addWidget(rail)
    for name, icon in (("Chat", "chat"), ("Tune", "tune"), ("Models", "models")):
        rail.add_page(name, icon)
    chosen: list[int] = []
    rail.page_chosen.connect(chosen.append)
    buttons = rail._group.buttons()
    buttons[2].click()
    rail.choose(1)
    assert chosen == [2] and [b.isChecked() for b in buttons] == [False, True, False]
    assert [b.accessibleName() for b in buttons] == ["Chat", "Tune", "Models"]


def test_the_rail_is_as_narrow_as_its_icons_where_texts_have_no_room(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    rail = NavRail(window)
    for name in ("Chat", "Tune", "Models"):
        rail.add_page(name, "chat")
    rail.resize(rail.width(), 400)
    window.show()
    wide = rail.width()
    buttons = rail._group.buttons()
    with_text = Qt.ToolButtonStyle.ToolButtonTextUnderIcon
    assert all(button.toolButtonStyle() is with_text for button in buttons)
    rail.resize(wide, rail.minimumSizeHint().height())
    assert rail.width() < wide and rail.width() > buttons[0].iconSize().width()
    assert all(button.toolButtonStyle() is not with_text for button in buttons)
    rail.resize(rail.width(), 400)
    assert rail.width() == wide


def test_the_gpu_monitor_tells_what_the_driver_tells(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml: Any = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monitor = GpuFeed(EngineBridge())
    with qtbot.waitSignal(monitor.measured) as signal:
        monitor.watch.start()
    monitor.watch.stop()
    assert signal.args is not None
    _, gpus = signal.args
    assert [(gpu.name, gpu.own, gpu.others) for gpu in gpus] == [("A card", 2**30, 2**31)] * 2
    assert nvml.calls == ["init", "shutdown"] and not is_watched()


def test_without_a_driver_the_gpu_monitor_is_silent(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = GpuFeed(EngineBridge())
    monitor.watch.start()
    monitor.watch.stop()
    assert not is_watched()


def test_a_fault_of_the_window_is_logged_and_shown(qapp: QApplication, qtbot: QtBot) -> None:
    handler = start_logging()
    try:
        with next_run(qapp) as application:
            try:
                raise ValueError("a knob fell off")
            except ValueError as error:
                show_fault(application, type(error), error, error.__traceback__)
            notice = application.notices.notice("fault")
            assert notice is not None and "a knob fell off" in notice.cause
            assert "Traceback" in notice.details
    finally:
        stop_logging(handler)
    assert "a knob fell off" in log_file().read_text(encoding="utf-8")
    assert handler not in logging.getLogger("app").handlers


@pytest.mark.parametrize("width", (500, 1400))
def test_the_buttons_of_a_notice_leave_room_for_its_text(qtbot: QtBot, width: int) -> None:
    area = NoticeArea()
    qtbot.addWidget(area)
    area.resize(width, 100)
    area.show()
    actions = [("Choose model", lambda: None), ("Try again", lambda: None)]
    area.show_notice(Notice("a", "It needs 27.3 GiB. " * 5, "", "error", "Details", (*actions,)))
    words, first = area.frame("a").words, area.frame("a").buttons[0]
    qtbot.waitUntil(lambda: words.width() >= 0.55 * width)
    qtbot.waitUntil(lambda: (first.y() >= words.geometry().bottom()) == (width < 1000))
    qtbot.waitUntil(lambda: area.frame("a").height() <= area.height())


def test_a_notice_that_gets_wider_is_as_high_as_its_area(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    column, area = QVBoxLayout(window), NoticeArea()
    column.addWidget(area)
    column.addWidget(QLabel("the page"), 1)
    window.resize(300, 900)
    window.show()
    area.show_notice(Notice("a", "It needs 27.3 GiB. " * 5))
    frame = area.frame("a")
    qtbot.waitUntil(lambda: 0 < frame.height() == area.height())
    narrow = area.height()
    window.resize(900, 900)
    qtbot.waitUntil(lambda: area.height() < narrow)
    qtbot.waitUntil(lambda: frame.height() == area.height(), timeout=1000)


def test_notices_take_a_share_of_the_window_and_scroll_beyond_it(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    column = QVBoxLayout(window)
    area, page = NoticeArea(), QLabel("the page")
    column.addWidget(area)
    column.addWidget(page, 1)
    window.resize(700, 600)
    window.show()
    area.show_notice(Notice("short", "Done."))
    qtbot.waitUntil(lambda: 20 < area.height() < 60)
    one = area.height()
    for number in range(6):
        area.show_notice(Notice(f"long {number}", "A long story. " * 40, "Read it."))
    qtbot.waitUntil(lambda: area.height() == round(600 * MOST_OF_WINDOW))
    assert area.verticalScrollBar().maximum() > 0 and area.verticalScrollBar().value() == 0
    assert page.height() > 400
    window.resize(700, 1000)
    qtbot.waitUntil(lambda: area.height() == round(1000 * MOST_OF_WINDOW))
    for number in range(6):
        area.dismiss(f"long {number}")
    qtbot.waitUntil(lambda: area.height() == one)
    area.dismiss("short")
    assert area.isHidden()
