"""`ManagedCard` and `LogPane`: an engine that this window runs, and its log."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.features.serve.connections import Watcher
from app.features.serve.engine_cards import ConnectionCard
from app.features.serve.form import CopyButton
from app.features.serve.managed import ManagedEngines
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, mono_font, theme_notifier

LOG_LINES = 16
RENEW_MS = 500
EMPTY = "No output yet"


class ManagedCard(ConnectionCard):
    """`log_wanted`: show its log."""

    log_wanted = Signal()

    def __init__(
        self, watcher: Watcher, store: MetricStore, clock: RedrawClock, engines: ManagedEngines
    ) -> None:
        self._engines, self._id = engines, watcher.connection.id
        self.run = button("", lambda: engines.restart(self._id))
        self.stop = button("Stop", lambda: engines.stop(self._id))
        super().__init__(watcher, store, clock)
        self.watch.hide()  # its state is known without polls
        for one in (self.run, self.stop, button("Log", self.log_wanted.emit, kind="flat")):
            self.foot.add(one)
        engines.changed.connect(self._on_changed)

    def set_in_use(self, in_use: bool, tip: str) -> None:
        super().set_in_use(in_use, tip)
        self.use.setEnabled(not in_use and self._engines.is_ready(self._id))

    def renew(self) -> None:
        super().renew()
        engines = self._engines
        is_ready, is_running = engines.is_ready(self._id), engines.is_running(self._id)
        text, kind = engines.text(self._id)
        if not is_ready or kind == "loading":  # else how it answers
            self.state.say(text, kind)
            self.figures.set_muted(True)
        self.use.setEnabled(is_ready and not self._is_in_use)
        self.run.setText("Restart" if is_running else "Start")
        self.run.setToolTip("Finish running requests, then restart" if is_ready else "")
        self.stop.setEnabled(is_running)

    def _on_changed(self, connection_id: str) -> None:
        if connection_id == self._id:
            self.renew()


class LogPane(QFrame):
    """The last lines of one engine's log; it follows them while it is at their end."""

    def __init__(self) -> None:
        super().__init__()
        dressed(self, "Log", panel=True)
        self._lines: Callable[[], list[str]] = list
        self.title = label(role="title")
        self.view = dressed(QPlainTextEdit(), "Log", bare=True)
        self.view.setReadOnly(True)
        self.view.setUndoRedoEnabled(False)
        self.view.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.view.setTabChangesFocus(True)
        self.view.setPlaceholderText(EMPTY)
        copy = CopyButton("Copy log", self.view.toPlainText)
        close = IconButton("close", "Close log", self.hide)
        vbox(
            hbox(self.title, STRETCH, copy, close), self.view, of=self, spacing=SPACE_1,
            margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_3),
        )  # fmt: skip
        self._timer = QTimer(self, interval=RENEW_MS)
        self._timer.timeout.connect(self.renew)
        theme_notifier().changed.connect(self._fit)
        self._fit()
        self.hide()

    def show_log(self, title: str, lines: Callable[[], list[str]]) -> None:
        self._lines = lines
        self.title.setText(f"Log of {title}")
        self.show()
        self.renew()

    def renew(self) -> None:
        text = "\n".join(self._lines())
        if text == self.view.toPlainText():
            return
        bar = self.view.verticalScrollBar()
        place, follows = bar.value(), bar.value() == bar.maximum()
        self.view.setPlainText(text)
        bar.setValue(bar.maximum() if follows else place)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start()
        self.renew()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def _fit(self) -> None:
        self.view.setFont(mono_font("small"))
        self.view.setFixedHeight(self.view.fontMetrics().lineSpacing() * LOG_LINES)
