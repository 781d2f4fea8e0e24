"""`ManagedCard`: the card of an engine that this window runs: its log, restart and stop."""

from __future__ import annotations

from PySide6.QtWidgets import QPlainTextEdit

from app.clients.target import LinkState
from app.features.serve.connections import Watcher
from app.features.serve.engine_cards import ConnectionCard
from app.features.serve.managed import ManagedEngines
from app.managed.process import State
from widgets.controls.layouts import button, dressed
from widgets.live.figures import StateKind
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import mono_font

LOG_LINES, LOG_HEIGHT = 200, 160
STATES: dict[State, StateKind] = {
    State.STARTING: "loading", State.READY: "busy", State.STOPPING: "loading", State.ENDED: "idle",
}  # fmt: skip


class ManagedCard(ConnectionCard):
    """Its state is the process's until that answers, then the watcher's."""

    def __init__(
        self, watcher: Watcher, store: MetricStore, clock: RedrawClock, engines: ManagedEngines
    ) -> None:
        self._engines = engines
        super().__init__(watcher, store, clock)
        known = watcher.connection.id
        self.restart = button("", lambda: engines.restart(known), "Restart with its settings")
        self.stop = button(
            "Stop", lambda: engines.stop(known), "Running requests are aborted; the GPU is freed"
        )
        self.log_toggle = button("Log", lambda: self._show_log(), "Its last lines", "flat")
        self.log_toggle.setCheckable(True)
        for one in (self.restart, self.stop, self.log_toggle):
            self.foot.add(one)
        self.log = dressed(QPlainTextEdit(), "Engine log", bare=True)
        self.log.setReadOnly(True)
        self.log.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.log.setFont(mono_font("small"))
        self.log.setFixedHeight(LOG_HEIGHT)
        self.log.hide()
        layout = self.layout()
        assert layout is not None
        layout.addWidget(self.log)
        self.show_status()

    def show_status(self) -> None:
        """Show the process's state; called when it changed."""
        is_running = self._engines.status(self.watcher.connection.id).is_running
        self.restart.setText("Restart" if is_running else "Start")
        self.stop.setEnabled(is_running)
        self.foot.arrange()
        self.renew()
        self._show_log()

    def renew(self) -> None:
        super().renew()
        status = self._engines.status(self.watcher.connection.id)
        is_ready = status.state is State.READY
        self.use.setEnabled(is_ready and not self._is_in_use)
        if is_ready and self.watcher.state is LinkState.LIVE:
            return
        words, kind = status.text, STATES[status.state]
        if status.error is not None:
            words, kind = f"{status.error.cause} {status.error.remedy}".strip(), "error"
        self.state.say(words, kind)

    def _show_log(self) -> None:
        shown = self.log_toggle.isChecked()
        self.log.setVisible(shown)
        if shown:
            lines = self._engines.lines(self.watcher.connection.id)[-LOG_LINES:]
            text = "\n".join(lines)
            if text != self.log.toPlainText():
                self.log.setPlainText(text)
                bar = self.log.verticalScrollBar()
                bar.setValue(bar.maximum())
