"""Starts the window. Nothing heavy is imported before it is on the screen: torch and transformers
come with the engine's thread."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from PySide6.QtCore import QObject, QSocketNotifier, QTimer
from PySide6.QtWidgets import QApplication

from app.clients.attached import attach
from app.clients.target import Target
from app.features.compare.replies import Reply, exchange_of
from app.features.compare.replies import name_of as compared
from app.features.models.downloads import DownloadWork
from app.features.models.session import ENGINE, LINK, ModelSession, config_from_arguments
from app.features.quantize.in_chat import CompareInChat
from app.features.quantize.place import QuantizeWork
from app.features.recording.crash_watch import CrashWatch, open_file, session_of
from app.features.serve.switch import ConnectionCommands
from app.features.tune.setting_specs import Machine
from app.link.bridge import EngineBridge
from app.link.engine_seat import ThreadFactory
from app.link.hardware_monitor import GpuMonitor, PeaksKeeper, PeaksStore
from app.link.tasks import wait_for_tasks
from app.log import LogKeeper, set_log_level, set_log_size, start_logging, stop_logging
from app.main.engine_place import EnginePlace, factory_of
from app.main.main_window import MainWindow
from app.main.pages import Pages
from app.main.settled_window import SettledWindow
from app.paths import data_dir, starter_model
from app.server.options import KEY_VARIABLE
from app.window.crash_report import Remains
from app.window.notices import error_notice
from app.window.program_settings import NO_MODEL, PROCESS, STARTER, Effects
from app.window.settings_store import SettingsStore
from app.window.single_instance import SingleInstance
from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError, describe
from engine.hardware.cpu_threads.idle_cores import nodes
from engine.hardware.machine import free_memory
from engine.hardware.nvml import visible
from engine.snapshot import EngineSnapshot, GpuFigures
from widgets.controls.kept_focus import KeptFocus
from widgets.plot.clock import RedrawClock
from widgets.plot.marks import MarkLog
from widgets.theme.restyling import restyling
from widgets.theme.text_size import apply_text_size
from widgets.theme.theme import apply_theme, styled_together

log = logging.getLogger(__name__)

SHUTDOWN_S = 5.0
ATTACH, API_KEY = "attach", "api_key"
"""Of what the command line gave: the address of an engine elsewhere, and its key."""


class NoDisplayError(InferdeckError):
    """There is no screen to open a window on."""


def run(args: argparse.Namespace) -> int:
    """Open the window; returns when it was closed, or at once where one is open already.

    Raises NoDisplayError, and NotAnsweringError.
    """
    check_display()
    app = make_application()
    given = {name: getattr(args, name) for name in SETTINGS if _was_given(args, name)}
    if args.attach is not None:
        given[ATTACH] = args.attach
        given[API_KEY] = args.api_key or os.environ.get(KEY_VARIABLE) or None
    instance, settings = SingleInstance(data_dir()), SettingsStore()
    is_alone = settings.preferences.get("single_instance")
    if is_alone and not instance.claim(given):
        print("Inferdeck is open already: its window takes it from here.")
        return 0
    handler = start_logging()
    application = Application(app, settings=settings, is_isolated=args.isolated)
    instance.asked.connect(application.on_second_start)
    application.crash.marker.catch_faults()
    application.show()
    QTimer.singleShot(0, application, lambda: application.start(given))
    interrupts = Interrupts(application.window.close)
    hook, sys.excepthook = sys.excepthook, application.on_fault
    try:
        return app.exec()
    finally:
        sys.excepthook = hook
        interrupts.stop()
        application.shutdown()
        instance.release()
        stop_logging(handler)


def _was_given(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, name, None) is not None


def check_display() -> None:
    """Qt ends the process where it finds no display: say it in words before."""
    if sys.platform != "linux" or os.environ.get("QT_QPA_PLATFORM"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise NoDisplayError(
            "There is no display: neither DISPLAY nor WAYLAND_DISPLAY is set.",
            "Start it in a desktop session, or use `inferdeck generate`, `bench` or `screenshot`, "
            "which need none.",
        )


def make_application() -> QApplication:
    """The one QApplication, named so that desktops and Qt find their settings."""
    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    app.setApplicationName("Inferdeck")
    app.setDesktopFileName("inferdeck")
    return app


class Application(QObject):
    """Everything that lives as long as the window, put together and taken apart in order."""

    def __init__(
        self,
        app: QApplication,
        make_thread: ThreadFactory | None = None,
        settings: SettingsStore | None = None,
        *,
        is_isolated: bool = False,
    ) -> None:
        """`make_thread`: in place of the engine where the settings want it. `is_isolated`: in a
        process of its own, until the settings say otherwise."""
        super().__init__()
        self.settings = settings or SettingsStore()
        self.effects = Effects(self.settings.preferences, self)
        self.effects.bind("text_size", lambda percent: apply_text_size(app, percent))
        self.effects.bind("theme", lambda mode: apply_theme(app, mode))
        self.log = LogKeeper()
        self.log.start()
        self.effects.bind("log_level", set_log_level)
        self.effects.bind("log_size", set_log_size)
        place = PROCESS if is_isolated else self.settings.preferences.get("engine_place")
        self.bridge = EngineBridge(make_thread or factory_of(place))
        self.session = ModelSession(self.bridge, self.settings)
        with styled_together(app):
            self._make_window()
        KeptFocus(app, self.window)
        self._connect()
        self.place = EnginePlace(self.bridge, self.session.restart, self)
        self.place.notice.connect(self.window.show_notice)
        self.place.notice_gone.connect(self.window.notices.dismiss)
        self.effects.follow("engine_place", self.place.follow)
        self.settled = SettledWindow(self.effects, self.bridge, self.window, self.pages)

    def _make_window(self) -> None:
        clock, marks = RedrawClock(), MarkLog()
        self.pages = Pages(self.bridge, self.settings, self.session, clock, marks)
        self.window = MainWindow(
            self.bridge, self.settings, self.session, self.pages.pages, _machine(), clock, marks,
            self.log,
        )
        for shared in (clock, marks):  # of the window and its pages: they go together
            shared.setParent(self.window)

    def _connect(self) -> None:
        self.window.views.set_names(self._name_of)
        self.pages.chat_page.composer.compare_requested.connect(self.window.compare.show)
        tune = self.pages.tune
        self.window.charts_held.connect(tune.charts.set_paused)
        latency = self.pages.chat_page.latency
        latency.popover.name = self._name_of
        self.window.broadcast.keep = self._keep_reply
        latency.set_steps(self.window.views.steps_between)
        latency.popover.step_wanted.connect(self.window.views.show_step)
        self.crash = CrashWatch(
            self.bridge,
            self.window.recorder,
            lambda: (self.session.latest, self.pages.chat.current.id),
            self,
        )
        self.crash.notice.connect(self.window.show_notice)
        self.crash.report_written.connect(self._on_report)
        self.peaks = PeaksKeeper(self.bridge, PeaksStore(), self)  # after the views: they listen
        models, place = self.pages.models, self.pages.models_place
        place.wants_front.connect(lambda: self.window.show_widget(place))
        place.chat_wanted.connect(lambda: self.window.show_page(0))
        self.downloads = DownloadWork(models.queue, self.window.work, models.open_downloaded)
        quantize = self.pages.quantize
        quantize.wants_front.connect(lambda: self.window.show_widget(quantize))
        quantize.model_chosen.connect(lambda: self.window.show_page(0))
        self.quantize_work = QuantizeWork(
            quantize, self.window.work, lambda: self.window.show_widget(quantize)
        )
        self.compare_in_chat = CompareInChat(
            quantize, self.window.compare, self.session, self.bridge
        )
        server = self.pages.server
        server.wants_front.connect(lambda: self.window.show_widget(server))
        server.requests_wanted.connect(self.window.views.show_requests)
        server.switch.notice.connect(self.window.show_notice)
        server.switch.notice_gone.connect(self.window.notices.dismiss)
        self.connection_commands = ConnectionCommands(server.switch, self.window.commands, self)
        self.gpu = GpuMonitor(self)
        self.gpu.figures.connect(self._on_own_gpus)
        self.bridge.snapshot.connect(self._on_gpus_elsewhere)
        self._gpus_elsewhere: tuple[GpuFigures, ...] | None = None  # None: the engine is here

    def _on_own_gpus(self, at: float, gpus: tuple[GpuFigures, ...]) -> None:
        if not self.bridge.is_remote:  # of this machine: an engine elsewhere tells of its own
            self._show_gpus(at, gpus, visible(gpus))

    def _on_gpus_elsewhere(self, snapshot: EngineSnapshot) -> None:
        """What was shown of the machine before is no more, also where this one has no GPU."""
        gpus = snapshot.gpus if self.bridge.is_remote else None
        if gpus != self._gpus_elsewhere:
            self._gpus_elsewhere = gpus
            gpus = gpus or ()
            # which of its parts CUDA shows there, if any, nobody tells: those have no numbers
            self._show_gpus(snapshot.time, gpus, tuple(gpu for gpu in gpus if not gpu.part_of))

    def _show_gpus(
        self, at: float, gpus: tuple[GpuFigures, ...], usable: tuple[GpuFigures, ...]
    ) -> None:
        self.window.engine_settings.offer_gpus(tuple(gpu.name for gpu in usable))
        self.window.views.memory.update_gpus(gpus)
        for charts in (self.window.charts, self.pages.tune.charts):
            charts.update_gpus(at, gpus)

    def _name_of(self, request_id: str) -> str:
        """How the user knows a request."""
        return compared(request_id) or self.pages.name_of(request_id)

    def _keep_reply(self, reply: Reply, model: str) -> None:
        """A reply of a broadcast becomes a chat."""
        self.pages.chat.keep_exchange(exchange_of(reply, model))
        self.window.show_page(0)
        self.window.activateWindow()

    def show(self) -> None:
        self.window.show()

    def start(self, given: Mapping[str, Any]) -> None:
        """What waits until the window is on the screen."""
        restyling().is_gradual = True
        self.gpu.start()
        self.pages.start()
        remains = self.crash.start()
        if ATTACH in given:
            if remains is not None:
                self.crash.offer(remains)
            self.attach(given)
            return
        if remains is not None:
            self._offer_to_restore(remains, given)
            return
        if "model" not in given:
            self.pages.welcome()
        self.open_at_start(given)

    def attach(self, given: Mapping[str, Any]) -> None:
        """Show the engine elsewhere that the command line names."""
        try:
            attach(self.bridge, Target(given[ATTACH], given.get(API_KEY)))
        except ConfigError as error:
            self.window.show_notice(error_notice(LINK, "", error.info()))

    def open_at_start(self, given: Mapping[str, Any]) -> None:
        """Load what the command line names, else what the settings want for a start."""
        wanted = self.settings.preferences.get("open_at_start")
        if "model" not in given and wanted == NO_MODEL:
            return
        if "model" not in given and wanted == STARTER:
            given = {**given, "model": str(starter_model())}
        self.open_first_model(given)

    def _offer_to_restore(self, remains: Remains, given: Mapping[str, Any]) -> None:
        """After a crash nothing is opened by itself: it may have been the model's doing."""
        before = session_of(remains)
        if before is None or "model" in given:
            self.crash.offer(remains)
            self.open_first_model(given)
            return

        def restore() -> None:
            self.session.open(before.path, before.load_format, before.settings)
            self.pages.chat.open(before.chat)

        starter = {**given, "model": str(starter_model())}
        self.crash.offer(
            remains,
            ("Restore", restore),
            ("Starter model", lambda: self.open_first_model(starter)),
        )

    def _on_report(self, path: Path) -> None:
        """The notice of the engine's crash, if it is still there, leads to the report."""
        notice = self.window.notices.notice(ENGINE)
        if notice is not None:
            look = ("Open report", lambda: open_file(path))
            self.window.show_notice(replace(notice, actions=(*notice.actions, look)))

    def on_second_start(self, given: Mapping[str, Any]) -> None:
        """The program was started again: come to the front, with what it was asked to open."""
        log.info("started again with %s", {k: v for k, v in given.items() if k != API_KEY})
        if self.window.isMinimized():
            self.window.showNormal()
        self.window.raise_()
        self.window.activateWindow()
        if ATTACH in given:
            self.attach(given)
            return
        known = {name: value for name, value in given.items() if name in SETTINGS}
        if known:
            self.open_first_model(known)

    def on_fault(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """A fault of the window itself: log it and say so. What the user does goes on."""
        if issubclass(kind, KeyboardInterrupt):
            self.window.close()
            return
        text = "".join(traceback.format_exception(kind, error, trace))
        log.error("fault in the window\n%s", text)
        print(text, file=sys.stderr)
        self.window.show_notice(
            error_notice("fault", "The window made a mistake.", describe(error), traceback=text)
        )

    def open_first_model(self, given: Mapping[str, Any]) -> None:
        """Load what the command line names, else what was open last, else the starter model."""
        try:
            config = config_from_arguments(self.settings, str(starter_model()), given)
        except ConfigError as error:
            self.window.show_notice(error_notice("load", "", error.info()))
            return
        self.session.load(config)

    def shutdown(self) -> None:
        """Save, abort what runs, end the engine's thread: in a few seconds at most."""
        self.pages.stop_work(SHUTDOWN_S)
        self.window.close()
        restyling().is_gradual = False
        restyling().finish()
        self.gpu.stop()
        self.crash.stop()
        self.bridge.shutdown(SHUTDOWN_S)
        self.pages.close()
        wait_for_tasks(1.0)
        self.settings.sync()
        self.log.stop()
        self.window.deleteLater()


def _machine() -> Machine:
    _, total = free_memory()
    return Machine(memory_bytes=total, num_cpus=os.cpu_count() or 1, num_nodes=len(nodes()))


class Interrupts(QObject):
    """Ctrl+C in the terminal closes the window as its button does.

    Python runs signal handlers between byte codes, of which there are none while Qt waits: the
    signal's number is also written to a socket, which wakes Qt.
    """

    def __init__(self, do: Any) -> None:
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
