"""Engine state in the window: model, loading progress, figures, connection to a remote engine."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.target import LinkChanged, LinkState, Remark
from app.features.models.downloads import State
from app.features.models.precision import precision_text
from app.features.models.session import LINK
from app.link.bridge import EngineBridge, EngineState
from app.link.change_watch import Applied
from app.link.child_engine import IsolatedEngine
from app.link.engine_handle import ThreadFactory, engine_thread
from app.window.notices import Kind, Notice
from app.window.program_settings import PROCESS
from engine import messages
from engine.snapshot import EngineSnapshot
from engine.units import percent_text, rough_duration
from widgets.live.figures import StateKind
from widgets.live.metric_store import MetricStore
from widgets.plot.series import MarkKind

if TYPE_CHECKING:
    from app.main.application import Application

TICK_MS = 1000
NO_RESPONSE: tuple[str, StateKind] = ("Not responding", "error")


def feed_metrics(store: MetricStore, bridge: EngineBridge) -> None:
    """Let `store` take every snapshot of the bridge's engine. While another model loads, and after
    the window turned to another engine, nothing measured is shown."""

    def take(snapshot: EngineSnapshot) -> None:
        if bridge.state is EngineState.READY:
            store.update(snapshot)

    def take_past(snapshots: tuple[EngineSnapshot, ...]) -> None:
        for snapshot in snapshots:
            take(snapshot)

    def follow(state: EngineState) -> None:
        if state is not EngineState.READY:
            store.end()

    bridge.past.connect(take_past)
    bridge.snapshot.connect(take)
    bridge.state_changed.connect(follow)


class EngineStatus(QObject):
    """Shows the bridge's state in strip, charts, notices and title."""

    title_changed = Signal(str)  # of the window

    def __init__(self, app: Application) -> None:
        super().__init__(app.window)
        self._app = app
        bridge = self._bridge = app.bridge
        self._session, self._notices = app.session, app.notices
        self._strip, self._load_strip, self._charts = app.strip, app.load_strip, app.charts
        self._model_name = ""
        self._before = self._strip.state  # the engine stopped responding
        bridge.state_changed.connect(self._on_state)
        bridge.link_changed.connect(lambda link: self._show_title())
        bridge.past.connect(self._on_past)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.load_progress.connect(self._on_progress)
        bridge.loaded.connect(self._on_loaded)
        bridge.remarked.connect(self._on_remark)
        bridge.stalled_changed.connect(self._on_stalled)
        for done in (bridge.reconfigured, bridge.reconfigure_failed, bridge.load_failed):
            done.connect(lambda event: app.load_strip.end())
        self._on_state(bridge.state)

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.LOADING:
            title = self._session.opening_title
            self._strip.set_model(title)
            self._strip.set_state("Loading", "loading")
            self._load_strip.begin(f"Loading {title}")
        else:
            self._load_strip.end()
        if state is EngineState.CRASHED:
            self._strip.set_state("Engine crashed", "error")
        elif state is EngineState.EMPTY:
            self._strip.clear()
            if self._bridge.is_remote:
                self._strip.set_state(f"No model loaded on {self._bridge.place}")
            self._show_title()

    def _on_stalled(self, event: messages.Stalled | None) -> None:
        if event is not None and self._strip.state != NO_RESPONSE:
            self._before = self._strip.state
            self._strip.set_state(*NO_RESPONSE)
        elif event is None and self._strip.state == NO_RESPONSE:
            self._strip.set_state(*self._before)

    def _show_title(self) -> None:
        model, place = self._bridge.model, self._bridge.place
        what = f"{model.name if model is not None else ''} {f'at {place}' if place else ''}".strip()
        self.title_changed.emit(f"{what} – Inferdeck" if what else "Inferdeck")

    def _on_loaded(self, event: messages.Loaded) -> None:
        self._show_title()
        before, self._model_name = self._model_name, event.model.name
        if before:  # the charts keep the previous model's figures for comparison
            same = "again" if before == event.model.name else f"after {before}"
            details = (f"{event.model.name} loaded {same}",)
            if change := self._app.pages.server.switch.take_change():
                self._charts.mark(change, MarkKind.SETTING, details)
            else:
                self._charts.mark(event.model.name, MarkKind.MODEL, details)

    def _on_progress(self, progress: messages.LoadProgress) -> None:
        if self._load_strip.isHidden():  # a setting reloads the model
            self._load_strip.begin("Applying settings")
        self._load_strip.update_progress(progress)
        if self._bridge.state is EngineState.LOADING:
            done = f" · {percent_text(progress.done / progress.total)}" if progress.total else ""
            self._strip.set_state(f"Loading{done}", "loading")

    def _on_remark(self, remark: Remark) -> None:
        self._notices.show_notice(Notice(f"remark:{remark.words}", remark.words))

    def _on_past(self, snapshots: tuple[EngineSnapshot, ...]) -> None:
        """A few hundred snapshots: charts take them now, and draw on their clock."""
        for snapshot in snapshots:
            self._on_snapshot(snapshot)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._strip.update_snapshot(snapshot)
        self._charts.update_snapshot(snapshot)


