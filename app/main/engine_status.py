"""What the engine says, shown in the window: its state, how far loading is, its figures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from app.clients.target import LinkChanged, LinkState, Remark
from app.features.models.session import LINK
from app.link.bridge import EngineBridge, EngineState
from app.window.notices import Notice
from engine import messages
from engine.snapshot import EngineSnapshot
from widgets.live.figures import StateKind
from widgets.plot.series import MarkKind

if TYPE_CHECKING:
    from app.main.main_window import MainWindow


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


TICK_MS = 1000


class LinkNews(QObject):
    """Follows the bridge of a window from now on."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._bridge: EngineBridge = window.bridge
        self._since = 0.0  # when the line was live last
        self._was_live = self._is_cut = False
        self._before: tuple[str, StateKind] | None = None  # the strip's words while it was live
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self._show_state)
        self._bridge.link_changed.connect(self._on_link)
        window.closing.connect(self._timer.stop)

    def _on_link(self, link: LinkChanged | None) -> None:
        window = self._window
        window.strip.set_place(self._bridge.place)
        if link is None or not self._bridge.is_remote:
            self._timer.stop()
            self._was_live, self._is_cut, self._before = False, False, None
            window.notices.dismiss(LINK)  # it was about a line that is not used any more
            return
        if link.state is LinkState.LIVE:
            self._on_live()
            return
        if self._before is None:
            self._before, self._since = window.strip.state, link.time
        if link.state is LinkState.CLOSED:
            self._timer.stop()
            self._on_closed(link)
        elif link.state is LinkState.CONNECTING:
            self._was_live = False
            self._on_connecting(link)
        elif link.state is LinkState.RECONNECTING:
            self._on_cut(link)
        if link.state is not LinkState.CLOSED:
            self._timer.start()
        self._show_state()
        window.commands.refresh()

    # What is said ----------------------------------------------------------------------------

    def _on_live(self) -> None:
        self._timer.stop()
        place, window = self._bridge.place, self._window
        before, self._before = self._before, None
        if before is not None and self._was_live:
            window.strip.set_state(*before)
        elif self._bridge.model is None:
            window.strip.set_state(f"{place}: asking what it has loaded", "loading")
        if self._is_cut:
            self._is_cut = False
            gone = max(time.perf_counter() - self._since, 0.0)
            window.show_notice(
                Notice(LINK, f"{place} is connected again.", f"The line was cut for {gone:.0f} s.")
            )
        elif not self._was_live:
            window.notices.dismiss(LINK)
        self._was_live = True
        window.commands.refresh()

    def _on_connecting(self, link: LinkChanged) -> None:
        if link.words:
            self._window.show_notice(
                Notice(LINK, link.words, "Trying again until it answers.", "warning",
                       actions=(("Give up", self._bridge.detach),))
            )  # fmt: skip

    def _on_cut(self, link: LinkChanged) -> None:
        if not self._is_cut:  # once, however many tries it takes
            self._is_cut = True
            self._window.show_notice(
                Notice(LINK, f"The line to {self._bridge.place} was cut.",
                       "Replies go on where they were when it is back within a minute.", "warning",
                       link.words, actions=(("Leave", self._bridge.detach),))
            )  # fmt: skip

    def _on_closed(self, link: LinkChanged) -> None:
        if link.words:
            self._window.show_notice(
                Notice(LINK, link.words, "", "error",
                       actions=(("Try again", self._bridge.attach_again),
                                ("Leave", self._bridge.detach)))
            )  # fmt: skip

    def _show_state(self) -> None:
        link, place = self._bridge.link, self._bridge.place
        if link is None:
            return
        seconds = max(time.perf_counter() - self._since, 0.0)
        old = f"what is shown is {seconds:.0f} s old" if self._bridge.model is not None else ""
        kind: StateKind = "loading"
        match link.state:
            case LinkState.CONNECTING:
                text = f"Connecting to {place}"
            case LinkState.STALE:
                text = f"{place} does not answer; {old}"
            case LinkState.RECONNECTING:
                tries = link.words.split(" try")[0]
                text = f"Reconnecting to {place}, {tries} try; {old}"
            case _:
                text, kind = f"{place} is not connected; {old}", "error"
        self._window.strip.set_state(text.rstrip("; "), kind)
