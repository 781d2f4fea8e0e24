"""Crash watch: keeps data for a report, and offers to restore the session after a crash."""

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
"""Key of the notice about the previous run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """What can be restored: the model with its settings, the open chat."""

    path: str
    load_format: str
    settings: dict[str, Any]
    chat: str


class CrashWatch(QObject):
    """`start` writes the marker and finds those of crashed runs."""

    notice = Signal(object)  # Notice
    report_written = Signal(object)  # Path: the engine of this run crashed

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
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(self._keep)
        bridge.snapshot.connect(self._on_snapshot)
        for signal in (bridge.loaded, bridge.reconfigured, bridge.state_changed):
            signal.connect(self._on_change)
        bridge.crashed.connect(self._on_engine_crash)

    # Keeping -----------------------------------------------------------------------------------

    def start(self) -> Remains | None:
        """Write the marker; returns what a crashed run left."""
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
        """Plain data for a report, without chat text."""
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
        """Write at once: memory runs out while loading."""
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
            f"engine crashed: {event.error.cause}", data, event.traceback, log_tail(log_file())
        )
        run_task(
            self,
            lambda: write_report(text, time.time()),
            self._report_written,
            lambda error: log.warning("cannot write the crash report: %s", error.cause),
        )

    def _report_written(self, path: Path) -> None:
        log.info("crash report written to %s", path)
        self.report_written.emit(path)

    def _last_known(self) -> dict[str, Any]:
        """Fill in from the last snapshot: the bridge has already cleared model and settings."""
        data = self.black_box()
        if self._snapshot is not None:
            data["model"] = dataclasses.asdict(self._snapshot.model)
            data["config"] = self._snapshot.config.as_dict()
        return data

    # The run before ----------------------------------------------------------------------------

    def offer(self, remains: Remains, *actions: tuple[str, Callable[[], object]]) -> None:
        """Show a notice of the previous run's crash, with its report and actions."""
        at = remains.data.get("at")
        when = f" at {datetime.fromtimestamp(at):%H:%M}" if isinstance(at, float) else ""
        session = session_of(remains)
        model = f" while {model_title(session.path)} was loaded" if session is not None else ""
        text = report_text(
            "Inferdeck exited unexpectedly", remains.data, remains.fault,
            log_tail(log_file()),
        )  # fmt: skip
        remains.remove()
        what = f"Inferdeck crashed{when}{model}. Your chats are saved."

        def done(path: Path) -> None:
            remedy = f"{path.name} contains versions, settings and recent steps, but no chat text."
            look = ("Open report", lambda: open_file(path))
            self.notice.emit(Notice(CRASHED, what, remedy, "warning", text, (*actions, look)))

        def failed(error: ErrorInfo) -> None:
            remedy = f"Cannot write the crash report: {error.cause} Click Copy details instead."
            self.notice.emit(Notice(CRASHED, what, remedy, "warning", text, actions))

        run_task(self, lambda: write_report(text, time.time()), done, failed)


def session_of(remains: Remains) -> Session | None:
    """The previous run's session; None if there was none or it is unreadable."""
    try:
        found = Session(**remains.data["session"])
    except (KeyError, TypeError):
        return None
    return found if Path(found.path).exists() else None


def open_file(path: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