class ConnectionStatus(QObject):
    """Shows the state of the connection to a remote engine."""

    def __init__(self, app: Application) -> None:
        super().__init__(app.window)
        self._bridge, self._strip, self._notices = app.bridge, app.strip, app.notices
        self._since = 0.0  # when the connection was last live
        self._was_live = self._is_lost = False
        self._before: tuple[str, StateKind] | None = None  # the strip's state while it was live
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self._show_state)
        app.bridge.link_changed.connect(self._on_link)

    def close(self) -> None:
        self._timer.stop()

    def _on_link(self, link: LinkChanged | None) -> None:
        self._strip.set_place(self._bridge.place)
        if link is None or not self._bridge.is_remote:
            self._timer.stop()
            self._was_live, self._is_lost, self._before = False, False, None
            self._notices.dismiss(LINK)
            return
        if link.state is LinkState.LIVE:
            self._on_live()
            return
        if self._before is None:
            self._before, self._since = self._strip.state, link.time
        if link.state is LinkState.CLOSED:
            self._timer.stop()
            self._on_closed(link)
        else:
            self._timer.start()
            if link.state is LinkState.CONNECTING:
                self._was_live = False
                self._on_connecting(link)
            elif link.state is LinkState.RECONNECTING:
                self._on_lost(link)
        self._show_state()

    def _on_live(self) -> None:
        self._timer.stop()
        place = self._bridge.place
        before, self._before = self._before, None
        if before is not None and self._was_live:
            self._strip.set_state(*before)
        elif self._bridge.model is None:
            self._strip.set_state(f"{place}: reading model info", "loading")
        if self._is_lost:
            self._is_lost = False
            gone = rough_duration(max(time.perf_counter() - self._since, 0.0))
            self._notices.show_notice(Notice(LINK, f"Reconnected to {place} after {gone}."))
        elif not self._was_live:
            self._notices.dismiss(LINK)
        self._was_live = True

    def _on_connecting(self, link: LinkChanged) -> None:
        if link.words:
            self._notices.show_notice(
                Notice(LINK, link.words, "Retrying until the server responds.", "warning",
                       actions=(("Cancel", self._bridge.detach),))
            )  # fmt: skip

    def _on_lost(self, link: LinkChanged) -> None:
        if not self._is_lost:  # once, however many retries follow
            self._is_lost = True
            self._notices.show_notice(
                Notice(LINK, f"Connection to {self._bridge.place} lost. Reconnecting.",
                       "Replies resume if the connection is restored within a minute.", "warning",
                       link.words, actions=(("Detach", self._bridge.detach),))
            )  # fmt: skip

    def _on_closed(self, link: LinkChanged) -> None:
        if link.words:
            self._notices.show_notice(
                Notice(LINK, link.words, "", "error",
                       actions=(("Retry", self._bridge.attach_again),
                                ("Detach", self._bridge.detach)))
            )  # fmt: skip

    def _show_state(self) -> None:
        link, place = self._bridge.link, self._bridge.place
        if link is None:
            return
        silent = rough_duration(max(time.perf_counter() - self._since, 0.0))
        age = f"; last update {silent} ago" if self._bridge.model is not None else ""
        kind: StateKind = "loading"
        match link.state:
            case LinkState.CONNECTING:
                text = f"Connecting to {place}"
            case LinkState.STALE:
                text = f"{place} is not responding{age}"
            case LinkState.RECONNECTING:
                attempt = f" (attempt {link.attempt})" if link.attempt else ""
                text = f"Reconnecting to {place}{attempt}{age}"
            case _:
                text, kind = f"Disconnected from {place}{age}", "error"
        self._strip.set_state(text, kind)


KEY = "engine-place"
"""Of the notice."""


def factory_of(place: str) -> ThreadFactory:
    return IsolatedEngine if place == PROCESS else engine_thread


