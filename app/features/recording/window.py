"""The replay window: the engine's views, fed from a recording. No model is loaded.

+---------------------------------------------------+
| recording: file, date, machine                    |
| figures                                           |
| live charts                     | settings and    |
+---------------------------------+ machine         |
| block map, timeline, ...        |                 |
+---------------------------------------------------+
| play bar                                          |
+---------------------------------------------------+
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QFrame, QLabel, QMainWindow, QWidget

from app.features.inspect.engine_views import EngineViews
from app.features.recording.about import AboutTable
from app.features.recording.file import Recording
from app.features.recording.marks import changes_text
from app.features.recording.player import PlayBar, Player
from app.link.bridge import EngineBridge, EngineState
from app.window.docks import CardDock, DockArea
from app.window.notices import Notice, NoticeArea
from engine import messages
from engine.snapshot import EngineSnapshot, GpuFigures
from widgets.controls.layouts import dressed, hbox, vbox
from widgets.controls.windows import FittingSize
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import SPACE_2, SPACE_3

SIZE = (1360, 900)
_ABOUT_WIDTH, _VIEWS_HEIGHT = 300, 330


class ReplayWindow(QMainWindow):
    """`closed`: it can be deleted."""

    closed = Signal()

    def __init__(self, recording: Recording, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.recording = recording
        self.setWindowTitle(f"Recording {recording.path.name} – Inferdeck")
        FittingSize(self, SIZE)
        self.player = Player(recording.frames, self)
        clock = RedrawClock(parent=self)
        self.metrics = MetricStore()
        self.strip = StatStrip(self.metrics, clock)
        self.charts = LiveCharts(self.metrics, clock)
        self._gpus: tuple[GpuFigures, ...] = ()
        names = self.player.names
        # the player has the signals of the bridge that views listen to
        self.views = EngineViews(
            cast(EngineBridge, self.player), clock, self,
            lambda request_id: names.get(request_id, request_id[:8]),
            cursor=self.charts.group.cursor,
        )  # fmt: skip
        self.views.bottleneck.set_recorded()
        self.views.requests.set_recorded()
        self.about = AboutTable(recording)
        self.bar = PlayBar(self.player)
        self.notices = NoticeArea()
        self._arrange()
        self._connect()
        self._set_pace(0.0)
        if recording.notice:
            self.notices.show_notice(Notice("cut", recording.notice, kind="warning"))
        QTimer.singleShot(0, self, self._begin)

    def _arrange(self) -> None:
        self.area = DockArea(self.charts)
        padded = QWidget()
        vbox(self.about, of=padded, margins=(SPACE_2, 0, SPACE_2, SPACE_2))
        self.about_dock = CardDock("Settings and machine", "about", padded)
        sides = Qt.DockWidgetArea
        self.area.addDockWidget(sides.RightDockWidgetArea, self.about_dock)
        docks = [dock for dock, _ in self.views.docks]
        self.area.take(docks)
        for dock in docks:
            dock.show()
            dock.visibilityChanged.connect(self.charts.clock.wake)
        for dock, following in pairwise(docks):
            self.area.tabifyDockWidget(dock, following)
        docks[0].raise_()
        whole = QWidget()
        vbox(
            self._make_sign(), self.notices, self.strip, (self.area, 1), self.bar,
            of=whole, margins=(SPACE_2, SPACE_2, SPACE_2, SPACE_2),
        )  # fmt: skip
        self.setCentralWidget(whole)

    def _make_sign(self) -> QFrame:
        """A banner: this is a recording."""
        origin = _origin(self.recording)
        sign = dressed(QFrame(), f"Recording: {origin}", notice="warning")
        badge = dressed(QLabel("Recording"), badge="cache rebuild")
        words = dressed(QLabel(origin, textFormat=Qt.TextFormat.PlainText), role="muted")
        margins = SPACE_3, SPACE_2, SPACE_3, SPACE_2
        hbox(badge, (words, 1), of=sign, spacing=SPACE_3, margins=margins)
        self.sign = sign
        return sign

    def _connect(self) -> None:
        player = self.player
        player.snapshot.connect(self._on_snapshot)
        player.loaded.connect(self._on_loaded)
        player.reconfigured.connect(self._on_reconfigured)
        player.state_changed.connect(self._on_state)
        player.restarted.connect(self._forget)
        player.pace_changed.connect(self._set_pace)
        player.playing_changed.connect(lambda plays: self._hold())
        player.moved.connect(lambda position: self._hold())
        close = QShortcut(QKeySequence("Ctrl+W"), self)
        close.activated.connect(self.close)

    def _begin(self) -> None:
        """Start at the beginning."""
        sizes = Qt.Orientation
        self.area.resizeDocks([self.about_dock], [_ABOUT_WIDTH], sizes.Horizontal)
        views = self.views.docks[0][0]
        self.area.resizeDocks([views], [_VIEWS_HEIGHT], sizes.Vertical)
        self.player.seek(self.player.beginning)

    # What the recording says --------------------------------------------------------------------

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.metrics.update(snapshot)
        self.strip.update_snapshot(snapshot)
        self.charts.update_snapshot(snapshot)
        if snapshot.gpus != self._gpus:
            self._gpus = snapshot.gpus
            self.charts.update_gpus(snapshot.time, snapshot.gpus)
            self.views.memory.update_gpus(snapshot.gpus)
        self.about.show_config(snapshot.config)

    def _on_loaded(self, event: messages.Loaded) -> None:
        self.charts.clear()
        self.about.show_config(event.config)

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        changes = changes_text(self.about.config, event.config)
        if changes:
            self.charts.mark(changes)
        self.about.show_config(event.config)

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.CRASHED:
            self.strip.set_state("Engine crashed", "error")
        elif state is EngineState.EMPTY:
            self.metrics.end()
            self.strip.clear()

    def _forget(self) -> None:
        """Playback starts over."""
        self.metrics.clear()
        self.strip.clear()
        self.charts.clear()
        self.views.clear()

    def _hold(self) -> None:
        """Redraw only during playback or a jump."""
        self.charts.set_paused(False)
        if not self.player.is_playing and not self.player.is_jumping:
            self.charts.set_paused(True)

    def _set_pace(self, pace: float) -> None:
        self.metrics.time.set_speed(pace)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.player.stop()
        event.accept()
        self.closed.emit()


def _origin(recording: Recording) -> str:
    model = next(
        (f.event.model.name for f in recording.frames if isinstance(f.event, messages.Loaded)), ""
    )
    created = str(recording.about.get("created", "")).replace("T", " ")
    parts = [recording.path.name, model, f"saved on {created}" if created else ""]
    return "  ·  ".join(part for part in parts if part)
