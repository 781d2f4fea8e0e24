"""What the engine says, shown in the window: its state, how far loading is, its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.connections.target import Remark
from app.engine_bridge import EngineState
from app.panels.notices import Notice
from engine import messages
from engine.snapshot import EngineSnapshot
from widgets.charts.series import MarkKind

if TYPE_CHECKING:
    from app.main_window import MainWindow


class EngineNews(QObject):
    """Follows the bridge of a window from now on."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._model_name = ""
        bridge = window.bridge
        bridge.state_changed.connect(self._on_state)
        bridge.link_changed.connect(lambda link: self._show_title())
        bridge.past.connect(self._on_past)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.load_progress.connect(self._on_progress)
        bridge.loaded.connect(self._on_loaded)
        bridge.remarked.connect(self._on_remark)
        for done in (bridge.reconfigured, bridge.reconfigure_failed, bridge.load_failed):
            done.connect(self._on_done)
        self._on_state(bridge.state)

    def _on_state(self, state: EngineState) -> None:
        window, strip = self._window, self._window.strip
        if state is EngineState.LOADING:
            title = window.session.opening_title
            strip.set_model(title)
            strip.set_state("Loading", "loading")
            window.load_strip.begin(f"Loading {title}")
        else:
            window.load_strip.end()
        if state is EngineState.CRASHED:
            strip.set_state("The engine stopped", "error")
        elif state is EngineState.EMPTY:
            strip.clear()
            if window.bridge.is_remote:
                strip.set_state(f"{window.bridge.place} has no model open")
            self._show_title()
        window.commands.refresh()

    def _show_title(self) -> None:
        model = self._window.bridge.model
        place = f"at {self._window.bridge.place}" if self._window.bridge.place else ""
        what = f"{model.name if model is not None else ''} {place}".strip()
        self._window.setWindowTitle(f"{what} – Inferdeck" if what else "Inferdeck")

    def _on_done(self, event: object) -> None:
        self._window.load_strip.end()

    def _on_loaded(self, event: messages.Loaded) -> None:
        self._show_title()
        before, self._model_name = self._model_name, event.model.name
        if before:  # what was measured on the model before stays, to be compared with
            same = "again" if before == event.model.name else f"after {before}"
            details = (f"{event.model.name} was opened {same}",)
            self._window.charts.mark(event.model.name, MarkKind.MODEL, details)

    def _on_progress(self, progress: messages.LoadProgress) -> None:
        strip = self._window.load_strip
        if strip.isHidden():  # nothing is being opened: a setting needs it
            strip.begin("Applying settings")
        strip.update_progress(progress)

    def _on_remark(self, remark: Remark) -> None:
        self._window.show_notice(Notice(f"remark {remark.words}", remark.words))

    def _on_past(self, snapshots: tuple[EngineSnapshot, ...]) -> None:
        """A few hundred: charts only take them, and draw when their clock says so."""
        for snapshot in snapshots:
            self._window.strip.update_snapshot(snapshot)
            self._window.charts.update_snapshot(snapshot)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        window = self._window
        window.strip.update_snapshot(snapshot)
        window.charts.update_snapshot(snapshot)
        window.engine_settings.update_snapshot(snapshot)