class EngineProcess(QObject):
    """Applies a new choice to the next model, or to the loaded one after a restart."""

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self._bridge, self._restart, self._notices = app.bridge, app.session.restart, app.notices
        app.bridge.state_changed.connect(self._on_state)

    def follow(self, place: str) -> None:
        """The user chose where the engine runs."""
        self._bridge.make_next(factory_of(place))
        is_open = self._bridge.state in (EngineState.READY, EngineState.LOADING)
        if not self._bridge.has_next or self._bridge.is_remote or not is_open:
            self._notices.dismiss(KEY)
            return
        where = "in a separate process" if place == PROCESS else "in this process"
        remedy = "To move the loaded model too, restart the engine. This aborts running replies."
        restart = ("Restart engine", self._restart)
        cause = f"The next model you load will run {where}."
        self._notices.show_notice(Notice(KEY, cause, remedy, actions=(restart,)))

    def _on_state(self, state: EngineState) -> None:
        if not self._bridge.has_next:
            self._notices.dismiss(KEY)


LOADED = "loaded"
LONG_S = 2.0
"""Settings that apply faster are not listed."""


class FinishedWork(QObject):
    """Adds each finished job to the history. Failures shown as a notice are added with it.
    """

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        models, runs, self._bridge = app.pages.models, app.pages.runs, app.bridge
        self._history, self._queue, self._runs = app.history, models.queue, runs
        self._open_model = models.open_downloaded
        self._show_chat = partial(app.window.show_widget, app.pages.chat_page)
        self._is_chat_shown = lambda: app.window.page.widget is app.pages.chat_page
        self._show_notice, self._dismiss = app.notices.show_notice, app.notices.dismiss
        self._failed: set[str] = set()  # a queue reports a failure more than once
        self._switch = app.pages.server.switch
        app.bridge.loaded.connect(self._on_loaded)
        app.bridge.link_changed.connect(self._on_link)
        app.window.stack.currentChanged.connect(self._on_page)
        app.changes.applied.connect(self._on_applied)
        models.queue.finished.connect(self._on_downloaded)
        models.queue.changed.connect(self._on_download)
        runs.run_over.connect(self._on_run)

    def _on_loaded(self, event: messages.Loaded) -> None:
        model, config = event.model, event.config
        precision, note = precision_text(model, config), self._switch.take_note()
        chat = () if self._is_chat_shown() else (("Chat", self._show_chat),)
        if place := self._bridge.place:  # which may report neither precision nor device
            text = f"Attached to {place}: {model.name}."
            details = " ".join(filter(None, (f"{precision}." if precision else "", note)))
            chat = (*chat, ("Use local engine", self._switch.back))
        else:
            text, details = f"Loaded {model.name}.", f"{precision} on {model.device}."
        notice = Notice(LOADED, text, details, actions=chat)
        if note or (place and not self._is_chat_shown()):
            self._show_notice(notice)
        else:  # the header shows it; a notice would move the page under a click
            self._dismiss(LOADED)  # of the model before
            self._history.add(notice)

    def _on_link(self, link: LinkChanged | None) -> None:
        if link is None:
            self._dismiss(LOADED)  # of the engine that the window has left

    def _on_page(self, index: int) -> None:
        if self._is_chat_shown():  # where its button leads
            self._dismiss(LOADED)

    def _on_applied(self, applied: Applied) -> None:
        if applied.waited_s >= LONG_S:
            self._history.add(Notice("applied", f"{applied.text}. {applied.sentence}"))

    def _on_downloaded(self, repo_id: str, path: str) -> None:
        self._failed.discard(repo_id)
        act = (("Open", lambda: self._open_model(path)),)
        self._history.add(Notice(repo_id, f"Downloaded {repo_id}.", path, actions=act))

    def _on_download(self, repo_id: str) -> None:
        download = self._queue.get(repo_id)
        error = download.error if download is not None else None
        if download is None or download.state is not State.FAILED or error is None:
            self._failed.discard(repo_id)
        elif repo_id not in self._failed:
            self._failed.add(repo_id)
            cause = f"Download of {repo_id} failed: {error.cause}"
            self._history.add(Notice(repo_id, cause, error.remedy, "error"))

    def _on_run(self) -> None:
        if self._runs.jobs.ending is not None:
            text, is_error = self._runs.jobs.ending
            kind: Kind = "error" if is_error else "info"
            show = ("Show", self._runs.show_table)
            self._history.add(Notice("quantize", text, "", kind, actions=(show,)))
