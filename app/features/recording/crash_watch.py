"""Keeps what a report needs while the program runs, and offers to go on after a crash."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices

from app.features.recording.recorder import FlightRecorder, about_machine
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.log import log_file
from app.storage.model_sources import model_title
from app.window.crash_report import (
    Remains,
    RunMarker,
    log_tail,
    report_text,
    step_line,
    write_report,
)
from app.window.notices import Notice
from app.window.settings_store import RecentModel
from engine import messages
from engine.errors import ErrorInfo
from engine.snapshot import EngineSnapshot

log = logging.getLogger(__name__)

INTERVAL_MS = 5000
CRASHED = "crashed"
"""Key of the notice about the run before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """What can be restored: the model with its settings, the chat that was open."""

    path: str
    load_format: str
    settings: dict[str, Any]
    chat: str


class CrashWatch(QObject):
    """`start` writes the marker and looks for those of runs that crashed."""

    notice = Signal(object)  # Notice
    report_written = Signal(object)  # Path: the engine of this run stopped

    def __init__(
        self,
        bridge: EngineBridge,
        recorder: FlightRecorder,
        session: Callable[[], tuple[RecentModel | None, str]],
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge, self._recorder, self._session = bridge, recorder, session
        self.marker = RunMarker()
        self._about: dict[str, Any] = {}
        self._snapshot: EngineSnapshot | None = None
        self._is_stale = True
        self._timer = QTimer(self)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._keep)
        bridge.snapshot.connect(self._on_snapshot)
        for signal in (bridge.loaded, bridge.reconfigured, bridge.state_changed):
            signal.connect(self._on_change)
        bridge.crashed.connect(self._on_engine_crash)

    # Keeping -----------------------------------------------------------------------------------

    def start(self) -> Remains | None:
        """From now on a crash leaves something. What the run before left, if it crashed."""
        found = self.marker.remains()
        self._about = about_machine()
        self.marker.write(self.black_box())
        self._timer.start()
        for older in found[1:]:
            older.remove()
        return found[0] if found else None

    def stop(self) -> None:
        self._timer.stop()
        self.marker.remove()

    def black_box(self) -> dict[str, Any]:
        """What a report is made from: plain data, without a word of any chat."""
        known, chat = self._session()
        snapshot, config, model = self._snapshot, self._bridge.config, self._bridge.model
        memory = {} if snapshot is None else {
            name: getattr(snapshot.memory, name)
            for name in (
                "weights", "kv_cache", "kv_used", "kv_cached", "process", "free", "total",
                "host_weights", "host_kv_cache",
            )
        }  # fmt: skip
        return {
            **self._about,
            "at": time.time(),
            "state": str(self._bridge.state),
            "model": None if model is None else dataclasses.asdict(model),
            "config": None if config is None else config.as_dict(),
            "memory": memory,
            "steps": [step_line(step) for step in self._recorder.last_steps],
            "session": None if known is None else dataclasses.asdict(
                Session(known.path, known.load_format, dict(known.settings), chat)
            ),
        }  # fmt: skip

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._snapshot = snapshot
        self._is_stale = True

    def _on_change(self, event: object) -> None:
        """Loading is where memory runs out: it is written at once."""
        self._is_stale = True
        if self._timer.isActive():
            self._keep()

    def _keep(self) -> None:
        if self._is_stale:
            self._is_stale = False
            data = self.black_box()
            run_task(self, lambda: self.marker.write(data), lambda done: None, lambda error: None)

    # The engine of this run --------------------------------------------------------------------

    def _on_engine_crash(self, event: messages.EngineCrashed) -> None:
        data = {**(self._about or about_machine()), **self._last_known()}
        text = report_text(
            f"the engine stopped: {event.error.cause}", data, event.traceback, log_tail(log_file())
        )
        run_task(
            self,
            lambda: write_report(text, time.time()),
            self._report_written,
            lambda error: log.warning("the crash report was not written: %s", error.cause),
        )

    def _report_written(self, path: Path) -> None:
        log.info("a report of the crash is in %s", path)
        self.report_written.emit(path)

    def _last_known(self) -> dict[str, Any]:
        """The bridge has forgotten model and settings: the last snapshot has them."""
        data = self.black_box()
        if self._snapshot is not None:
            data["model"] = dataclasses.asdict(self._snapshot.model)
            data["config"] = self._snapshot.config.as_dict()
        return data

    # The run before ----------------------------------------------------------------------------

    def offer(self, remains: Remains, *actions: tuple[str, Callable[[], object]]) -> None:
        """Say that the run before crashed, with its report and ways on."""
        at = remains.data.get("at")
        when = f" at {datetime.fromtimestamp(at):%H:%M}" if isinstance(at, float) else ""
        session = session_of(remains)
        model = f" while {model_title(session.path)} was open" if session is not None else ""
        text = report_text(
            "the program ended without being closed", remains.data, remains.fault,
            log_tail(log_file()),
        )  # fmt: skip
        remains.remove()
        what = f"Inferdeck was not closed properly last time{when}{model}. Your chats are kept."

        def done(path: Path) -> None:
            remedy = f"{path.name}: versions, machine, settings and last steps, no text of chats."
            look = ("Open report", lambda: open_file(path))
            self.notice.emit(Notice(CRASHED, what, remedy, "warning", text, (*actions, look)))

        def failed(error: ErrorInfo) -> None:
            remedy = f"The report could not be written: {error.cause} It can be copied."
            self.notice.emit(Notice(CRASHED, what, remedy, "warning", text, actions))

        run_task(self, lambda: write_report(text, time.time()), done, failed)


def session_of(remains: Remains) -> Session | None:
    """What the run before had open; None where nothing was, or it cannot be read."""
    try:
        found = Session(**remains.data["session"])
    except (KeyError, TypeError):
        return None
    return found if Path(found.path).exists() else None


def open_file(path: Path) -> None:
    """With the program that the desktop has for it."""
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
