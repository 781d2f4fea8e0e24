"""Starts the window. torch and transformers load later, with the engine's thread."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType

from PySide6.QtCore import QObject, QSocketNotifier, QTimer
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from app.log import start_logging, stop_logging
from app.main.application import Application
from app.main.garbage import GarbageCollector
from app.main.startup import API_KEY, ATTACH
from app.paths import APP_NAME, app_icon, data_dir, tighten
from app.server.options import KEY_VARIABLE
from app.window.notices import error_notice
from app.window.settings_store import SettingsStore
from app.window.single_instance import SingleInstance
from engine.config import SETTINGS
from engine.errors import InferdeckError, describe
from widgets.theme.theme import theme_notifier

log = logging.getLogger(__name__)


class NoDisplayError(InferdeckError):
    """No display to open a window on."""


def run(args: argparse.Namespace) -> int:
    """Open the window; returns when it closes, or at once if one is open already.

    Raises NoDisplayError, and NotAnsweringError.
    """
    check_display()
    app = make_application()
    collector = GarbageCollector(app)
    collector.start()
    values = {name: getattr(args, name, None) for name in SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    if args.attach is not None:
        given[ATTACH] = args.attach
        given[API_KEY] = args.api_key or os.environ.get(KEY_VARIABLE) or None
    instance, settings = SingleInstance(data_dir()), SettingsStore()
    is_alone = settings.preferences.get("single_instance")
    if is_alone and not instance.claim(given):
        print("Inferdeck is already running. Switching to its window.")
        return 0
    tighten()
    handler = start_logging()
    application = Application(app, settings=settings, is_isolated=args.isolated)
    instance.asked.connect(application.startup.on_second_start)
    application.crash.marker.catch_faults()
    application.show()
    QTimer.singleShot(0, application, lambda: application.start(given))
    interrupts = Interrupts(application.window.close)
    hook, sys.excepthook = sys.excepthook, partial(show_fault, application)
    try:
        return app.exec()
    finally:
        sys.excepthook = hook
        interrupts.stop()
        collector.stop()
        application.shutdown()
        instance.release()
        stop_logging(handler)
        theme_notifier().images.cleanup()  # a process that ends at once removes nothing by itself


def check_display() -> None:
    """Without a display Qt would abort the process."""
    if sys.platform != "linux" or os.environ.get("QT_QPA_PLATFORM"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise NoDisplayError(
            "No display: neither DISPLAY nor WAYLAND_DISPLAY is set.",
            "Run Inferdeck in a desktop session, or use a headless command such as "
            "`inferdeck generate`, `bench` or `screenshot`.",
        )


def make_application() -> QApplication:
    """The one QApplication, named so that desktops and Qt find their settings."""
    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    app.setApplicationName("Inferdeck")
    app.setDesktopFileName(APP_NAME)
    app.setWindowIcon(QIcon(str(app_icon())))
    return app


def show_fault(
    application: Application,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """An exception that nothing caught: log it and show a notice. The window stays open."""
    if issubclass(kind, KeyboardInterrupt):
        application.window.close()
        return
    text = "".join(traceback.format_exception(kind, error, trace))
    log.error("unhandled exception\n%s", text)
    print(text, file=sys.stderr)
    application.notices.show_notice(
        error_notice("fault", "Internal error in the UI.", describe(error), traceback=text)
    )


class Interrupts(QObject):
    """Ctrl+C in the terminal closes the window like its close button.

    Python runs signal handlers between byte codes, of which there are none while Qt waits: the
    signal's number is also written to a socket, which wakes Qt.
    """

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__()
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: do())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._notifier = QSocketNotifier(self._receiver.fileno(), QSocketNotifier.Type.Read)
        self._notifier.activated.connect(lambda: self._receiver.recv(64))

    def stop(self) -> None:
        self._notifier.setEnabled(False)
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._receiver.close()
        self._sender.close()
